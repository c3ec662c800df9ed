"""Attacks by words: names, paths and settings that a server, a node or the CLI must refuse."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Api, until

GOOD = {
    "instruction": "Do something.",
    "harness": {"name": "shell", "command": "true"},
    "runtime": {"type": "local"},
    "max_attempts": 1,
}
ID = "is not a valid task id: use 1 to 128 characters, letters, digits, `.`, `_` or `-`"
NO_PARENTS = "must be a file path without `..`"
KEYS = "must name a variable of the node's environment that begins with POLAR_KEY_"


def judge(key: str) -> dict[str, Any]:
    endpoint = {"endpoint": "http://127.0.0.1:9/v1", "model": "m", "rubric": "r"}
    return {"evaluator": {"type": "judge", "key_env": key, "attempts": 1, **endpoint}}


def step(path: str) -> dict[str, Any]:
    return {"runtime": {"prepare": [{"type": "write_file", "path": path, "content": "x"}]}}


def files(path: str) -> dict[str, Any]:
    return {"evaluator": {"type": "command", "command": "true"}, "grading": {"files": [path]}}


# What is submitted, the field that is named, and what is said of it.
SUBMITTED: list[tuple[dict[str, Any], str, str]] = [
    *[
        ({"task_id": name}, "task_id", ID)
        for name in ["../up", "..", ".hidden", "a/b", "a\x00b", "a b", "a\x1b[31m", "x" * 129, "-a"]
    ],
    *[(step(path), "runtime.prepare[0].path", NO_PARENTS) for path in ["../up", "a/../../up"]],
    (step("/workspace/../etc/passwd"), "runtime.prepare[0].path", NO_PARENTS),
    (step("a\x00b"), "runtime.prepare[0].path", "must not hold a NUL character"),
    (
        {"runtime": {"workdir": "relative"}},
        "runtime.workdir",
        "must be an absolute path inside the sandbox",
    ),
    (
        {"runtime": {"mounts": [{"source": "/data/../etc", "target": "/data"}]}},
        "runtime.mounts[0].source",
        "must be an absolute path without `..`",
    ),
    (files("/srv/../etc"), "grading.files[0]", "must be an absolute path inside the sandbox"),
    (files("/"), "grading.files[0]", "must be an absolute path inside the sandbox"),
    *[
        (judge(name), "evaluator.key_env", KEYS)
        for name in ["PATH", "POLAR_TOKEN", "AWS_SECRET_ACCESS_KEY", "POLAR_KEY_", "POLAR_KEY_A=B"]
    ],
    (
        {"harness": {"name": "shell", "command": "a\x00b"}},
        "harness.command",
        "must not hold a NUL character",
    ),
]
# Refused when the sandbox is made, by what the node knows; with what the user reads.
MADE: list[tuple[str, dict[str, Any], str]] = [
    ("workdir-up", {"workdir": "/workspace/../etc"}, "must be an absolute path without `..`"),
    ("workdir-root", {"workdir": "/"}, "must be an absolute path without `..`, and not `/`"),
    ("workdir-usr", {"workdir": "/usr/share"}, "clashes with /usr"),
    ("workdir-proc", {"workdir": "/proc/self"}, "clashes with /proc"),
    ("mount-etc", {"mounts": [{"source": "/etc"}]}, "--allow-mount"),
    ("mount-root", {"mounts": [{"source": "/root", "read_only": False}]}, "--allow-mount"),
]
PATHS = [
    "/api/sessions/..%2f..%2fetc%2fpasswd",
    "/api/sessions/../../etc/passwd/logs?stream=stdout",
    "/api/sessions/a/logs?stream=../../../etc/passwd",
    "/api/blobs/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/api/blobs/../../../../etc/passwd",
    "/api/tasks/%2e%2e%2f%2e%2e%2fetc",
    "/../../../../etc/passwd",
    "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "//etc/passwd",
]


@dataclass
class Grounds:
    """What there is to attack with words."""

    api: Api
    polar: str
    env: dict[str, str]
    folder: Path
    outside: Path
    """A folder of the host's; nothing may come to be in it."""
    canary: str


def merged(changes: dict[str, Any]) -> dict[str, Any]:
    task = copy.deepcopy(GOOD)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(task.get(name), dict)
        task[name] = {**task[name], **value} if both else value  # type: ignore[dict-item]
    return task


def submissions(grounds: Grounds) -> list[str]:
    """Each is refused with its field, and with nothing else."""
    problems = []
    for changes, name, words in SUBMITTED:
        status, body = grounds.api.raw("POST", "/api/tasks", merged(changes))
        found = json.loads(body).get("error", {}).get("problems", [])
        said = [(problem["field"], problem["problem"]) for problem in found]
        if not (400 <= status < 500 and len(said) == 1):
            problems.append(f"{changes}: {status} {said or body[:300]!r}")
        elif said[0][0] != name or words not in said[0][1]:
            problems.append(f"{changes}: {said[0]}, not {name}: {words}")
    return problems


