#!/usr/bin/env python3
"""The kill test of trainers: `kill -9` between pull and checkpoint trains nothing twice.

A real trainer (`trainer.py`, with the SDK) pulls groups from a real server with a node and
an engine simulator, and is killed where it hurts: with a batch that it has not trained, with a
checkpoint whose weights it has not pushed, with weights that it has pushed and not gone on
from. It is started again with what it kept. The server is killed too: while the trainer
holds a batch, while it waits for one, and while a group is half done. In the end every group
was trained once or is counted under the reason for which it was not.

Needs the SDK's packages, `httpx` and `pydantic`.

    tests/kill/trainers.py [--seed 7] [--keep]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import checks
from deployment import HERE, Deployment
from processes import until
from run import Acknowledgements
from trainer import MAX_STALENESS

LEASE_SECONDS = 5.0
END_SECONDS = 120.0
EARLY, LATE, SAMPLES, CALLS = 4, 5, 4, 3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    seed = int(os.environ.get("POLAR_KILL_SEED", random.randrange(1_000_000)))
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--keep", action="store_true", help="keep logs and state")
    arguments = parser.parse_args()
    started = time.monotonic()
    print(f"trainers, --seed {arguments.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="polar-kill-trainers-"))
    found = Run(folder, arguments.seed).play()
    for name, problems in found.items():
        print(f"  {'FAIL' if problems else 'ok  '} {name}")
        for problem in problems:
            print(f"       {problem}")
    failed = sum(1 for problems in found.values() if problems)
    if failed or arguments.keep:
        print(f"  logs and state: {folder}")
    else:
        shutil.rmtree(folder)
    seconds = time.monotonic() - started
    print(f"===== {failed} failed, {len(found) - failed} passed in {seconds:.1f}s", flush=True)
    return 1 if failed else 0


class Trainer:
    """The process. It stands still behind each line that it says."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._running: subprocess.Popen[str] | None = None
        self.said: list[dict[str, Any]] = []
        self.kills = 0

    def start(self) -> None:
        folder = self._deployment.folder
        command = [sys.executable, str(HERE / "trainer.py")]
        command += [f"127.0.0.1:{self._deployment.port}", str(folder / "checkpoint.json")]
        with (folder / "trainer.log").open("a") as log:
            self._running = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "XDG_STATE_HOME": str(folder), "POLAR_TOKEN": ""},
            )

    def until(self, what: str) -> dict[str, Any]:
        """Has it go on until it says this, and leaves it there."""
        while (said := self.next())["what"] != what:
            assert said["what"] != "done", f"it ended before {what}: {self.said}"
        return said

    def next(self) -> dict[str, Any]:
        """Has it go on to the next thing that it says."""
        assert self._running is not None
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        if self.said and self.said[-1]["what"] != "killed":
            self._running.stdin.write("\n")
            self._running.stdin.flush()
        line = self._running.stdout.readline()
        assert line, f"it ended with {self._running.wait()}; see trainer.log"
        self.said.append(json.loads(line))
        return self.said[-1]

    def kill(self) -> None:
        """`kill -9`, and started again with what it kept."""
        print(f"  trainer killed behind {self.said[-1]}", flush=True)
        self.stop()
        self.kills += 1
        self.said.append({"what": "killed"})
        self.start()

    def stop(self) -> None:
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(signal.SIGKILL)
        if self._running is not None:
            self._running.wait()

    def pulls(self) -> list[dict[str, Any]]:
        return [line for line in self.said if line["what"] == "pulled"]


