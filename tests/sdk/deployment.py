"""A gateway in front of a simulated engine, each a process of the `polar` binary."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import httpx

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DEADLINE_SECONDS = 60.0


class Deployment:
    """Started with its construction; `stop` ends it."""

    model = "sdk-test-model"
    context_window = 8192

    def __init__(self, state: Path) -> None:
        binary = find_binary()
        self._processes: list[subprocess.Popen[str]] = []
        self._state = state
        self._sessions = 0
        try:
            engine = self._start(
                [binary, "simulate-engine", "--port=0", f"--policy={HERE / 'policy.yaml'}"]
                + [f"--model={self.model}", f"--context-window={self.context_window}"]
                + ["--tokens-per-second=2000"],
                engine=r"at (http://\S+)",
            )
            gateway = self._start(
                [binary, "gateway", "--port=0", "--control-port=0", f"--state={state}"]
                + [f"--engine={engine['engine']}", "--engine-kind=vllm"],
                proxy=r"proxy\s+(http://\S+)",
                control=r"control\s+(http://\S+)",
            )
        except BaseException:
            self.stop()
            raise
        self.proxy = gateway["proxy"]
        self._engine = httpx.Client(base_url=engine["engine"])
        self._control = httpx.Client(base_url=gateway["control"])

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            process.wait(timeout=DEADLINE_SECONDS)

    def open_session(self, **sampling: Any) -> Session:
        """A session as a harness gets one. ``sampling`` pins parameters."""
        answer = self._control.post("/sessions", json={"sampling": sampling})
        answer.raise_for_status()
        return Session(self, self._control, answer.json())

    def stats(self) -> dict[str, int]:
        """The engine's counters."""
        stats: dict[str, int] = self._engine.get("/simulator/stats").json()
        return stats

    def last_request(self) -> dict[str, Any]:
        """What the engine was asked last."""
        request: dict[str, Any] = self._engine.get("/simulator/requests").json()[-1]["body"]
        return request

    def until(self, holds: Callable[[dict[str, int]], bool]) -> None:
        """Waits until something holds of the engine's counters."""
        until(lambda: holds(self.stats()), lambda: f"the engine's counters are {self.stats()}")

    def _start(self, command: list[Any], **announced: str) -> dict[str, str]:
        """Starts a process and reads the addresses that it announces."""
        log = (self._state / f"{len(self._processes)}.log").open("w")
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "POLAR_LOG": "info"},
        )
        self._processes.append(process)
        found: dict[str, str] = {}
        assert process.stdout is not None
        for line in process.stdout:
            for name, pattern in announced.items():
                match = re.search(pattern, line)
                if match:
                    found[name] = match[1]
            if len(found) == len(announced):
                return found
        raise AssertionError(f"{command} ended: {Path(log.name).read_text()}")


class Session:
    """An open session, and what was recorded of it once it is closed."""

    def __init__(self, deployment: Deployment, control: httpx.Client, opened: dict[str, Any]):
        self.proxy = deployment.proxy
        self.secret: str = opened["secret"]
        self.opened = opened
        self._id: str = opened["session_id"]
        self._control = control
        self._closed: Optional[dict[str, Any]] = None

    def activity(self) -> dict[str, int]:
        """Counts while it is open: ``calls``, ``sampled_tokens``, ``running``."""
        sessions = self._control.get("/sessions").json()
        [found] = [session for session in sessions if session["session_id"] == self._id]
        activity: dict[str, int] = found
        return activity

    def until_idle(self, calls: int) -> None:
        """Waits until so many calls are recorded and none is running."""
        until(
            lambda: self.activity()["calls"] == calls and self.activity()["running"] == 0,
            lambda: f"the session's counts are {self.activity()}",
        )

    def close(self) -> dict[str, Any]:
        """Closes it and returns its trajectory."""
        if self._closed is None:
            answer = self._control.delete(f"/sessions/{self._id}")
            answer.raise_for_status()
            self._closed = answer.json()
        trajectory: dict[str, Any] = self._closed["trajectory"]
        return trajectory

    def calls(self) -> list[dict[str, Any]]:
        """Closes it and returns its calls."""
        self.close()
        assert self._closed is not None
        calls: list[dict[str, Any]] = self._closed["calls"]
        return calls


def until(holds: Callable[[], bool], now: Callable[[], str]) -> None:
    """Asks again and again until it holds, up to a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, now()
        time.sleep(0.01)


def find_binary() -> str:
    """``$POLAR_BINARY``, else the workspace's own, built now."""
    chosen = os.environ.get("POLAR_BINARY")
    if chosen:
        return chosen
    subprocess.run(["cargo", "build", "--quiet", "--package=polar-cli"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "debug" / "polar")
