"""What must hold after the kills. Each check gives the problems it found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployment import Deployment
from processes import Refused

TERMINAL = {"completed", "timed_out", "failed", "cancelled"}


@dataclass
class Evidence:
    """What was accepted and acknowledged, and what the API says in the end."""

    accepted: dict[str, int]
    kills: int
    acknowledged: list[dict[str, str]]
    followed: list[dict[str, Any]]
    """Sessions that were amid calls when their node was held up until it lost them."""
    held_up: set[str]
    log: list[dict[str, Any]] = field(default_factory=list)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By session, then attempt: its calls and its trajectory."""
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)

    def read(self, deployment: Deployment) -> None:
        self.log, cursor = [], 0
        while True:
            page = deployment.ask("GET", f"/api/events?after={cursor}&limit=1000")
            if not page["events"]:
                break
            self.log += page["events"]
            cursor = page["cursor"]
        for task in self.accepted:
            try:
                self.tasks[task] = deployment.ask("GET", f"/api/tasks/{task}")
            except Refused:
                continue
            for session in deployment.ask("GET", f"/api/tasks/{task}/sessions")["sessions"]:
                self.sessions[session["session_id"]] = session
                self._read_attempts(deployment, session)

    def _read_attempts(self, deployment: Deployment, session: dict[str, Any]) -> None:
        name = session["session_id"]
        for attempt in session["attempts"]:
            report = attempt.get("report")
            kept = {artifact["name"] for artifact in (report or {}).get("artifacts", [])}
            if "calls.json" not in kept:
                continue
            query = f"?attempt={attempt['attempt']}"
            self.attempts[name, attempt["attempt"]] = Attempt(
                report=report,
                lost=attempt.get("lost"),
                calls=deployment.ask("GET", f"/api/sessions/{name}/calls{query}"),
                trajectory=deployment.ask("GET", f"/api/sessions/{name}/trajectory{query}"),
            )


@dataclass
class Attempt:
    """One run of a session of which calls were kept."""

    report: dict[str, Any]
    lost: str | None
    calls: list[dict[str, Any]]
    trajectory: dict[str, Any]


def all_of(evidence: Evidence) -> dict[str, list[str]]:
    attempts = Counter(len(session["attempts"]) for session in evidence.sessions.values())
    salvaged = [key for key, attempt in evidence.attempts.items() if attempt.lost]
    print(
        f"  {len(evidence.sessions)} sessions, {evidence.kills} kills, "
        f"{len(evidence.acknowledged)} calls acknowledged, "
        f"{len(evidence.attempts)} attempts with calls, {len(salvaged)} of them of lost leases; "
        f"sessions by attempts: {dict(sorted(attempts.items()))}"
    )
    return {
        "every accepted task is there": every_task_is_there(evidence),
        "every task and session has ended": everything_ended(evidence),
        "every session was completed in the end": every_session_completed(evidence),
        "every end is in the log once": every_end_is_logged_once(evidence),
        "a reader by cursor gets the log once": reader_got_the_log_once(evidence),
        "no acknowledged call is lost": no_acknowledged_call_is_lost(evidence),
        "acknowledged calls are trained": acknowledged_calls_are_trained(evidence),
        "calls of lost leases are kept": calls_of_lost_leases_are_kept(evidence),
        "tokens are conserved": tokens_are_conserved(evidence),
    }


def every_task_is_there(evidence: Evidence) -> list[str]:
    problems = [f"task {task} is gone" for task in evidence.accepted.keys() - evidence.tasks.keys()]
    for task, samples in evidence.accepted.items():
        found = [s for s in evidence.sessions.values() if s["task_id"] == task]
        if len(found) != samples:
            problems.append(f"task {task} has {len(found)} sessions, not {samples}")
    return problems


def everything_ended(evidence: Evidence) -> list[str]:
    things = {**evidence.tasks, **evidence.sessions}
    return [
        f"{name} is {thing['status']}: {thing.get('waiting_for')}"
        for name, thing in things.items()
        if thing["status"] not in TERMINAL
    ]


def every_session_completed(evidence: Evidence) -> list[str]:
    """The harness always manages and there are attempts enough for all kills."""
    return [
        f"{name} is {session['status']}: {session.get('outcome')}"
        for name, session in evidence.sessions.items()
        if session["status"] != "completed"
    ]


def every_end_is_logged_once(evidence: Evidence) -> list[str]:
    problems = []
    for kind, key, names in (
        ("session.ended", "session_id", evidence.sessions),
        ("task.ended", "task_id", evidence.tasks),
    ):
        counts = Counter(event[key] for event in evidence.log if event["kind"] == kind)
        for name in names:
            if counts[name] != 1:
                problems.append(f"{kind} of {name} is in the log {counts[name]} times")
        problems += [f"{kind} of unknown {name}" for name in counts.keys() - names.keys()]
    return problems


