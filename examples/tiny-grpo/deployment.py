"""What the loop runs on: a real vLLM with the tiny model, and `polar up` before it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from polar import PolarClient

ROOT = Path(__file__).resolve().parents[2]
ENGINE_SECONDS, SERVER_SECONDS = 300.0, 60.0
CONCURRENT_AGENTS = 24


@contextlib.contextmanager
def running(model: Path, folder: Path) -> Iterator[PolarClient]:
    """VLLM and Polar, both stopped at the end. ``folder`` keeps their logs and their state."""
    with engine(model, folder) as url, polar(url, folder / "polar") as client:
        yield client


@contextlib.contextmanager
def engine(model: Path, folder: Path) -> Iterator[str]:
    """VLLM, as long as the block lasts; gives its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with process(vllm(model, port), folder / "vllm.log", VLLM):
        wait_until_healthy(f"{url}/health", folder / "vllm.log")
        yield url


@contextlib.contextmanager
def polar(engine: str, folder: Path, token_mode: bool = True) -> Iterator[PolarClient]:
    """`polar up` before an engine, with a state of its own."""
    folder.mkdir(parents=True)
    log = folder / "polar.log"
    with (
        process(polar_up(engine, folder, token_mode), log, {}) as server,
        PolarClient(announced(server, log)) as client,
    ):
        yield client


def vllm(model: Path, port: int) -> list[str]:
    program = Path(sys.executable).with_name("vllm")
    line = [str(program) if program.exists() else os.environ["TINY_GRPO_VLLM"]]
    line += ["serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    line += ["--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"]
    line += ["--max-model-len", "1024", "--max-num-seqs", "32", "--max-num-batched-tokens", "4096"]
    # A worker of its own would wait in a busy loop for the core, and the core for it.
    line += ["--distributed-executor-backend", "uni"]
    # The route that takes ids and gives ids, for Polar's token mode.
    return [*line, "--enable-scale-out"]


# The development mode has the routes for weights.
VLLM = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def polar_up(engine: str, folder: Path, token_mode: bool) -> list[str]:
    line = [binary(), "up", "--port=0", "--proxy-port=0", f"--state={folder / 'state'}"]
    line += [f"--engine={engine}", "--tool-parser=hermes"]
    line += ["--token-mode"] if token_mode else []
    # Plain processes: the agent is ours, and a sandbox for each would take longer than it.
    return [*line, "--local-isolation=process", f"--concurrency={CONCURRENT_AGENTS}"]


def binary() -> str:
    """`$POLAR_BINARY`, else the workspace's own, built now."""
    if chosen := os.environ.get("POLAR_BINARY"):
        return chosen
    build = ["cargo", "build", "--release", "--package=polar-cli", "--bin=polar"]
    subprocess.run(build, cwd=ROOT, check=True)
    return str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "polar")


@contextlib.contextmanager
def process(line: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen]:
    """Runs until the end of the block. What it started ends with it."""
    with log.open("wb") as out:
        started = subprocess.Popen(
            line,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(seconds)


def wait_until_healthy(url: str, log: Path) -> None:
    deadline = time.monotonic() + ENGINE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
            return
        time.sleep(0.2)
    raise SystemExit(f"vLLM is not healthy after {ENGINE_SECONDS:.0f} s: see {log}")


def announced(server: subprocess.Popen, log: Path) -> str:
    """The address of the control API, which `polar up` prints."""
    deadline = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"control API\s+(http://\S+)", log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise SystemExit(f"polar up did not start:\n{log.read_text(errors='replace')}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
