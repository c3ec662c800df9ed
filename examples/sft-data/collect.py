"""Runs tasks, and writes what agents did well as messages to fine-tune on.

    collect.py tasks.jsonl --out sft [--server localhost:50051] [--min-reward 1]

Each line of the file is a task as in `POST /api/tasks`. A task that names no id gets one
that is made of its content: started again, this goes on with what runs or has ended.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from polar import PolarClient


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=Path("sft"), help="folder of the two files")
    parser.add_argument("--server", default="localhost:50051")
    parser.add_argument("--min-reward", default="1")
    parser.add_argument("--role", default="main")
    parser.add_argument("--max-tokens", default="8192")
    parser.add_argument("--held-out", default="0.1")
    arguments = parser.parse_args()
    with PolarClient(arguments.server) as client:
        tasks = client.submit_batch(list(map(named, read(arguments.tasks))))
        for task in tasks:
            ended = client.wait(task.task_id)
            print(f"{task.task_id}: {dict(ended.sessions)}", flush=True)
    export = [os.environ.get("POLAR_BINARY", "polar"), "export", *(task.task_id for task in tasks)]
    export += ["--server", arguments.server, "--format", "jsonl", "--out", str(arguments.out)]
    export += ["--min-reward", arguments.min_reward, "--role", arguments.role]
    export += ["--max-tokens", arguments.max_tokens, "--dedupe", "--held-out", arguments.held_out]
    return subprocess.run(export, check=False).returncode


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def named(task: dict[str, Any]) -> dict[str, Any]:
    content = json.dumps(task, sort_keys=True).encode()
    return {"task_id": f"sft-{hashlib.sha256(content).hexdigest()[:16]}", **task}


if __name__ == "__main__":
    sys.exit(main())
