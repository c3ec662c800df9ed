#!/usr/bin/env python3
"""Real tasks, graded through `polar run`: the right work gets 1, none gets 0.

    run.py POLAR [swebench | harbor | crossing]

Three SWE-bench instances in bubblewrap, and three Harbor task folders in Docker, made of real
packages' bugs and fixes (see packages.py). Each is imported by `polar tasks import`, once with
its own solution in the place of an agent and once with an agent that does nothing. And what
crosses from one container to the next is looked at. Needs git, bubblewrap, the package registry,
and for all but SWE-bench a Docker daemon and the image of the suite docker-clis.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from packages import HARBOR, SWEBENCH, Package, patch, replace, source, test_program

IMAGE = "polar-test-debian:bookworm-python-1"
RUN_SECONDS = 900
IDLE = {"harness": {"name": "shell", "command": "true"}}
TESTS = "PYTHONPATH=/tmp/pytest:/testbed /usr/bin/python3 -m pytest -rA -p no:cacheprovider"
# What the agent leaves in a container with a network, and what of it its grader may see.
LEAVES = """printf 'print(42)\\n' > a.py; chmod +x a.py; rm gone; ln -s a.py link
mkdir -p /var/lib/app; echo kept > /var/lib/app/state; echo planted > /root/planted"""
SEES = """set -e; test "$(python3 link)" = 42; test -x a.py; test ! -e gone; test -f stays
test "$(cat /var/lib/app/state)" = kept; test ! -e /root/planted; ! grep -q eth /proc/net/dev"""
HARBOR_TEST = """#!/bin/bash
mkdir -p /tmp/pytest && tar -xf /tests/pytest.tar -C /tmp/pytest
cp -r /tests/suite/. /app/
cd /app
if PYTHONPATH=/tmp/pytest:/app python3 -m pytest -q -p no:cacheprovider {tests}; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
TASK_TOML = """schema_version = "1.1"

[task]
name = "polar-suite/{name}"

[metadata]
difficulty = "easy"

[verifier]
timeout_sec = 300.0

[agent]
timeout_sec = 300.0

[environment]
allow_internet = false
memory_mb = 1024
"""


