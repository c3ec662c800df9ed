"""Processes of the `polar` binary, for tests. Also used by ``tests/sdk`` at the root."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).parent.parent.parent
DEADLINE_SECONDS = 60.0


class Process:
    """Running once constructed: its addresses are known by then."""

    def __init__(self, *arguments: str, log: Path, announces: dict[str, str]) -> None:
        """``announces`` has a pattern for each address that it prints."""
        self.command = [binary(), *arguments]
        self.addresses: dict[str, str] = {}
        self._announces = announces
        self._complete = threading.Event()
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "POLAR_LOG": "info"},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._complete.wait(DEADLINE_SECONDS) or len(self.addresses) < len(announces):
            self.stop()
            raise AssertionError(f"{self.command} did not start: {log.read_text()}")

    def _read(self) -> None:
        """Reads all that it prints, so that it never blocks on a full pipe."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            for name, pattern in self._announces.items():
                if found := re.search(pattern, line):
                    self.addresses[name] = found[1]
            if len(self.addresses) == len(self._announces):
                self._complete.set()
        self._complete.set()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._reap()

    def stop(self) -> None:
        """Ends it in order."""
        self._process.terminate()
        self._reap()

    def _reap(self) -> None:
        try:
            self._process.wait(DEADLINE_SECONDS)
        finally:
            self._process.kill()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()


@contextmanager
def served(folder: Path, policy: str = "echo") -> Iterator[str]:
    """An engine simulator and a `polar up` on it, in a folder; gives the address of the API."""
    engine = Process(
        "simulate-engine",
        "--port=0",
        f"--policy={policy}",
        log=folder / "engine.log",
        announces={"engine": r"at (http://\S+)"},
    )
    up = None
    try:
        up = Process(
            "up",
            "--port=0",
            "--proxy-port=0",
            f"--state={folder}",
            f"--engine={engine.addresses['engine']}",
            "--local-isolation=process",
            log=folder / "up.log",
            announces={"api": r"control API\s+(http://\S+)"},
        )
        yield up.addresses["api"]
    finally:
        if up is not None:
            up.stop()
        engine.stop()


def until(holds: Callable[[], bool], now: Callable[[], object]) -> None:
    """Asks again until it holds. At the deadline it fails with what ``now`` says."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, now()
        time.sleep(0.01)


@cache
def binary() -> str:
    """``$POLAR_BINARY``, else the workspace's own, built now."""
    chosen: Optional[str] = os.environ.get("POLAR_BINARY")
    if chosen:
        return chosen
    build: Sequence[str] = ["cargo", "build", "--quiet", "--package=polar-cli", "--bin=polar"]
    subprocess.run(build, cwd=ROOT, check=True)
    return str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "polar")
