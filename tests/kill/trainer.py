"""The trainer of the kill test: batches by the SDK, with its cursor beside its weights.

It says each step that it comes to on a line of stdout and goes on once it is told to on
stdin, so that the test can kill it anywhere between pull, training, weights and checkpoint.

    trainer.py SERVER CHECKPOINT
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from polar import PolarClient, RetryPolicy

MAX_STALENESS = 1


@dataclass
class Checkpoint:
    """What a trainer keeps: weights (here what they were trained on), version and cursor."""

    cursor: int = 0
    version: int = 0
    trained: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, path: Path) -> None:
        fresh = path.with_suffix(".new")
        with fresh.open("w") as out:
            json.dump(asdict(self), out)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(path)


def main() -> None:
    server, path = sys.argv[1], Path(sys.argv[2])
    kept = Checkpoint.load(path)
    # The server may be away when this starts, for it is killed too.
    with PolarClient(server, retry=RetryPolicy(connect_seconds=120.0)) as client:
        push(client, kept.version)
        say("started", version=kept.version, cursor=kept.cursor)
        while step(client, kept, path):
            pass
    say("done", trained=kept.trained)


def step(client: PolarClient, kept: Checkpoint, path: Path) -> bool:
    """One step of training; False when there is nothing left to come."""
    answer = client.next_batch(
        kept.cursor,
        queue="train",
        groups=1,
        version=str(kept.version),
        max_staleness=MAX_STALENESS,
        wait_seconds=2.0,
    )
    if answer.batch is None:
        return answer.state.ready > 0 or answer.state.running > 0
    number = answer.batch.number
    groups = [group.group_id for group in answer.batch.groups]
    trajectories = client.batch_trajectories(number, queue="train")
    say(
        "pulled",
        number=number,
        version=kept.version,
        groups=groups,
        sessions=[t.session_id for t in trajectories],
        # Of a reply that saw two, an engine in chat mode does not say which, and nobody guesses.
        versions=sorted(
            {
                span.version
                for t in trajectories
                for row in t.traces
                for span in row.weight_versions
                if span.version is not None
            }
        ),
    )
    kept.trained += groups
    kept.version += 1
    kept.cursor = number
    kept.save(path)
    say("kept", number=number)
    # What engines have is in a checkpoint, so that nobody comes back with less.
    push(client, kept.version)
    say("pushed", version=kept.version)
    return True


def push(client: PolarClient, version: int) -> None:
    client.update_weights(str(version), source={"label": {}})
    update = client.wait_for_weights(str(version))
    assert update.status == "current", update


def say(what: str, **more: Any) -> None:
    """Says where it is, and waits there."""
    print(json.dumps({"what": what, **more}), flush=True)
    if not sys.stdin.readline():
        sys.exit("the test is gone")


if __name__ == "__main__":
    main()
