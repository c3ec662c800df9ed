"""Runs tasks and writes the successful rollouts as chat messages, one JSON line each.

python examples/sft_data.py tasks.jsonl out.jsonl     # each line a task as in POST /api/tasks
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from polar import AsyncPolarClient


async def main(source: Path, target: Path) -> None:
    tasks = [json.loads(line) for line in source.read_text().splitlines() if line.strip()]
    async with AsyncPolarClient() as client:
        submitted = await client.submit_batch(tasks)
        with target.open("w") as out:
            async for result in client.results(*(task.task_id for task in submitted)):
                if result.trajectory is None or not result.session.reward:
                    continue
                for trace in result.trajectory.traces:
                    if trace.lineage.role == "main":
                        messages = [*trace.prompt_messages, *trace.response_messages]
                        line = {"messages": messages, "tools": trace.tools}
                        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
