"""Kinds of sessions: what each does, and what must come of it whatever happens around it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

AGENT = Path(__file__).parent / "agent.py"
# No session may run out of attempts for what is done to nodes and daemons.
ATTEMPTS = 40
# In which an agent has made its three calls, whatever else the machine does.
WORKS_IN = 45.0


@dataclass(frozen=True)
class Kind:
    """One behaviour, and the end that is right for it."""

    name: str
    share: int
    status: str
    reason: str
    reward: Optional[float]
    calls: int = 3
    run_seconds: float = 240.0
    runtime: dict[str, Any] = field(default_factory=dict)
    budgets: dict[str, Any] = field(default_factory=dict)
    attempts: int = ATTEMPTS
    says: str = ""
    """In the message of its failure."""


SLEEP = {"type": "exec", "command": "sleep 2"}
STUCK = {"type": "exec", "command": "sleep 600"}
KINDS = [
    Kind("plain", 26, "completed", "completed", 1.0),
    Kind("idle", 5, "completed", "completed", 0.0, calls=1),
    Kind("timeout", 11, "timed_out", "agent_timeout", 1.0, run_seconds=WORKS_IN),
    Kind("crash", 6, "failed", "harness_crash", None, calls=1, says="ended with exit code 3"),
    Kind("killed_agent", 11, "failed", "harness_crash", None, says="(exit code 137)"),
    Kind("killed_sandbox", 14, "completed", "completed", 1.0, calls=25),
    Kind(
        "fork_bomb",
        5,
        "timed_out",
        "agent_timeout",
        1.0,
        run_seconds=WORKS_IN,
        runtime={"pids": 64},
    ),
    Kind("output", 6, "completed", "completed", 1.0, calls=1),
    Kind(
        "disk_hog",
        5,
        "failed",
        "harness_crash",
        None,
        calls=1,
        runtime={"storage_mb": 32},
        says="storage_mb",
    ),
    Kind("slow_prepare", 6, "completed", "completed", 1.0, runtime={"prepare": [SLEEP]}),
    Kind(
        "stuck_prepare",
        3,
        "failed",
        "sandbox_loss",
        None,
        runtime={"prepare": [STUCK]},
        budgets={"prepare_seconds": 6},
        attempts=3,
        says="preparing took longer than budgets.prepare_seconds",
    ),
    Kind(
        "no_image",
        2,
        "failed",
        "sandbox_loss",
        None,
        runtime={"image": "polar.invalid/absent:1"},
        attempts=3,
        says="the sandbox could not be made",
    ),
]
BY_NAME = {kind.name: kind for kind in KINDS}


def tasks(sessions: int, image: str, chance: random.Random) -> list[dict[str, Any]]:
    """Small tasks of all kinds in both sandboxes, in an order that chance makes."""
    made = []
    large = {"local", "docker"}
    for runtime in ("local", "docker"):
        kinds = [kind for kind in KINDS if runtime == "docker" or kind.name != "no_image"]
        whole = sum(kind.share for kind in kinds)
        left = sessions // 2
        for kind in reversed(kinds):
            # At least one of each; what rounding leaves is plain, which is last here.
            count = left if kind.name == "plain" else max(1, kind.share * sessions // 2 // whole)
            left -= count
            number = 0
            while count > 0:
                samples = min(count, 4)
                output = 1024 if kind.name == "output" and runtime in large else 20
                if kind.name == "output":
                    large.discard(runtime)
                    samples = 1 if output == 1024 else samples
                made.append(task(kind, runtime, number, samples, image, output))
                count -= samples
                number += 1
    chance.shuffle(made)
    return made


def task(
    kind: Kind, runtime: str, number: int, samples: int, image: str, output: int
) -> dict[str, Any]:
    written = {"type": "write_file", "path": "agent.py", "content": AGENT.read_text()}
    spec = {"type": runtime, **({"image": image} if runtime == "docker" else {}), **kind.runtime}
    spec["prepare"] = [written, *kind.runtime.get("prepare", [])]
    return {
        "task_id": f"storm-{kind.name}-{runtime}-{number}",
        "harness": {
            "name": "shell",
            "command": f"exec python3 agent.py {kind.name} {kind.calls}",
            "env": {"STORM_OUTPUT_MB": str(output)},
        },
        "runtime": spec,
        "evaluator": {"type": "command", "command": "test -f work"},
        "num_samples": samples,
        "max_attempts": kind.attempts,
        "budgets": {
            "prepare_seconds": 180,
            "run_seconds": kind.run_seconds,
            "grade_seconds": 180,
            **kind.budgets,
        },
        "metadata": {"kind": kind.name, "runtime": runtime},
    }


def kind_of(session: str) -> Kind:
    return BY_NAME[session.split("-")[1]]


def runtime_of(session: str) -> str:
    return session.split("-")[2]
