"""Server, nodes and engine as processes of the `polar` binary, each with its own folder."""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
START_SECONDS = 90.0


class Process:
    """One process that can be killed and started again as it was."""

    def __init__(self, name: str, command: list[str], announces: str, log: Path) -> None:
        self.name = name
        # Its own folder for temporary files, to see what a kill leaves there.
        self.temporary = log.with_suffix(".tmp")
        self.temporary.mkdir()
        self.log = log
        self._command = command
        self._announces = re.compile(announces)
        self._running: Optional[subprocess.Popen[str]] = None

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


class Deployment:
    """Everything started; `stop` ends it."""

    def __init__(self, folder: Path, isolation: str, lease_seconds: float) -> None:
        binary = find_binary()
        self.folder = folder
        self.port = free_port()
        engine = [binary, "simulate-engine", "--port=0", f"--policy={HERE / 'policy.yaml'}"]
        engine += ["--first-token-ms=40", "--tokens-per-second=500"]
        self._engine = Process("engine", engine, r"at (http://\S+)", folder / "engine.log")
        server = [binary, "rollout-server", f"--port={self.port}", f"--state={folder / 's'}"]
        server += [f"--lease-seconds={lease_seconds}"]
        self.server = Process("server", server, r"control API\s+(\S+)", folder / "server.log")
        self.nodes: list[Process] = []
        try:
            url = self._engine.start()
            self.server.start()
            for name in ("a", "b"):
                command = [binary, "gateway", f"--rollout-server=127.0.0.1:{self.port}"]
                command += [f"--engine={url}", "--engine-kind=vllm", f"--node-id=kill-test-{name}"]
                command += [f"--port={free_port()}", "--control-port=0", "--concurrency=4"]
                command += [f"--local-isolation={isolation}", f"--state={folder / name}"]
                node = Process(f"node {name}", command, r"control\s+(\S+)", folder / f"{name}.log")
                self.nodes.append(node)
                node.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for process in [*self.nodes, self.server, self._engine]:
            process.stop()

    def node_folders(self) -> list[Path]:
        return [self.folder / name / "node" for name in ("a", "b")]

    def blob_folder(self) -> Path:
        return self.folder / "s" / "server" / "blobs"

    def temporary_folders(self) -> list[Path]:
        return [process.temporary for process in [self.server, *self.nodes]]

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 30.0) -> Any:
        """One request to the server. `OSError` when it is away, `Refused` when it says no."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            token = (self.folder / "polar" / "token").read_text().strip()
            headers = {"authorization": f"Bearer {token}"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = response.read()
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if response.status >= 300:
            raise Refused(f"{method} {path}: {response.status} {answer.decode()[:500]}")
        return json.loads(answer)

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
