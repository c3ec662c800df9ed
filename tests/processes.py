"""Processes of `polar`, its control API, and waiting: what suites of whole runs share."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).parent.parent
START_SECONDS = 90.0


class Process:
    """One process that can be killed and started again as it was."""

    def __init__(
        self,
        name: str,
        command: list[str],
        announces: str,
        log: Path,
        env: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.name = name
        self.env = dict(env or {})
        # Its own folder for temporary files, to see what a kill leaves there.
        self.temporary = log.with_suffix(".tmp")
        self.temporary.mkdir()
        self.log = log
        self._command = command
        self._announces = re.compile(announces)
        self._running: Optional[subprocess.Popen[str]] = None

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.pid

    def start(self) -> str:
        """Returns what the process announces."""
        self.spawn()
        running = self._running
        assert running is not None
        assert running.stdout is not None
        for line in running.stdout:
            if found := self._announces.search(line):
                return found[1]
        tail = self.log.read_text()[-3000:]
        raise AssertionError(f"{self.name} ended with {running.wait()}:\n{tail}")

    def spawn(self) -> None:
        """Starts it without waiting until it is ready."""
        with self.log.open("a") as log:
            self._running = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    "POLAR_LOG": "info",
                    "TMPDIR": str(self.temporary),
                    # Where they keep the token that they share, as nobody gives them one.
                    "XDG_STATE_HOME": str(self.log.parent),
                    "POLAR_TOKEN": "",
                    **self.env,
                },
            )

    def kill(self) -> None:
        """`kill -9`, at whatever it is doing."""
        assert self._running is not None
        assert self._running.poll() is None, f"{self.name} ended by itself; see {self.log}"
        self._running.send_signal(signal.SIGKILL)
        self._running.wait()

    def freeze(self) -> None:
        """Holds it up, as a machine without memory or a broken network does."""
        assert self._running is not None
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._running is not None
        self._running.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Asks it to end, and waits."""
        if self._running is not None and self._running.poll() is None:
            self._running.terminate()
            self._running.wait(timeout=60)


class Api:
    """The control API of a server on this machine, which may be away."""

    def __init__(self, port: int, token: Path) -> None:
        self.port = port
        self._token = token

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 30.0) -> Any:
        """One request. `OSError` when the server is away, `Refused` when it says no."""
        status, answer = self.raw(method, path, body, timeout)
        if status >= 300:
            raise Refused(f"{method} {path}: {status} {answer.decode()[:500]}")
        return json.loads(answer)

    def raw(
        self, method: str, path: str, body: Any = None, timeout: float = 30.0
    ) -> tuple[int, bytes]:
        """The same, whatever the answer is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            token = self._token.read_text().strip()
            headers = {"authorization": f"Bearer {token}"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def insist(self, method: str, path: str, body: Any = None) -> Any:
        """The same until the server is there."""
        answer: list[Any] = []

        def asked() -> bool:
            try:
                answer.append(self.ask(method, path, body))
            except OSError:
                return False
            return True

        until(asked, START_SECONDS, lambda: f"no answer to {method} {path}")
        return answer[0]


class Refused(Exception):
    """The server answered with an error."""


def until(holds: Callable[[], bool], seconds: float, now: Callable[[], str]) -> None:
    """Asks again and again until it holds, up to a deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} seconds: {now()}")
        time.sleep(0.05)


def free_port() -> int:
    """Below those that the kernel gives to clients, so that it is free again after a kill."""
    while True:
        port = random.randrange(20_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def find_binary() -> str:
    """`$POLAR_BINARY`, else the workspace's own, built now."""
    chosen = os.environ.get("POLAR_BINARY")
    if chosen:
        return chosen
    subprocess.run(["cargo", "build", "--quiet", "--package=polar-cli"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "debug" / "polar")
