#!/usr/bin/env python3
"""The kill test: `kill -9` of server and nodes at random points of a run loses nothing.

Starts an engine simulator, a server and two nodes as processes of their own, gives them a
task of many sessions, and kills one of server and nodes again and again. Every killed
process is started as it was. Once, a node is held up until its leases are lost. In the end
everything that was promised is looked up: see `checks.py`. Needs nothing but Python's
standard library.

    tests/kill/run.py [--sessions 50] [--kills 10] [--isolation process] [--seed 7]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import socketserver
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

LEASE_SECONDS = 5.0
END_SECONDS = 300.0


def main() -> int:
    arguments = read_arguments()
    started = time.monotonic()
    failed = passed = 0
    for number, isolation in enumerate(arguments.isolation):
        seed = arguments.seed + number
        print(f"isolation {isolation}, --seed {seed}", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="polar-kill-"))
        found = Run(folder, isolation, seed, arguments).play()
        for name, problems in found.items():
            print(f"  {'FAIL' if problems else 'ok  '} {name}")
            for problem in problems[:10]:
                print(f"       {problem}")
            if len(problems) > 10:
                print(f"       and {len(problems) - 10} more")
        broken = sum(1 for problems in found.values() if problems)
        failed += broken
        passed += len(found) - broken
        if broken or arguments.keep:
            print(f"  logs and state: {folder}")
        else:
            shutil.rmtree(folder)
    seconds = time.monotonic() - started
    print(f"===== {failed} failed, {passed} passed in {seconds:.1f}s", flush=True)
    return 1 if failed else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    number = lambda name, usual: int(os.environ.get(name, usual))  # noqa: E731
    parser.add_argument("--sessions", type=int, default=number("POLAR_KILL_SESSIONS", 50))
    parser.add_argument("--kills", type=int, default=number("POLAR_KILL_KILLS", 10))
    parser.add_argument("--calls", type=int, default=6, help="calls of each session")
    seed = number("POLAR_KILL_SEED", random.randrange(1_000_000))
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--keep", action="store_true", help="keep logs and state")
    kinds = ["process"] + (["bubblewrap"] if shutil.which("bwrap") else [])
    parser.add_argument("--isolation", nargs="+", choices=["process", "bubblewrap"], default=kinds)
    return parser.parse_args()


class Run:
    """One deployment, one task, its kills and what was seen meanwhile."""

    def __init__(
        self, folder: Path, isolation: str, seed: int, arguments: argparse.Namespace
    ) -> None:
        self.random = random.Random(seed)
        self.arguments = arguments
        self.acknowledged = Acknowledgements()
        self.deployment = Deployment(folder, isolation, LEASE_SECONDS)
        self.trainer = Trainer(self.deployment)
        self.accepted: dict[str, int] = {}
        self.held_up: set[str] = set()

    def play(self) -> dict[str, list[str]]:
        try:
            self.submit("kill-test", self.arguments.sessions)
            self.trainer.start()
            # First, while sessions are in their first attempt, and so are their calls.
            self.stall()
            for number in range(self.arguments.kills):
                self.kill(number)
            evidence = self.look_up()
        finally:
            self.trainer.stop()
            self.deployment.stop()
            self.acknowledged.close()
        found = checks.all_of(evidence)
        found.update(checks.leftovers(self.deployment, "kill-test"))
        return found

    def submit(self, task_id: str, sessions: int) -> None:
        """Accepted means that the server said so; until it does, the client asks again."""
        host, port = self.acknowledged.server_address[:2]
        task = {
            "task_id": task_id,
            "harness": {
                "name": "shell",
                "command": f"exec python3 agent.py {self.arguments.calls} {host}:{port}",
            },
            "runtime": {
                "type": "local",
                # The way to the test, which notes what was acknowledged.
                "network": "open",
                "prepare": [
                    {
                        "type": "write_file",
                        "path": "agent.py",
                        "content": (HERE / "agent.py").read_text(),
                    }
                ],
            },
            "num_samples": sessions,
            # No session may run out of attempts: each kill can take one of every session.
            "max_attempts": self.arguments.kills * 2 + 5,
            "budgets": {"prepare_seconds": 120, "run_seconds": 120, "grade_seconds": 60},
        }
        self.deployment.insist("POST", "/api/tasks", task)
        self.accepted[task_id] = sessions

    def kill(self, number: int) -> None:
        """Kills one process once its share of the sessions has ended, at a random moment."""
        share = self.arguments.sessions * number // (self.arguments.kills + 1)
        until(
            lambda: len(self.trainer.seen) >= share,
            END_SECONDS,
            lambda: f"{len(self.trainer.seen)} sessions ended, waiting for {share}",
        )
        time.sleep(self.random.uniform(0.0, 1.5))
        victim = self.random.choice([self.deployment.server, *self.deployment.nodes])
        # A task that comes in while things break.
        extra = threading.Thread(target=self.submit, args=(f"kill-test-{number}", 1))
        extra.start()
        time.sleep(self.random.uniform(0.0, 0.02))
        victim.kill()
        # One in four stays away for longer than a lease lives.
        longer = self.random.random() < 0.25
        away = self.random.uniform(1.1, 1.3) * LEASE_SECONDS if longer else None
        away = away or self.random.uniform(0.1, 1.5)
        ended, calls = len(self.trainer.seen), len(self.acknowledged.lines)
        print(
            f"  kill {number + 1}: {victim.name} for {away:.1f}s, with {ended} sessions ended "
            f"and {calls} calls acknowledged",
            flush=True,
        )
        time.sleep(away)
        if self.random.random() < 0.25:
            # Once more, while it picks up what the first kill left.
            victim.spawn()
            time.sleep(self.random.uniform(0.0, 0.5))
            victim.kill()
        victim.start()
        extra.join()

    def stall(self) -> None:
        """A node that lives loses its leases, and what it recorded under them must not be."""
        node = self.random.choice(self.deployment.nodes)

        def frozen_with_calls() -> bool:
            node.freeze()
            # What is under way now cannot end before the node goes on.
            self.held_up = self.sessions_amid_calls(f"kill-test-{node.name[-1]}")
            if self.held_up:
                return True
            node.thaw()
            if len(self.trainer.seen) >= self.arguments.sessions:
                raise AssertionError(f"{node.name} was never amid calls while there were sessions")
            return False

        until(frozen_with_calls, END_SECONDS, lambda: f"{node.name} never was amid calls")
        away = self.random.uniform(1.5, 1.8) * LEASE_SECONDS
        amid = len(self.held_up)
        print(f"  stall: {node.name} for {away:.1f}s, amid {amid} sessions", flush=True)
        time.sleep(away)
        node.thaw()

    def sessions_amid_calls(self, node_id: str) -> set[str]:
        """Sessions in their first attempt, some of whose calls are acknowledged and some not."""
        acknowledged = Counter(line["session"] for line in self.acknowledged.lines)
        listed = self.deployment.insist("GET", "/api/tasks/kill-test/sessions")["sessions"]
        return {
            session["session_id"]
            for session in listed
            if session["status"] not in checks.TERMINAL
            and [attempt["node_id"] for attempt in session["attempts"]] == [node_id]
            and 0 < acknowledged[session["session_id"]] < self.arguments.calls
        }

    def look_up(self) -> checks.Evidence:
        """Waits for the end of everything, then reads all there is over the API."""
        expected = sum(self.accepted.values())
        until(
            lambda: len(self.trainer.seen) >= expected,
            END_SECONDS,
            lambda: f"{len(self.trainer.seen)} of {expected} sessions ended",
        )
        self.trainer.until_quiet()
        evidence = checks.Evidence(
            accepted=self.accepted,
            kills=self.arguments.kills,
            acknowledged=self.acknowledged.lines,
            followed=self.trainer.events,
            held_up=self.held_up,
        )
        evidence.read(self.deployment)
        # Salvaged attempts of nodes that were away come in on their own time.
        until(
            lambda: not checks.held(self.deployment.node_folders()),
            60.0,
            lambda: f"nodes still hold {checks.held(self.deployment.node_folders())}",
        )
        evidence.read(self.deployment)
        return evidence


class Trainer(threading.Thread):
    """Reads the event log by cursor, as a trainer does, through all restarts."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(daemon=True)
        self.events: list[dict[str, Any]] = []
        self.seen: set[str] = set()
        self._deployment = deployment
        self._cursor = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                path = f"/api/events?after={self._cursor}&wait_seconds=1"
                page = self._deployment.ask("GET", path)
            except OSError:
                time.sleep(0.1)
                continue
            self._cursor = page["cursor"]
            self.events += page["events"]
            ended = [event for event in page["events"] if event["kind"] == "session.ended"]
            self.seen.update(event["session_id"] for event in ended)

    def until_quiet(self) -> None:
        """Returns when the log has nothing that was not read."""

        def caught_up() -> bool:
            path = f"/api/events?after={self._cursor}"
            return not self._deployment.insist("GET", path)["events"]

        until(caught_up, 30.0, lambda: f"the log goes on after {self._cursor}")

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()


class Acknowledgements(socketserver.ThreadingTCPServer):
    """Keeps what harnesses have seen the end of. Outlives every process that is killed."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), AcknowledgementLines)
        self.lines: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class AcknowledgementLines(socketserver.StreamRequestHandler):
    """One harness."""

    server: Acknowledgements

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.lines.append(json.loads(line))
                self.wfile.write(b"+")
        except OSError:
            # The harness was killed.
            self.request.close()


if __name__ == "__main__":
    socket.setdefaulttimeout(None)
    sys.exit(main())
