"""Server, nodes and engine of the kill test, each with its own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from processes import Api, Process, find_binary, free_port

HERE = Path(__file__).parent


class Deployment:
    """Everything started; `stop` ends it."""

    def __init__(
        self,
        folder: Path,
        isolation: str,
        lease_seconds: float,
        nodes: tuple[str, ...] = ("a", "b"),
        concurrency: int = 4,
    ) -> None:
        binary = find_binary()
        self.folder = folder
        self.port = free_port()
        self._api = Api(self.port, folder / "polar" / "token")
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
            for name in nodes:
                command = [binary, "gateway", f"--rollout-server=127.0.0.1:{self.port}"]
                command += [f"--engine={url}", "--engine-kind=vllm", f"--node-id=kill-test-{name}"]
                command += [f"--port={free_port()}", "--control-port=0"]
                command += [f"--concurrency={concurrency}"]
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
        return [self.folder / node.log.stem / "node" for node in self.nodes]

    def blob_folder(self) -> Path:
        return self.folder / "s" / "server" / "blobs"

    def temporary_folders(self) -> list[Path]:
        return [process.temporary for process in [self.server, *self.nodes]]

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 30.0) -> Any:
        return self._api.ask(method, path, body, timeout)

    def insist(self, method: str, path: str, body: Any = None) -> Any:
        return self._api.insist(method, path, body)
