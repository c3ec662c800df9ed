"""A gateway in front of a simulated engine, each a process of the `polar` binary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import httpx

from processes import Process, until

POLICY = Path(__file__).parent / "policy.yaml"


class Deployment:
    """Running once constructed; `stop` ends it."""

    model = "sdk-test-model"
    context_window = 8192

    def __init__(self, state: Path) -> None:
        """``state`` is also the user's state folder, as the environment says."""
        engine = Process(
            "simulate-engine",
            "--port=0",
            f"--policy={POLICY}",
            f"--model={self.model}",
            f"--context-window={self.context_window}",
            "--tokens-per-second=2000",
            log=state / "engine.log",
            announces={"engine": r"at (http://\S+)"},
        )
        self._processes = [engine]
        try:
            gateway = Process(
                "gateway",
                "--port=0",
                "--control-port=0",
                f"--state={state}",
                f"--engine={engine.addresses['engine']}",
                log=state / "gateway.log",
                announces={"proxy": r"proxy\s+(http://\S+)", "control": r"control\s+(http://\S+)"},
            )
        except BaseException:
            self.stop()
            raise
        self._processes.append(gateway)
        self.proxy = gateway.addresses["proxy"]
        self._engine = httpx.Client(base_url=engine.addresses["engine"])
        # Where a gateway that is given no token keeps its own.
        token = (state / "polar" / "token").read_text().strip()
        self._control = httpx.Client(
            base_url=gateway.addresses["control"], headers={"authorization": f"Bearer {token}"}
        )

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.stop()

    def open_session(self, history: str = "sampled", **sampling: Any) -> Session:
        """A session as a harness gets one. ``sampling`` pins parameters."""
        body = {"sampling": sampling, "history": history}
        answer = self._control.post("/sessions", json=body)
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
        until(lambda: holds(self.stats()), self.stats)


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
            self.activity,
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
