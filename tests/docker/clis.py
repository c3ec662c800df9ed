#!/usr/bin/env python3
"""Unmodified agent CLIs in Docker sandboxes without egress, on an image made here.

    clis.py POLAR [HARNESS …]

The image is a Debian tree by debootstrap with Python in it, imported once and kept under
IMAGE; no registry is asked. Pi and Claude Code repair the demo task against the engine
simulator, and the run must end with a reward of 1 and all tokens accounted for. Then all
six go through the scenarios that take longest: thirty turns, and a conversation that is
summed up. With harnesses named, only those do either. Needs root, debootstrap and a Docker
daemon.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TASK = ROOT / "crates/simulator/assets/tasks/fix-test.yaml"
IMAGE = "polar-test-debian:bookworm-python-1"
RUN_SECONDS = 600
REPAIR = ["pi", "claude_code"]
WORK_LONG = ["claude_code", "codex", "gemini_cli", "opencode", "pi", "qwen_code"]


def make_image() -> None:
    known = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False)
    if known.returncode == 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        packages = "--include=python3-minimal,libpython3-stdlib,git"
        line = ["debootstrap", "--variant=minbase", packages, "bookworm", folder, *mirror()]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        tree = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(["docker", "import", "-", IMAGE], stdin=tree.stdout, check=True)
        if tree.wait() != 0:
            raise SystemExit("tar could not read the tree that debootstrap made")


def mirror() -> list[str]:
    """The mirror this machine's own packages come from, else debootstrap's default."""
    sources = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for source in sources:
        if source.is_file():
            found = re.search(r"https?://\S*debian/?(?=\s|$)", source.read_text(errors="replace"))
            if found:
                return [found.group()]
    return []


@contextlib.contextmanager
def simulator(polar: str):
    line = [polar, "simulate-engine", "--port=0", "--policy=fix-test"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(30)


def task_file(folder: Path) -> Path:
    """The demo task, moved into a container with limits and no network of its own."""
    docker = f"type: docker\n  image: {IMAGE}\n  network: none\n  memory_mb: 2048\n  pids: 512"
    text = TASK.read_text().replace("type: local", docker, 1)
    path = folder / "task.yaml"
    path.write_text(text)
    return path


def run(polar: str, harness: str, engine: str, task: Path) -> None:
    line = [polar, "run", str(task), "--harness", harness, "--engine", engine, "--proxy-port=0"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    print(done.stdout, done.stderr, sep="\n", flush=True)
    if done.returncode != 0:
        raise SystemExit(f"{harness}: polar run ended with {done.returncode}")
    if not re.search(r"mean reward of \S+: 1\.000", done.stdout):
        raise SystemExit(f"{harness}: the test was not repaired")
    if not re.search(r"\d+ sampled == \d+ trained", done.stdout):
        raise SystemExit(f"{harness}: tokens are not accounted for")


def work_long(polar: str, harnesses: list[str]) -> None:
    scenarios = ["--scenario=long_task", "--scenario=compaction", f"--timeout={RUN_SECONDS}"]
    where = ["--runtime=docker", f"--image={IMAGE}", "--parallel=2"]
    line = [polar, "harness", "check", "--strict", *harnesses, *scenarios, *where]
    subprocess.run(line, check=True)


def leftovers() -> list[str]:
    line = ["docker", "ps", "--all", "--quiet", "--filter", "label=polar.node"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()


def main() -> int:
    polar, *named = sys.argv[1:]
    polar = os.path.abspath(polar)
    started = time.monotonic()
    make_image()
    before = set(leftovers())
    with tempfile.TemporaryDirectory() as folder, simulator(polar) as engine:
        for harness in named or REPAIR:
            run(polar, harness, engine, task_file(Path(folder)))
    work_long(polar, named or WORK_LONG)
    left = set(leftovers()) - before
    if left:
        raise SystemExit(f"containers left behind: {', '.join(sorted(left))}")
    print(f"{len(named or REPAIR)} passed in {time.monotonic() - started:.1f}s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
