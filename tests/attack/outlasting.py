"""Attacks by taking more: time, processes, disk and output all have an end."""

from __future__ import annotations

from attacks import Attack, Problems, Seen, ended, met, refused, rewarded

OUTPUT_LIMIT = 16 << 20
# Where it is graded in the sandbox of the agent, none of the agent's processes may look on.
ALONE = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep 'time[.]sleep'"
STORAGE_WORDS = "polar: ended, because the sandbox holds more than its `storage_mb` of 64"


def nothing_left(seen: Seen) -> Problems:
    for process in seen.facts["marked_processes"]:
        yield f"still there: {process}"


def deadline(seen: Seen) -> Problems:
    yield from ended(seen, "timed_out", "agent_timeout")
    # What was done until then is graded.
    yield from rewarded(seen, 1.0)
    yield from nothing_left(seen)
    if seen.stdout != "working on\n":
        yield f"its output is {seen.stdout!r}"
    if "timed_out" not in seen.cli:
        yield f"`polar run` says {seen.cli}"


def leave_behind(seen: Seen) -> Problems:
    yield from ended(seen)
    yield from rewarded(seen, 1.0)
    yield from nothing_left(seen)


def fork_bomb(seen: Seen) -> Problems:
    yield from ended(seen, "timed_out", "agent_timeout")
    yield from seen.told["got"]
    yield from met(seen, "fork", "11")


def fill_disk(seen: Seen) -> Problems:
    yield from ended(seen, "failed", "harness_crash")
    if STORAGE_WORDS not in seen.stderr:
        yield f"its errors are {seen.stderr[-300:]!r}"
    for part in ("harness_crash", "exit code 137", STORAGE_WORDS):
        if part not in seen.cli:
            yield f"`polar run` does not say {part!r}: {seen.cli}"
    if "filled" in seen.stdout:
        yield "it filled the disk"


def huge_file(seen: Seen) -> Problems:
    """No file gets longer, unless all together are noticed first."""
    if seen.session["status"] == "failed" and STORAGE_WORDS in seen.stderr:
        return
    yield from refused(seen)
    yield from met(seen, "file", "EFBIG")


def huge_output(seen: Seen) -> Problems:
    yield from ended(seen)
    sizes = {artifact["name"]: artifact["size"] for artifact in seen.report["artifacts"]}
    for name in ("stdout.log", "stderr.log"):
        if not 0 < sizes.get(name, 0) <= OUTPUT_LIMIT + 100:
            yield f"{name} has {sizes.get(name)} bytes"
    if "bytes dropped]" not in seen.stdout:
        yield "nothing says that output was dropped"


OUTLASTING = [
    Attack(
        "deadline",
        "outlast.py deadline",
        deadline,
        task={
            "evaluator": {"type": "command", "command": "grep -q 'before the deadline' work"},
            "budgets": {"run_seconds": 4.0},
        },
    ),
    Attack(
        "leave-behind",
        "outlast.py leave_behind",
        leave_behind,
        task={
            "evaluator": {"type": "command", "command": f"grep -q done work && ! {ALONE}"},
            "grading": {"sandbox": "session"},
        },
    ),
    Attack(
        "fork-bomb",
        "outlast.py fork_bomb",
        fork_bomb,
        task={"budgets": {"run_seconds": 4.0}},
        runtime={"pids": 64},
    ),
    Attack("fill-disk", "outlast.py fill_disk", fill_disk, runtime={"storage_mb": 64}),
    Attack("huge-file", "outlast.py huge_file", huge_file, runtime={"storage_mb": 64}),
    Attack("huge-output", "outlast.py huge_output", huge_output),
]
