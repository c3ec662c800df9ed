"""What is done to sessions, nodes and daemon meanwhile, and the book that is kept of it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from machines import Machines
from sessions import kind_of, runtime_of

MARK = b"POLAR_SESSION_ID=storm-"
CONTAINER = re.compile(r"/([0-9a-f]{64})")
FULL_SECONDS = 3.0


@dataclass(frozen=True)
class Injury:
    """One thing that was done."""

    what: str
    session: str = ""


class Ledger:
    """All that was done, in order."""

    def __init__(self) -> None:
        self.injuries: list[Injury] = []
        self._lock = threading.Lock()

    def note(self, what: str, session: str = "") -> None:
        with self._lock:
            self.injuries.append(Injury(what, session))
        print(f"  {what}{f' of {session}' if session else ''}", flush=True)

    def of(self, session: str) -> list[str]:
        return [injury.what for injury in self.injuries if injury.session == session]

    def counts(self) -> Counter[str]:
        return Counter(injury.what for injury in self.injuries)


class Surgeon(threading.Thread):
    """Kills agents that wait for it, and sandboxes amid their work, as soon as it sees them."""

    def __init__(self, machines: Machines, ledger: Ledger, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._machines = machines
        self._ledger = ledger
        self._random = chance
        self._stopping = threading.Event()
        self._delays: dict[str, float] = {}
        self._done: set[str] = set()
        self.problems: list[str] = []

    def run(self) -> None:
        while not self._stopping.wait(0.1):
            for pid, session in agents():
                try:
                    self._look_at(pid, session)
                except OSError:
                    # It ended meanwhile.
                    continue

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _look_at(self, pid: int, session: str) -> None:
        kind = kind_of(session).name
        doing = Path(f"/proc/{pid}/comm").read_text().strip()
        if kind == "killed_agent" and doing == "storm-waits":
            os.kill(pid, signal.SIGKILL)
            self._ledger.note("agent killed", session)
        elif kind == "killed_sandbox" and doing == "storm-works" and session not in self._done:
            now = time.monotonic()
            due = self._delays.setdefault(session, now + self._random.uniform(0.0, 1.0))
            if now >= due:
                self._kill_sandbox(pid, session)

    def _kill_sandbox(self, pid: int, session: str) -> None:
        """Once; its next attempt is left alone."""
        if runtime_of(session) == "local":
            monitor = monitor_of(pid)
            if monitor is None:
                return
            self._done.add(session)
            os.kill(monitor, signal.SIGKILL)
            self._ledger.note("sandbox's monitor killed", session)
            return
        found = CONTAINER.search(Path(f"/proc/{pid}/cgroup").read_text())
        if found is None or self._machines.daemon is None:
            return
        self._done.add(session)
        if self._random.random() < 0.7:
            os.kill(first_of_container(pid), signal.SIGKILL)
            self._ledger.note("container killed", session)
            return
        # The command takes its time; the agent may have ended by then.
        with contextlib.suppress(subprocess.CalledProcessError):
            self._machines.daemon.docker("rm", "--force", found[1])
            self._ledger.note("container removed", session)


def agents() -> list[tuple[int, str]]:
    """Agents of this storm, by their numbers on this machine, with their sessions."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
            if MARK in environ and b"agent.py" in (folder / "cmdline").read_bytes():
                session = environ.split(b"POLAR_SESSION_ID=")[1].split(b"\0")[0].decode()
                found.append((int(folder.name), session))
        except OSError:
            continue
    return found


def monitor_of(pid: int) -> Optional[int]:
    """The outermost bubblewrap above a process."""
    outermost = None
    while pid > 1:
        status = Path(f"/proc/{pid}/status").read_text()
        if status.startswith("Name:\tbwrap\n"):
            outermost = pid
        pid = int(re.search(r"^PPid:\t(\d+)$", status, re.MULTILINE)[1])  # type: ignore[index]
    return outermost


def first_of_container(pid: int) -> int:
    """The first process of the namespace that a process is in, by its number on this machine."""
    namespace = os.readlink(f"/proc/{pid}/ns/pid")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            numbers = re.search(r"^NSpid:(.*)$", (folder / "status").read_text(), re.MULTILINE)
            is_first = numbers is not None and numbers[1].split()[-1] == "1"
            if is_first and os.readlink(folder / "ns/pid") == namespace:
                return int(folder.name)
    raise ProcessLookupError


class Weather:
    """What happens to nodes and daemon, at shares of the sessions that have ended."""

    def __init__(self, machines: Machines, ledger: Ledger, chance: random.Random) -> None:
        self._machines = machines
        self._ledger = ledger
        self._random = chance

    def events(self, sessions: int) -> list[str]:
        """What is to come, more of it in a longer storm, in an order that chance makes."""
        events = ["node a", "node b", "dockerd", "disk full", "wire cut"]
        if sessions >= 200:
            events += [*events, "wire cut", "wire cut"]
        self._random.shuffle(events)
        return events

    def happen(self, event: str) -> None:
        if event.startswith("node"):
            node = self._machines.nodes[event.split()[1]]
            node.kill()
            self._ledger.note(f"{node.name} killed")
            # One in three stays away for longer than a lease lives.
            time.sleep(self._random.choice([0.5, 1.0, 9.0]))
            node.start()
        elif event == "dockerd" and self._machines.daemon is not None:
            self._ledger.note("dockerd restarted")
            self._machines.daemon.restart(self._random.uniform(0.0, 2.0))
        elif event == "disk full":
            self._ledger.note("disk of node c full")
            self._fill_disk()
        elif event == "wire cut" and self._machines.daemon is not None:
            count = self._machines.daemon.wire.cut()
            self._ledger.note(f"exec clients cut off ({count})")

    def _fill_disk(self) -> None:
        """To the last byte, for a while, however much others free meanwhile."""
        filler = self._machines.small / "filler"
        until = time.monotonic() + FULL_SECONDS
        with filler.open("wb", buffering=0) as file:
            while time.monotonic() < until:
                try:
                    file.write(b"x" * 65536)
                except OSError:
                    time.sleep(0.01)
        filler.unlink()