@contextlib.contextmanager
def simulator(polar: str):
    line = [polar, "simulate-engine", "--port=0", "--policy=fix-test"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(30)


def tasks(polar: str, out: Path, *line: str) -> list[str]:
    """Imports tasks; their names."""
    subprocess.run([polar, "tasks", "import", *line, f"--out={out}"], check=True)
    return [json.loads(text)["task_id"] for text in out.read_text().splitlines()]


def graded(polar: str, engine: str, names: list[str], out: Path, reward: str) -> None:
    """Runs imported tasks, which must all get this reward."""
    line = [polar, "run", str(out), "--engine", engine, "--proxy-port=0"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    found = dict(re.findall(r"mean reward of (\S+): (\S+)", done.stdout))
    if done.returncode != 0 or found != dict.fromkeys(names, reward):
        print(done.stdout, done.stderr, sep="\n", flush=True)
        raise SystemExit(f"{out.name}: rewards are {found}, and should all be {reward}")
    print(f"{out.name}: {', '.join(names)} all {reward}", flush=True)


def instance(package: Package, cache: Path, folder: Path) -> tuple[Path, Path]:
    """An instance as the benchmark writes them, and a task file with its repository."""
    name = f"{package.name}__{package.name}-{package.after}"
    kept = passing(package, cache)
    missing = set(package.fail_to_pass) - set(kept["after"])
    if missing:
        raise SystemExit(f"{name}: {missing} do not pass with the fix")
    test_patch = patch(package, package.tests, (), cache)
    # The benchmark runs the files of the test patch alone.
    run = re.findall(r"^diff --git a/\S+ b/(\S+)$", test_patch, re.MULTILINE)
    both = set(kept["before"]) & set(kept["after"])
    row = {
        "instance_id": name,
        "repo": f"{package.name}/{package.name}",
        "version": package.after,
        "base_commit": "0" * 40,
        "problem_statement": package.problem,
        "patch": patch(package, package.source, package.tests, cache),
        "test_patch": test_patch,
        "FAIL_TO_PASS": json.dumps(package.fail_to_pass),
        "PASS_TO_PASS": json.dumps(sorted(test for test in both if test.split("::")[0] in run)),
        "test_cmd": TESTS,
    }
    file = folder / f"{name}.jsonl"
    file.write_text(json.dumps(row) + "\n")
    archive = folder / f"{name}.tar"
    with tarfile.open(archive, "w") as tree:
        tree.add(source(package.name, package.before, cache), arcname=".")
    unpack = (
        "tar -xf /tmp/source.tar && mkdir /tmp/pytest && tar -xf /tmp/pytest.tar -C /tmp/pytest && "
        "git init --quiet && git add --all --force && "
        "git -c user.name=a -c user.email=a@example.org commit --quiet --message=base"
    )
    template = {
        **IDLE,
        "runtime": {
            "type": "local",
            "workdir": "/testbed",
            "prepare": [
                {"type": "upload", "source": str(archive), "target": "/tmp/source.tar"},
                {"type": "upload", "source": str(test_program(cache)), "target": "/tmp/pytest.tar"},
                {"type": "exec", "command": unpack},
                {"type": "scrub_git"},
            ],
        },
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(template))
    return file, path


def passing(package: Package, cache: Path) -> dict[str, list[str]]:
    """Names of the newer tests that pass with each release's source, told by pytest itself."""
    found = {}
    for when, version in [("before", package.before), ("after", package.after)]:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder) / "testbed"
            subprocess.run(
                ["cp", "-r", str(source(package.name, version, cache)), str(work)], check=True
            )
            for path in package.tests:
                replace(work / path, source(package.name, package.after, cache) / path)
            with tarfile.open(test_program(cache)) as tree:
                tree.extractall(Path(folder) / "pytest", filter="data")
            python = {"PYTHONPATH": f"{folder}/pytest:{work}", "PATH": "/usr/bin:/bin"}
            line = ["/usr/bin/python3", "-m", "pytest", "-rA", "-p", "no:cacheprovider"]
            line += package.tests
            done = subprocess.run(
                line, cwd=work, env=python, capture_output=True, text=True, check=False
            )
            found[when] = re.findall(r"^PASSED (\S+)$", done.stdout, re.MULTILINE)
    return found


def swebench(polar: str, engine: str, cache: Path, folder: Path) -> None:
    for package in SWEBENCH:
        rows, template = instance(package, cache, folder)
        line = ["swebench", str(rows), f"--template={template}"]
        gold = folder / f"swebench-gold-{package.name}.jsonl"
        graded(polar, engine, tasks(polar, gold, *line, "--oracle"), gold, "1.000")
        empty = folder / f"swebench-empty-{package.name}.jsonl"
        graded(polar, engine, tasks(polar, empty, *line), empty, "0.000")


def task_folder(package: Package, cache: Path, folder: Path) -> Path:
    """A task folder as Harbor has them."""
    task = folder / package.name
    for part in ["environment", "tests/suite", "solution"]:
        (task / part).mkdir(parents=True)
    (task / "task.toml").write_text(TASK_TOML.format(name=package.name))
    (task / "instruction.md").write_text(package.problem + "\n")
    with tarfile.open(task / "environment/source.tar", "w") as tree:
        tree.add(source(package.name, package.before, cache), arcname=".")
    (task / "environment/Dockerfile").write_text(
        f"FROM {IMAGE}\nWORKDIR /app\nADD source.tar /app/\n"
    )
    for path in package.tests:
        replace(task / "tests/suite" / path, source(package.name, package.after, cache) / path)
    (task / "tests/pytest.tar").write_bytes(test_program(cache).read_bytes())
    (task / "tests/test.sh").write_text(HARBOR_TEST.format(tests=" ".join(package.tests)))
    (task / "solution/fix.patch").write_text(patch(package, package.source, (), cache))
    (task / "solution/solve.sh").write_text(
        "#!/bin/bash\ncd /app && git apply -v /solution/fix.patch\n"
    )
    return task


def harbor(polar: str, engine: str, cache: Path, folder: Path) -> None:
    folders = folder / "harbor"
    for package in HARBOR:
        task_folder(package, cache, folders)
    line = ["harbor", str(folders), "--build"]
    gold = folder / "harbor-gold.jsonl"
    graded(polar, engine, tasks(polar, gold, *line, "--oracle"), gold, "1.000")
    idle = folder / "idle.json"
    idle.write_text(json.dumps(IDLE))
    empty = folder / "harbor-empty.jsonl"
    graded(polar, engine, tasks(polar, empty, *line, f"--template={idle}"), empty, "0.000")


def crossing(polar: str, engine: str, cache: Path, folder: Path) -> None:
    """Work gets from one container to another, which has no network by then."""
    del cache
    task = {
        "task_id": "crossing",
        "instruction": "Leave something.",
        "harness": {"name": "shell", "command": LEAVES},
        "runtime": {
            "type": "docker",
            "image": IMAGE,
            "network": "open",
            "prepare": [{"type": "exec", "command": "echo > gone; echo > stays"}],
        },
        "evaluator": {"type": "command", "command": SEES},
        "grading": {"files": ["/var/lib/app"]},
    }
    path = folder / "crossing.json"
    path.write_text(json.dumps(task))
    graded(polar, engine, ["crossing"], path, "1.000")


def main() -> int:
    polar, *named = sys.argv[1:]
    polar = os.path.abspath(polar)
    cache = Path(os.environ.get("POLAR_TEST_CACHE", Path.home() / ".cache/polar-test-packages"))
    cache.mkdir(parents=True, exist_ok=True)
    parts = {"swebench": (swebench, 6), "harbor": (harbor, 6), "crossing": (crossing, 1)}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, simulator(polar) as engine:
        for name in named or parts:
            parts[name][0](polar, engine, cache, Path(folder))
    count = sum(parts[name][1] for name in named or parts)
    print(f"{count} passed in {time.monotonic() - started:.1f}s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
