"""What must hold after the storm. Each check gives the problems it found."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import checks
from injuries import Ledger
from machines import Machines, mounts_below
from sessions import kind_of

INFRASTRUCTURE = {"sandbox_loss", "engine_loss", "polar_failure"}
LOSSES = {"sandbox's monitor killed", "container killed"}


def all_of(evidence: checks.Evidence, ledger: Ledger) -> dict[str, list[str]]:
    sessions = list(evidence.sessions.values())
    return {
        "every accepted task is there": checks.every_task_is_there(evidence),
        "every task and session has ended": checks.everything_ended(evidence),
        "every end is in the log once": checks.every_end_is_logged_once(evidence),
        "every session ended for the right reason": [p for s in sessions for p in ended_right(s)],
        "every killed sandbox is told as a loss": killed_sandboxes(evidence, ledger),
        "what timed out has its trajectory": [p for s in sessions for p in partial(evidence, s)],
        "no reward comes from infrastructure": [p for s in sessions for p in no_reward(s)],
        "tokens are conserved": checks.tokens_are_conserved(evidence),
    }


def last_report(session: dict[str, Any]) -> dict[str, Any]:
    reports = [a["report"] for a in session["attempts"] if a.get("report") and not a.get("lost")]
    return reports[-1] if reports else {}


def ended_right(session: dict[str, Any]) -> list[str]:
    name, report = session["session_id"], last_report(session)
    kind = kind_of(name)
    said = str(report.get("outcome", {}).get("message", ""))
    found = (session["status"], report.get("reason"))
    if found != (kind.status, kind.reason):
        # Attempts can be used up by nodes that were killed, where there are few.
        lost = kind.status == "failed" and all(a.get("lost") for a in session["attempts"])
        if not lost:
            return [f"{name} is {found}, not {(kind.status, kind.reason)}: {said[:300]}"]
    # Of its attempts some may have been lost to what happened around them.
    messages = [(a.get("report") or {}).get("outcome", {}) for a in session["attempts"]]
    if found[0] == "failed" and not any(kind.says in m.get("message", "") for m in messages):
        return [f"{name} says {said[:300]!r}, without {kind.says!r}"]
    if kind.status != "failed" and session.get("reward") != kind.reward:
        why = report.get("grade_error") or report.get("grade_note")
        return [f"{name} has the reward {session.get('reward')}, not {kind.reward}: {why}"]
    return []


def killed_sandboxes(evidence: checks.Evidence, ledger: Ledger) -> list[str]:
    """An attempt whose sandbox was killed amid its run failed for that, or was lost."""
    problems = []
    for injury in ledger.injuries:
        if injury.what not in LOSSES or injury.session not in evidence.sessions:
            continue
        attempts = evidence.sessions[injury.session]["attempts"]
        reasons = [(a.get("report") or {}).get("reason") for a in attempts]
        is_told = INFRASTRUCTURE & set(reasons) or any(a.get("lost") for a in attempts)
        # To find a container's first process takes its time, amid fork bombs: an agent that made
        # all its calls in its one attempt, and whose work is there, had ended by then.
        only = (attempts[0].get("report") or {}) if len(attempts) == 1 else {}
        whole = (kind_of(injury.session).calls, 1.0)
        had_ended = (only.get("calls"), only.get("reward")) == whole
        if not is_told and not had_ended:
            problems.append(f"{injury.what} of {injury.session}, whose attempts end {reasons}")
    return problems


def partial(evidence: checks.Evidence, session: dict[str, Any]) -> list[str]:
    if session["status"] != "timed_out":
        return []
    name, number = session["session_id"], len(session["attempts"])
    attempt = evidence.attempts.get((name, number))
    if attempt is None:
        return [f"{name}: nothing is kept of attempt {number}"]
    trained = sum(sum(trace["loss_mask"]) for trace in attempt.trajectory["traces"])
    if len(attempt.calls) != kind_of(name).calls or trained == 0:
        return [f"{name}: {len(attempt.calls)} calls and {trained} tokens to train on"]
    return []


def no_reward(session: dict[str, Any]) -> list[str]:
    return [
        f"{session['session_id']}: attempt {attempt['attempt']} has the reward "
        f"{attempt['report']['reward']} after {attempt['report']['reason']}"
        for attempt in session["attempts"]
        if (attempt.get("report") or {}).get("reason") in INFRASTRUCTURE
        and attempt["report"].get("reward") is not None
    ]


def table(evidence: checks.Evidence, ledger: Ledger) -> str:
    """What was done to sessions, beside how their attempts and they themselves ended."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    for name, session in evidence.sessions.items():
        key = (kind_of(name).name, name.split("-")[2])
        counts = rows.setdefault(key, Counter())
        counts["sessions"] += 1
        counts[f"→ {last_report(session).get('reason', session['status'])}"] += 1
        counts["injured"] += bool(ledger.of(name))
        for attempt in session["attempts"][:-1]:
            reason = (attempt.get("report") or {}).get("reason", "no report")
            counts["lease lost" if attempt.get("lost") else reason] += 1
    lines = [
        f"  {kind:15} {runtime:7} " + ", ".join(f"{what} {count}" for what, count in counts.items())
        for (kind, runtime), counts in sorted(rows.items())
    ]
    done = ", ".join(f"{what} {count}" for what, count in sorted(ledger.counts().items()))
    return "\n".join([*lines, f"  done: {done}"])


def verified(machines: Machines, tasks: list[str]) -> list[str]:
    """What `polar verify` says of the tasks' trajectories."""
    line = [machines.polar, "verify", *tasks, f"--server=127.0.0.1:{machines.port}"]
    done = subprocess.run(line, capture_output=True, text=True, env=machines.env, check=False)
    if done.returncode != 0:
        return [done.stderr[-500:], *done.stdout.splitlines()[-5:]]
    print(f"  {done.stdout.splitlines()[-1]}")
    return []


class Traces:
    """What a machine shows of sandboxes, to be compared before and after."""

    def __init__(self) -> None:
        self.cgroups = {
            str(path)
            for name in ("pids", "memory", "cpu", "unified", "")
            for path in Path("/sys/fs/cgroup", name).glob("**/polar-*")
        }


def leftovers(
    machines: Machines, before: Traces, containers: list[str], networks: list[str]
) -> dict[str, list[str]]:
    """What nodes that have ended may not leave."""
    after = Traces()
    folders = machines.node_folders()
    processes = [*machines.nodes.values()]
    return {
        "no container is left": containers,
        "no process is left": checks.processes_of("storm-"),
        "no session is left on a node": checks.held(folders),
        "no sandbox is left": [
            str(path) for folder in folders for path in (folder / "sandboxes").glob("*/*")
        ],
        "no temporary file is left": [
            str(path) for process in processes for path in process.temporary.glob("*")
        ],
        "no mount is left": [
            mount
            for mount in mounts_below(machines.folder)
            if mount not in (str(machines.small), str(machines.folder / "docker" / "data"))
        ],
        "no cgroup is left": sorted(after.cgroups - before.cgroups),
        # Those of processes go with them.
        "no network namespace is left": networks,
    }