class Run:
    """One deployment, one trainer, and their kills."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.acknowledged = Acknowledgements()
        # Few places, so that the sessions of a group do not all run at once.
        self.deployment = Deployment(folder, "process", LEASE_SECONDS, nodes=("a",), concurrency=2)
        self.trainer = Trainer(self.deployment)
        self.submitted: list[str] = []

    def play(self) -> dict[str, list[str]]:
        try:
            self.trainer.start()
            self.trainer.until("started")
            self.early_groups()
            self.late_groups()
            return self.look_up()
        finally:
            self.trainer.stop()
            self.deployment.stop()
            self.acknowledged.close()

    def early_groups(self) -> None:
        """All sampled by the first weights, so that the last of them grow too old."""
        for number in range(EARLY):
            self.submit(f"early-{number}")
        for task in self.submitted:
            until(
                lambda task=task: self.ended(task) == SAMPLES,
                END_SECONDS,
                lambda task=task: f"{task}: {self.sessions(task)}",
            )
        # With a batch that it has not trained.
        self.trainer.until("pulled")
        self.trainer.kill()
        # The server too, while the trainer has it.
        self.trainer.until("pulled")
        self.kill_server()
        # With a checkpoint whose weights no engine has.
        self.trainer.until("kept")
        self.trainer.kill()
        # With weights that it has pushed, before it asks for more.
        self.trainer.until("pushed")
        self.trainer.kill()
        self.trainer.until("started")

    def late_groups(self) -> None:
        for number in range(LATE):
            self.submit(f"late-{number}")
        first = "late-0"
        # In the middle of a group.
        until(
            lambda: self.ended(first) > 0,
            END_SECONDS,
            lambda: f"{first}: {self.sessions(first)}",
        )
        ended = self.ended(first)
        assert ended < SAMPLES, f"{first} was never seen half done"
        print(f"  {ended} of {SAMPLES} sessions of {first} have ended", flush=True)
        self.kill_server()
        # While it waits for a batch.
        waiting = threading.Thread(target=self.trainer.until, args=("pulled",))
        waiting.start()
        time.sleep(self.random.uniform(0.0, 1.0))
        self.kill_server()
        waiting.join(END_SECONDS)
        assert not waiting.is_alive(), f"no batch after {END_SECONDS} s: {self.trainer.said}"
        # And then anywhere, until there is nothing left.
        while self.trainer.next()["what"] != "done":
            if self.random.random() < 0.25:
                self.trainer.kill()
            elif self.random.random() < 0.2:
                self.kill_server()

    def submit(self, task_id: str) -> None:
        host, port = self.acknowledged.server_address[:2]
        agent = (HERE / "agent.py").read_text()
        task = {
            "task_id": task_id,
            "queue": "train",
            "harness": {"name": "shell", "command": f"exec python3 agent.py {CALLS} {host}:{port}"},
            "runtime": {
                "type": "local",
                "network": "open",
                "prepare": [{"type": "write_file", "path": "agent.py", "content": agent}],
            },
            "num_samples": SAMPLES,
            "max_attempts": 30,
        }
        self.deployment.insist("POST", "/api/tasks", task)
        self.submitted.append(task_id)

    def kill_server(self) -> None:
        server = self.deployment.server
        print(f"  server killed, with the trainer behind {self.trainer.said[-1]}", flush=True)
        server.kill()
        server.start()

    def sessions(self, task_id: str) -> list[dict[str, Any]]:
        listed = self.deployment.insist("GET", f"/api/tasks/{task_id}/sessions")["sessions"]
        return list(listed)

    def ended(self, task_id: str) -> int:
        return sum(session["status"] in checks.TERMINAL for session in self.sessions(task_id))

    def look_up(self) -> dict[str, list[str]]:
        [queue] = [
            queue
            for queue in self.deployment.insist("GET", "/api/queues")["queues"]
            if queue["queue"] == "train"
        ]
        trained = self.trainer.said[-1]["trained"]
        sessions = {task: self.sessions(task) for task in self.submitted}
        pulls = self.trainer.pulls()
        print(
            f"  {len(trained)} of {len(self.submitted)} groups trained, left out: "
            f"{queue['left_out']}; {len(pulls)} pulls, trainer killed {self.trainer.kills} times"
        )
        return {
            "a batch is the same whenever it is pulled": the_same_batch(pulls),
            "no group is trained twice": twice(trained, "group"),
            "no session is in two batches": in_two_batches(pulls),
            "no group is lost": lost(self.submitted, trained, queue["left_out"]),
            "every group is whole": not_whole(pulls, sessions),
            "nothing too stale is trained": too_stale(pulls),
            "what is too stale is counted": uncounted(trained, queue["left_out"]),
        }


def the_same_batch(pulls: list[dict[str, Any]]) -> list[str]:
    first: dict[int, dict[str, Any]] = {}
    problems = []
    for pull in pulls:
        before = first.setdefault(pull["number"], pull)
        if (before["groups"], before["sessions"]) != (pull["groups"], pull["sessions"]):
            problems.append(f"{before} was {pull} later")
    if len(pulls) == len(first):
        problems.append("no batch was pulled twice, so that nothing is shown")
    return problems


def twice(names: list[str], what: str) -> list[str]:
    return [f"{what} {name} {n} times" for name, n in Counter(names).items() if n > 1]


def in_two_batches(pulls: list[dict[str, Any]]) -> list[str]:
    batches = {pull["number"]: pull["sessions"] for pull in pulls}
    return twice([session for sessions in batches.values() for session in sessions], "session")


def lost(submitted: list[str], trained: list[str], left_out: dict[str, int]) -> list[str]:
    if len(trained) + sum(left_out.values()) == len(submitted):
        return []
    return [f"{len(trained)} trained and {left_out} left out of {len(submitted)}"]


def not_whole(pulls: list[dict[str, Any]], sessions: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Every harness manages, whatever is killed: all sessions of a group are to be trained on."""
    problems = []
    for pull in pulls:
        wanted = {s["session_id"] for group in pull["groups"] for s in sessions[group]}
        if set(pull["sessions"]) != wanted or len(wanted) != SAMPLES:
            problems.append(f"{pull['groups']} came with {pull['sessions']}, not {wanted}")
    return problems


def too_stale(pulls: list[dict[str, Any]]) -> list[str]:
    return [
        f"tokens of {pull['versions']} at version {pull['version']}"
        for pull in pulls
        if not pull["versions"] or pull["version"] - min(map(int, pull["versions"])) > MAX_STALENESS
    ]


def uncounted(trained: list[str], left_out: dict[str, int]) -> list[str]:
    """The first weights sampled all early groups, and two steps later they are too old."""
    old = [f"early-{number}" for number in range(MAX_STALENESS + 1, EARLY)]
    problems = [f"{group} was trained on" for group in old if group in trained]
    if left_out.get("stale", 0) < len(old):
        problems.append(f"{left_out} is less than {old}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
