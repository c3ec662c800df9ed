#!/usr/bin/env python3
"""The storm: sessions of all kinds, while agents, sandboxes, nodes and a Docker daemon are killed.

Starts an engine simulator, a server, three nodes with 16 places, and a Docker daemon of its own
behind a wire. Agents crash, hang, fork, fill the disk and print a gigabyte; others are killed, and
so are sandboxes, exec clients, nodes and the daemon, and the disk of a node is full for a while.
What is done is written down. In the end every session must have ended for the right reason, with
its data, and nothing may be left: see `aftermath.py`.

    tests/storm/run.py [--sessions 60] [--seed 7] [--keep]

Needs root, bubblewrap, Docker, and the image of the suite docker-clis.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "kill"), str(TESTS / "docker")]

import aftermath
import checks
import clis
from injuries import Ledger, Surgeon, Weather
from machines import Machines
from processes import ROOT, until
from sessions import tasks

END_SECONDS = 1800.0


def main() -> int:
    arguments = read_arguments()
    started = time.monotonic()
    print(f"--seed {arguments.seed}", flush=True)
    clis.make_image()
    # Short, for the sockets in it.
    folder = Path(tempfile.mkdtemp(prefix="storm-", dir=ROOT / "target"))
    found = play(folder, arguments)
    for name, problems in found.items():
        print(f"  {'FAIL' if problems else 'ok  '} {name}")
        for problem in problems[:10]:
            print(f"       {problem}")
    failed = sum(1 for problems in found.values() if problems)
    if failed or arguments.keep:
        print(f"  logs and state: {folder}")
    else:
        shutil.rmtree(folder)
    seconds = time.monotonic() - started
    print(f"===== {failed} failed, {len(found) - failed} passed in {seconds:.1f}s", flush=True)
    return 1 if failed else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    number = lambda name, usual: int(os.environ.get(name, usual))  # noqa: E731
    parser.add_argument("--sessions", type=int, default=number("POLAR_STORM_SESSIONS", 60))
    seed = number("POLAR_STORM_SEED", random.randrange(1_000_000))
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--keep", action="store_true", help="keep logs and state")
    return parser.parse_args()


def play(folder: Path, arguments: argparse.Namespace) -> dict[str, list[str]]:
    chance = random.Random(arguments.seed)
    before = aftermath.Traces()
    machines = Machines(folder, clis.IMAGE)
    found: dict[str, list[str]] = {}
    try:
        evidence, ledger = storm(machines, arguments.sessions, chance)
        found.update(aftermath.all_of(evidence, ledger))
        print(aftermath.table(evidence, ledger), flush=True)
        found["polar verify agrees"] = aftermath.verified(machines, list(evidence.accepted))
        machines.stop()
        assert machines.daemon is not None
        daemon = machines.daemon
        containers = daemon.containers()
        with contextlib.suppress(AssertionError):
            until(lambda: not daemon.networks(), 90.0, lambda: "")
        networks = daemon.networks()
        # The daemon's own processes and mounts are none of the nodes'.
        daemon.end()
        found.update(aftermath.leftovers(machines, before, containers, networks))
    finally:
        machines.stop()
        machines.remove()
    return found


def storm(
    machines: Machines, sessions: int, chance: random.Random
) -> tuple[checks.Evidence, Ledger]:
    ledger = Ledger()
    surgeon = Surgeon(machines, ledger, random.Random(chance.random()))
    accepted = {}
    for task in tasks(sessions, clis.IMAGE, chance):
        machines.api.insist("POST", "/api/tasks", task)
        accepted[task["task_id"]] = task["num_samples"]
    total = sum(accepted.values())
    progress = Progress(machines)
    surgeon.start()
    try:
        weather = Weather(machines, ledger, chance)
        events = weather.events(sessions)
        for number, event in enumerate(events):
            # Some sessions are amid their work at each.
            progress.wait_for(total * (number + 1) // (len(events) + 2))
            weather.happen(event)
        progress.wait_for(total)
    finally:
        surgeon.stop()
    evidence = checks.Evidence(
        accepted=accepted,
        kills=len(events),
        acknowledged=[],
        followed=[],
        held_up=set(),
    )
    # What nodes have of lost attempts comes in on its own time; what does not is told at the end.
    with contextlib.suppress(AssertionError):
        until(lambda: not checks.held(machines.node_folders()), 90.0, lambda: "")
    evidence.read(machines.api)  # type: ignore[arg-type]
    return evidence, ledger


class Progress:
    """How many sessions have ended, by the log."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._cursor = 0
        self.ended: set[str] = set()
        self._told = 0

    def wait_for(self, count: int) -> None:
        until(lambda: self._look() >= count, END_SECONDS, self._now)

    def _look(self) -> int:
        page: dict[str, Any] = self._machines.api.insist(
            "GET", f"/api/events?after={self._cursor}&wait_seconds=1&limit=1000"
        )
        self._cursor = page["cursor"]
        ended = [e["session_id"] for e in page["events"] if e["kind"] == "session.ended"]
        self.ended.update(ended)
        if len(self.ended) >= self._told + 20:
            self._told = len(self.ended)
            print(f"  {self._told} sessions ended", flush=True)
        return len(self.ended)

    def _now(self) -> str:
        return f"{len(self.ended)} sessions ended"


if __name__ == "__main__":
    sys.exit(main())