def paths_of_the_api(grounds: Grounds) -> list[str]:
    problems = []
    for path in PATHS:
        status, body = grounds.api.raw("GET", path)
        if b"root:" in body or (status < 400 and not body.startswith(b"<!")):
            problems.append(f"{path}: {status} {body[:100]!r}")
    return problems


def sandboxes(grounds: Grounds) -> list[str]:
    """Refused with what to do: at once where a node says that it never can, else when they are
    made, as lost on the side of the sandbox.
    """
    problems = []
    for name, runtime, words in MADE:
        task = merged({"task_id": f"made-{name}", "runtime": runtime})
        if "mounts" in runtime:
            status, body = grounds.api.raw("POST", "/api/tasks", task)
            found = json.loads(body).get("error", {}).get("problems", [])
            fields = {problem["field"] for problem in found}
            if status != 422 or fields != {"runtime.mounts"} or words not in body.decode():
                problems.append(f"{runtime}: {status} {body[:300]!r}, not {words!r}")
            continue
        session = ended(grounds, task)
        report = session["attempts"][-1]["report"]
        said = report["outcome"].get("message", "")
        if report["reason"] != "setup_failed" or words not in said:
            problems.append(f"{runtime}: {report['reason']}: {said!r}, not {words!r}")
    return problems


def steps_through_links(grounds: Grounds) -> list[str]:
    """A link in the sandbox that leads to a folder of the host leads nowhere there."""
    link = f"ln -s {grounds.outside} out && ln -s {grounds.outside}/file file"
    problems = []
    for path in ["out/planted", "file", f"{grounds.outside}/planted"]:
        written = {"type": "write_file", "path": path, "content": "x"}
        prepare = [{"type": "exec", "command": link}, written]
        name = f"link-{path.strip('/').replace('/', '-')[:8]}"
        session = ended(grounds, merged({"task_id": name, "runtime": {"prepare": prepare}}))
        report = session["attempts"][-1]["report"]
        if report["reason"] not in ("setup_failed", "sandbox_loss", "completed"):
            problems.append(f"{path}: {report['reason']}")
        if session.get("reward"):
            problems.append(f"{path}: a reward")
    kept = sorted(os.listdir(grounds.outside))
    if kept != ["canary"]:
        problems.append(f"{grounds.outside} holds {kept}")
    return problems


def uploads(grounds: Grounds) -> list[str]:
    """What `polar run` takes of its user's files, and what it says of others."""
    folder = grounds.folder / "uploads"
    (folder / "tree").mkdir(parents=True)
    os.symlink(grounds.outside / "canary", folder / "tree/link")
    os.symlink(grounds.outside, folder / "link")
    os.mkfifo(folder / "pipe")
    (folder / "file").write_text("x")
    links = "is neither a file nor a folder; symbolic links are not uploaded"
    cases = [
        ("tree", "src", links),
        ("link", "src", links),
        ("pipe", "src", links),
        ("/dev/zero", "src", links),
        ("file", "../up", NO_PARENTS),
        ("file", "/workspace/../../up", NO_PARENTS),
    ]
    problems = []
    for number, (source, target, words) in enumerate(cases):
        upload = {"type": "upload", "source": source, "target": target}
        task = folder / f"task-{number}.json"
        task.write_text(json.dumps(merged({"runtime": {"prepare": [upload]}})))
        line = [grounds.polar, "run", str(task), f"--server=127.0.0.1:{grounds.api.port}"]
        done = subprocess.run(
            line, capture_output=True, text=True, env=grounds.env, timeout=60, check=False
        )
        if done.returncode == 0 or words not in done.stderr or grounds.canary in done.stdout:
            problems.append(f"{source} to {target}: {done.returncode} {done.stderr[-300:]!r}")
    return problems


def own_judge(grounds: Grounds) -> list[str]:
    """The node's own control API is nobody's judge, and its token is not sent anywhere."""
    evaluator = judge("POLAR_KEY_ABSENT")["evaluator"]
    endpoint = f"http://127.0.0.1:{grounds.api.port}/api/tasks?"
    task = merged({"task_id": "own-judge", "evaluator": {**evaluator, "endpoint": endpoint}})
    report = ended(grounds, task)["attempts"][-1]["report"]
    said = str(report.get("grade_error"))
    if report["reason"] != "grader_failure" or "POLAR_KEY_ABSENT" not in said:
        return [f"{report['reason']}: {said}"]
    return []


def ended(grounds: Grounds, task: dict[str, Any]) -> dict[str, Any]:
    """The only session of a task, when it is over."""
    name = task["task_id"]
    grounds.api.ask("POST", "/api/tasks", task)
    session: dict[str, Any] = {}

    def over() -> bool:
        session.update(grounds.api.ask("GET", f"/api/sessions/{name}-s0"))
        return session["status"] in ("completed", "failed", "timed_out", "cancelled")

    until(over, 60.0, lambda: f"{name} is {session.get('status')}")
    return session


REFUSALS: dict[str, Callable[[Grounds], list[str]]] = {
    "names and paths of tasks": submissions,
    "paths of the API": paths_of_the_api,
    "sandboxes in the node's own folders": sandboxes,
    "steps through links": steps_through_links,
    "uploads of links and devices": uploads,
    "keys of others": own_judge,
}