def reader_got_the_log_once(evidence: Evidence) -> list[str]:
    followed = [event["seq"] for event in evidence.followed]
    if followed != list(range(1, len(followed) + 1)):
        return ["the positions read are not 1, 2, 3, …"]
    if evidence.followed != evidence.log:
        return [f"read {len(followed)} events while the log holds {len(evidence.log)}"]
    return []


def no_acknowledged_call_is_lost(evidence: Evidence) -> list[str]:
    problems = []
    for line in evidence.acknowledged:
        found = calls_of(evidence, line)
        if len(found) != 1:
            problems.append(f"{line['session']}: {line['word']} is recorded {len(found)} times")
        elif found[0][1].get("delivered") is False:
            problems.append(f"{line['session']}: {line['word']} is recorded as not delivered")
    return problems


def acknowledged_calls_are_trained(evidence: Evidence) -> list[str]:
    """In attempts that ended by themselves, which is where nothing excuses a gap."""
    return [
        f"{line['session']}: {line['word']} is in no trace: {call}"
        for line in evidence.acknowledged
        for attempt, call in calls_of(evidence, line)
        if attempt.report["outcome"]["type"] == "completed" and call.get("trace") is None
    ]


def calls_of_lost_leases_are_kept(evidence: Evidence) -> list[str]:
    problems = []
    for session in sorted(evidence.held_up):
        first = evidence.attempts.get((session, 1))
        if first is None or not first.calls:
            problems.append(f"{session}: nothing is kept of the attempt that was held up")
        elif not first.lost:
            problems.append(f"{session}: the attempt that was held up did not lose its lease")
    return problems


def calls_of(evidence: Evidence, line: dict[str, str]) -> list[tuple[Attempt, dict[str, Any]]]:
    """Calls whose recorded reply is the acknowledged one, to the letter."""
    return [
        (attempt, call)
        for (session, _), attempt in evidence.attempts.items()
        if session == line["session"]
        for call in attempt.calls
        if call["reply"].get("content") == line["text"]
    ]


def tokens_are_conserved(evidence: Evidence) -> list[str]:
    problems = []
    for key, attempt in evidence.attempts.items():
        tokens = attempt.trajectory["tokens"]
        traces = attempt.trajectory["traces"]
        sampled = sum(call["sampled_tokens"] for call in attempt.calls)
        masked = sum(sum(trace["loss_mask"]) for trace in traces)
        untrained = sum(tokens["untrained"].values())
        for problem, broken in (
            ("sampled is not trained + untrained", tokens["sampled"] != masked + untrained),
            ("sampled is not that of the calls", tokens["sampled"] != sampled),
            ("trained is not that of the masks", tokens["trained"] != masked),
            ("report and trajectory differ", tokens != attempt.report["tokens"]),
            ("Polar found a broken trace", "not what was sampled" in str(attempt.report)),
            ("trained on a token without logprob", any(map(without_logprob, traces))),
        ):
            if broken:
                problems.append(f"{key}: {problem}: {tokens}, {sampled} sampled, {masked} masked")
    return problems


def without_logprob(trace: dict[str, Any]) -> bool:
    pairs = zip(trace["loss_mask"], trace["response_logprobs"], strict=True)
    return any(mask and logprob is None for mask, logprob in pairs)


def leftovers(deployment: Deployment, session_prefix: str) -> dict[str, list[str]]:
    """What server and nodes that have ended may not leave."""
    node_folders = deployment.node_folders()
    return {
        "no session is left on a node": held(node_folders),
        "no sandbox is left": [
            str(path) for folder in node_folders for path in (folder / "sandboxes").glob("*/*")
        ],
        "no process is left": processes_of(session_prefix),
        "no unfinished upload is left": [
            str(path) for path in deployment.blob_folder().glob("**/*#*")
        ],
        "no temporary file is left": [
            str(path) for folder in deployment.temporary_folders() for path in folder.glob("*")
        ],
    }


def held(node_folders: list[Path]) -> list[str]:
    """Attempts that a node has not handed over."""
    parts = [folder / part for folder in node_folders for part in ("sessions", "undelivered")]
    return [str(path) for part in parts for path in part.glob("*")]


def processes_of(session_prefix: str) -> list[str]:
    """Processes with the environment of a session, wherever they went."""
    mark = f"POLAR_SESSION_ID={session_prefix}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{folder.name}: {command}")
        except OSError:
            # It ended meanwhile, or is the kernel's.
            continue
    return found
