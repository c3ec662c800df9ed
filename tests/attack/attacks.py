"""What an attack is, and what is known of it when it is over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

ALL = ("local", "docker", "podman", "apptainer")
IMAGES = ("docker", "podman", "apptainer")
CONTAINERS = ("docker", "podman")

Problems = Iterator[str]


@dataclass
class Seen:
    """One session that has ended, as its user sees it, and what it did to the machine."""

    runtime: str
    session: dict[str, Any]
    stdout: str
    stderr: str
    grader: str
    diff: str
    cli: str
    """What `polar run` printed of this session."""
    facts: dict[str, Any]
    """What the test itself noticed."""

    @property
    def report(self) -> dict[str, Any]:
        return self.session["attempts"][-1]["report"]

    @property
    def labels(self) -> set[str]:
        return {label["pattern"] for label in self.report.get("hack_labels", [])}

    @property
    def message(self) -> str:
        return str(self.report["outcome"].get("message", ""))

    @cached_property
    def told(self) -> dict[str, Any]:
        """What the agent says that it got and met."""
        for line in reversed(self.stdout.splitlines()):
            if line.startswith('{"got"'):
                return dict(json.loads(line))
        said = self.stdout[-300:] + self.stderr[-700:]
        return {"got": [f"the agent told nothing: {said}"], "met": {}}


@dataclass
class Attack:
    """A hostile agent and what must come of it."""

    name: str
    agent: str
    """Program and argument, such as `look.py secrets`."""
    check: Callable[[Seen], Problems]
    task: dict[str, Any] = field(default_factory=dict)
    """Beside the agent and its runtime."""
    runtime: dict[str, Any] = field(default_factory=dict)
    """Beside its kind and image."""
    runtimes: tuple[str, ...] = ALL
    unguarded: bool = False
    """Whether it succeeds as a plain process with a network: that shows that it can."""


def ended(seen: Seen, status: str = "completed", reason: str | None = None) -> Problems:
    """How the session ended, by its status and its reason in one word."""
    if seen.session["status"] != status:
        yield f"is {seen.session['status']}, not {status}: {seen.message or seen.session}"
    wanted = reason or status
    if seen.report.get("reason") != wanted:
        yield f"its reason is {seen.report.get('reason')}, not {wanted}"


def refused(seen: Seen) -> Problems:
    """The agent came to its end, and has nothing."""
    yield from ended(seen)
    yield from seen.told["got"]


def met(seen: Seen, name: str, *wanted: str) -> Problems:
    """With what an attempt was refused, to the letter."""
    said = seen.told["met"].get(name)
    if said not in wanted:
        yield f"{name} met {said!r}, not {' or '.join(map(repr, wanted))}"


def rewarded(seen: Seen, reward: float | None) -> Problems:
    if seen.session.get("reward") != reward:
        why = seen.report.get("grade_note") or seen.report.get("grade_error")
        found = seen.session.get("reward")
        yield f"its reward is {found}, not {reward}: {why}; {seen.grader[-500:]}"


def noted(seen: Seen, *parts: str) -> Problems:
    """What the user is told about the reward, by the API and by `polar run`."""
    note = str(seen.report.get("grade_note"))
    for part in parts:
        if part not in note:
            yield f"its note is {note!r}, without {part!r}"
        if part not in seen.cli:
            yield f"`polar run` does not say {part!r}: {seen.cli}"


def labelled(seen: Seen, *patterns: str) -> Problems:
    for pattern in patterns:
        if pattern not in seen.labels:
            yield f"is not labelled {pattern}, but {sorted(seen.labels)}"
