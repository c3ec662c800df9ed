"""Server, nodes and engine, and a Docker daemon of the storm's own behind a wire that breaks."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from processes import Api, Process, find_binary, free_port, until

POLICY = Path(__file__).parent.parent / "kill" / "policy.yaml"
LEASE_SECONDS = 8.0
# Of nodes a, b and c: 16 together.
SLOTS = {"a": 7, "b": 7, "c": 2}
SMALL_MB = 96


class Machines:
    """Everything that is started; `stop` ends it."""

    def __init__(self, folder: Path, image: str) -> None:
        self.folder = folder
        self.polar = find_binary()
        self.port = free_port()
        self.small = folder / "c"
        self.small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_MB}m", "none", str(self.small)]
        subprocess.run(mount, check=True)
        self.nodes: dict[str, Process] = {}
        self.engine: Process | None = None
        self.server: Process | None = None
        self.daemon: Daemon | None = None
        try:
            self.daemon = Daemon(folder / "docker", image)
            self._start()
        except BaseException:
            self.stop()
            self.remove()
            raise
        self.api = Api(self.port, folder / "polar" / "token")

    def _start(self) -> None:
        assert self.daemon is not None
        engine = [self.polar, "simulate-engine", "--port=0", f"--policy={POLICY}"]
        engine += ["--first-token-ms=40", "--tokens-per-second=500"]
        self.engine = Process("engine", engine, r"at (http://\S+)", self.folder / "engine.log")
        url = self.engine.start()
        server = [self.polar, "rollout-server", f"--port={self.port}"]
        server += [f"--state={self.folder / 's'}", f"--lease-seconds={LEASE_SECONDS}"]
        log = self.folder / "server.log"
        self.server = Process("server", server, r"control API\s+(\S+)", log)
        self.server.start()
        for name, slots in SLOTS.items():
            line = [self.polar, "gateway", f"--rollout-server=127.0.0.1:{self.port}"]
            line += [f"--engine={url}", "--engine-kind=vllm", f"--node-id=storm-{name}"]
            line += [f"--port={free_port()}", "--control-port=0", f"--concurrency={slots}"]
            line += [f"--state={self.folder / name}"]
            env = {"DOCKER_HOST": f"unix://{self.daemon.wire.socket}"}
            log = self.folder / f"node-{name}.log"
            self.nodes[name] = Process(f"node {name}", line, r"control\s+(\S+)", log, env)
            self.nodes[name].start()

    @property
    def env(self) -> dict[str, str]:
        """Of the user's own commands."""
        return {**os.environ, "XDG_STATE_HOME": str(self.folder), "NO_COLOR": "1"}

    def node_folders(self) -> list[Path]:
        return [self.folder / name / "node" for name in SLOTS]

    def stop(self) -> None:
        """Nodes clear up while their daemon is there."""
        for process in [*self.nodes.values(), self.server, self.engine]:
            if process is not None:
                process.stop()

    def remove(self) -> None:
        """What the test itself has made."""
        if self.daemon is not None:
            self.daemon.remove()
        subprocess.run(["umount", str(self.small)], check=False)


class Daemon:
    """A Docker daemon with folders of its own, so that nobody else's containers are hit."""

    def __init__(self, folder: Path, image: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.socket = folder / "docker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned: set[str] = set()
        self.start()
        self.wire = Wire(folder / "wire.sock", self.socket)
        save = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
        self.docker("load", stdin=save.stdout)
        assert save.wait() == 0

    def start(self) -> None:
        # In a network of its own: a daemon without a bridge removes that of the machine's.
        line = ["unshare", "--net", "dockerd", f"--data-root={self.folder / 'data'}"]
        line += [f"--exec-root={self.folder / 'exec'}", f"--pidfile={self.folder / 'pid'}"]
        line += [f"--host=unix://{self.socket}", "--bridge=none", "--iptables=false"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self.answers, 60.0, lambda: f"dockerd does not start; see {self.folder / 'log'}")

    def answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"dockerd ended; see {self.folder / 'log'}"
        line = ["docker", f"--host=unix://{self.socket}", "info"]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    def restart(self, away: float) -> None:
        self.end()
        # Of containers that ended with it: the next daemon does not know of them.
        self._abandoned.update(self.networks())
        time.sleep(away)
        self.start()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def docker(self, *line: str, stdin: object = None) -> str:
        done = subprocess.run(
            ["docker", f"--host=unix://{self.socket}", *line],
            check=True,
            stdin=stdin,  # type: ignore[call-overload]
            capture_output=True,
            text=True,
        )
        return str(done.stdout)

    def containers(self) -> list[str]:
        return self.docker("ps", "--all", "--quiet").split()

    def networks(self) -> list[str]:
        """Network namespaces of its containers, which it clears up each minute."""
        names = (self.folder / "exec" / "netns").glob("*")
        there = {str(path) for path in names if path.name != "default"}
        return sorted(there - self._abandoned)

    def remove(self) -> None:
        self.wire.close()
        self.end()
        for mount in reversed(mounts_below(self.folder)):
            subprocess.run(["umount", mount], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split(" ")[4] for line in lines]
    return [place for place in places if place.startswith(f"{folder}/")]


class Wire:
    """Between nodes and daemon. Can be cut where commands are attached."""

    def __init__(self, socket_path: Path, daemon: Path) -> None:
        self.socket = socket_path
        self._daemon = daemon
        self._attached: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(socket_path))
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Breaks the connections of commands that run; how many there were."""
        attached = list(self._attached)
        for connection in attached:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return len(attached)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        daemon = socket.socket(socket.AF_UNIX)
        try:
            daemon.connect(str(self._daemon))
        except OSError:
            # It is being restarted.
            client.close()
            return
        there = threading.Thread(target=self._pass_on, args=(client, daemon, True), daemon=True)
        there.start()
        self._pass_on(daemon, client, False)
        there.join()
        self._attached.discard(client)
        client.close()
        daemon.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, requests: bool) -> None:
        try:
            while data := source.recv(1 << 18):
                if requests and b"/exec/" in data[:300] and b"/start" in data[:300]:
                    self._attached.add(source)
                target.sendall(data)
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
