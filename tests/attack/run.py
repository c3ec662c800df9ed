#!/usr/bin/env python3
"""The attack suite: hostile agents in their sandboxes, and hostile words to server and CLI.

Starts the engine simulator and `polar up`, lets a session of an honest agent go on meanwhile, and
runs every attack of `reaching.py`, `looking.py`, `outlasting.py` and `cheating.py` in each kind of
sandbox through `polar run`. Each must be refused, and its user must be told what happened. The
words of `refusals.py` must be refused as well. In the end some attacks are run as plain processes
with a network, where they must succeed: that shows that they are attacks.

    tests/attack/run.py [--runtime local docker podman apptainer] [--only NAME …] [--keep]

Needs bubblewrap, and for the other kinds their programs and Docker, from which they have the image
of the suite docker-clis.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "docker")]

import clis
from attacks import Attack, Seen
from cheating import CHEATING
from ground import HERE, Ground, marked_processes, podman_service
from looking import LOOKING
from outlasting import OUTLASTING
from processes import ROOT, until
from reaching import REACHING, WRONG_SECRET
from refusals import REFUSALS, Grounds

ATTACKS: list[Attack] = [*REACHING, *LOOKING, *OUTLASTING, *CHEATING]
RUN_SECONDS = 600
TERMINAL = {"completed", "timed_out", "failed", "cancelled"}
# Words to a terminal, which nobody but the agent itself would write.
ESCAPE = "\x1b]0;owned"

Found = dict[str, list[str]]


def main() -> int:
    arguments = read_arguments()
    started = time.monotonic()
    # Not below /tmp, of which every sandbox has its own. Short, for the sockets in it.
    folder = Path(tempfile.mkdtemp(prefix="attack-", dir=ROOT / "target"))
    found: Found = {}
    with contextlib.ExitStack() as stack:
        env: dict[str, str] = {}
        images = {runtime: image(runtime, folder) for runtime in arguments.runtime}
        if "podman" in arguments.runtime:
            env = stack.enter_context(podman_service(folder))
        guarded = folder / "g"
        guarded.mkdir()
        ground = Ground(guarded, "bubblewrap", env)
        stack.callback(ground.stop)
        found.update(attack_all(ground, arguments, images))
    found.update(leftovers(guarded))
    if not arguments.only:
        found.update(without_guards(folder / "p"))
    failed = report(found)
    if failed or arguments.keep:
        print(f"logs and state: {folder}")
    else:
        shutil.rmtree(folder)
    seconds = time.monotonic() - started
    print(f"===== {failed} failed, {len(found) - failed} passed in {seconds:.1f}s", flush=True)
    return 1 if failed else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = ["local", "docker", "podman", "apptainer"]
    # Podman works as root on few machines, and without root for its own user alone.
    there = ["local", *(kind for kind in ("docker", "apptainer") if shutil.which(kind))]
    parser.add_argument("--runtime", nargs="+", choices=kinds, default=there)
    parser.add_argument("--only", nargs="+", default=[], help="attacks whose names hold this")
    parser.add_argument("--keep", action="store_true", help="keep logs and state")
    return parser.parse_args()


def report(found: Found) -> int:
    for name, problems in found.items():
        print(f"  {'FAIL' if problems else 'ok  '} {name}")
        for problem in problems[:8]:
            print(f"       {problem}")
    return sum(1 for problems in found.values() if problems)


def image(runtime: str, folder: Path) -> str | None:
    """The image in the form that a kind of sandbox takes."""
    if runtime == "local":
        return None
    clis.make_image()
    if runtime == "docker":
        return clis.IMAGE
    archive = folder / "image.tar"
    if not archive.exists():
        subprocess.run(["docker", "save", f"--output={archive}", clis.IMAGE], check=True)
    if runtime == "podman":
        quiet = subprocess.DEVNULL
        subprocess.run(["podman", "load", f"--input={archive}"], check=True, stdout=quiet)
        return f"localhost/{clis.IMAGE}"
    return str(archive)


def attack_all(
    ground: Ground, arguments: argparse.Namespace, images: dict[str, str | None]
) -> Found:
    found: Found = {}
    victim = start_victim(ground)
    for runtime in arguments.runtime:
        chosen = [attack for attack in ATTACKS if runtime in attack.runtimes]
        if arguments.only:
            chosen = [a for a in chosen if any(part in a.name for part in arguments.only)]
        tasks = [task_of(ground, attack, runtime, images[runtime]) for attack in chosen]
        began = time.monotonic()
        said = polar_run(ground, tasks, f"{runtime}.jsonl")
        marked_gone(ground)
        print(f"{runtime}: {len(tasks)} attacks in {time.monotonic() - began:.1f}s", flush=True)
        for attack in chosen:
            seen = look_up(ground, attack, runtime, said)
            found[f"{runtime}: {attack.name}"] = list(attack.check(seen))
    found["the honest session beside them"] = end_victim(ground, victim)
    if not arguments.only:
        canary = ground.words["canary"]
        grounds = Grounds(
            ground.api, ground.polar, ground.env, ground.folder, ground.outside, canary
        )
        for name, refuse in REFUSALS.items():
            began = time.monotonic()
            found[f"words: {name}"] = refuse(grounds)
            print(f"{name}: {time.monotonic() - began:.1f}s", flush=True)
    return found


def task_of(ground: Ground, attack: Attack, runtime: str, image: str | None) -> dict[str, Any]:
    prepare = list(attack.runtime.get("prepare", []))
    program, argument = attack.agent.split()
    files = {name: (HERE / "agents" / name).read_text() for name in ("telling.py", program)}
    files["target.json"] = json.dumps(ground.target())
    for name, content in files.items():
        prepare.append({"type": "write_file", "path": f"agents/{name}", "content": content})
    task = {
        "task_id": f"{attack.name}-{runtime}",
        "harness": {"name": "shell", "command": f"exec python3 agents/{program} {argument}"},
        "max_attempts": 1,
        **attack.task,
        "budgets": {
            "prepare_seconds": 120,
            "run_seconds": 90,
            "grade_seconds": 60,
            **attack.task.get("budgets", {}),
        },
        "runtime": {"type": runtime, **attack.runtime, "prepare": prepare},
    }
    if image:
        task["runtime"]["image"] = image
    # What only this run knows.
    return dict(json.loads(json.dumps(task).replace("$CANARY", str(ground.outside / "canary"))))


def polar_run(ground: Ground, tasks: list[dict[str, Any]], name: str) -> str:
    """Submits all and waits for their ends; what it printed."""
    file = ground.folder / name
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    line = [ground.polar, "run", str(file), f"--server=127.0.0.1:{ground.port}"]
    done = subprocess.run(
        line, capture_output=True, env=ground.env, timeout=RUN_SECONDS, check=False
    )
    (ground.folder / f"{name}.out").write_bytes(done.stdout + done.stderr)
    return (done.stdout + done.stderr).decode(errors="backslashreplace")


def marked_gone(ground: Ground) -> None:
    """A result does not wait for its sandbox; what it holds must be gone soon after."""
    mark = ground.words["mark"]
    with contextlib.suppress(AssertionError):
        until(lambda: not marked_processes(mark), 20.0, lambda: "processes are left")


def look_up(ground: Ground, attack: Attack, runtime: str, said: str) -> Seen:
    name = f"{attack.name}-{runtime}-s0"
    session = ground.api.ask("GET", f"/api/sessions/{name}")

    def log(stream: str) -> str:
        status, text = ground.api.raw("GET", f"/api/sessions/{name}/logs?stream={stream}")
        return text.decode(errors="replace") if status == 200 else ""

    return Seen(
        runtime=runtime,
        session=session,
        stdout=log("stdout"),
        stderr=log("stderr"),
        grader=log("grader"),
        diff=log("diff"),
        cli="".join(lines_of(name, said)),
        facts={
            "visitors": ground.listener.visitors,
            "alive": ground.alive(),
            "marked_processes": marked_processes(ground.words["mark"]),
            "node_peak_mb": ground.peak_mb(),
            "canary": ground.words["canary"],
            "logs": {"the node's log": (ground.folder / "polar.log").read_text(errors="replace")},
        },
    )


def lines_of(session: str, said: str) -> Iterator[str]:
    """Those of a session, with the indented ones below."""
    inside = False
    for line in said.split("\n"):
        inside = line.startswith(session) or (inside and line.startswith("  "))
        if inside:
            yield line + "\n"


def start_victim(ground: Ground) -> str:
    attack = Attack("victim", "reach.py victim", lambda _: iter(()), runtime={"network": "open"})
    task = task_of(ground, attack, "local", None)
    task["budgets"]["run_seconds"] = RUN_SECONDS * 4
    ground.api.ask("POST", "/api/tasks", task)
    until(lambda: bool(ground.listener.victims), 60.0, lambda: "the honest agent does not start")
    return str(ground.listener.victims[0]["secret"])


def end_victim(ground: Ground, secret: str) -> list[str]:
    """It went on through all attacks, has its own calls alone, and its secret ends with it."""
    ground.listener.end_of_victims.set()
    name = "victim-local-s0"
    session: dict[str, Any] = {}

    def over() -> bool:
        session.update(ground.api.ask("GET", f"/api/sessions/{name}"))
        return session["status"] in TERMINAL

    until(over, 60.0, lambda: f"the honest session is {session.get('status')}")
    seen = look_up(ground, Attack("victim", "", lambda _: iter(())), "local", "")
    problems = []
    if session["status"] != "completed":
        problems.append(f"it is {session['status']}: {seen.message}")
    if seen.told["met"].get("calls") != str(seen.report["calls"]):
        problems.append(f"it made {seen.told['met']} and has {seen.report['calls']} calls")
    status, said = ask_proxy(ground, secret)
    if f"{status} {said}" != WRONG_SECRET:
        problems.append(f"its secret still means something: {status} {said}")
    return problems


def ask_proxy(ground: Ground, secret: str) -> tuple[int, str]:
    proxy = http.client.HTTPConnection("127.0.0.1", ground.proxy, timeout=30)
    try:
        body = json.dumps({"model": "polar", "messages": [{"role": "user", "content": "hi"}]})
        headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
        proxy.request("POST", "/v1/chat/completions", body, headers)
        response = proxy.getresponse()
        return response.status, str(json.loads(response.read())["error"]["message"])
    finally:
        proxy.close()


def leftovers(folder: Path) -> Found:
    """What a node that has ended may not leave."""
    left = [
        str(path)
        for part in ("sessions", "undelivered")
        for path in folder.glob(f"state/node/{part}/*")
    ]
    found = {"no session is left": left}
    for runtime in ("docker", "podman"):
        if shutil.which(runtime):
            line = [runtime, "ps", "--all", "--quiet", "--filter", "label=polar.node=attacked"]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            found[f"no container of {runtime} is left"] = done.stdout.split()
    return found


def without_guards(folder: Path) -> Found:
    """As plain processes with a network, in repositories as they were, the attacks succeed."""
    folder.mkdir()
    ground = Ground(folder, "process", {})
    found: Found = {}
    try:
        victim = start_victim(ground)
        chosen = [attack for attack in ATTACKS if attack.unguarded]
        tasks = [task_of(ground, attack, "local", None) for attack in chosen]
        for task in tasks:
            task["runtime"]["network"] = "open"
            steps = task["runtime"]["prepare"]
            task["runtime"]["prepare"] = [step for step in steps if step["type"] != "scrub_git"]
        said = polar_run(ground, tasks, "plain.jsonl")
        for attack in chosen:
            seen = look_up(ground, attack, "local", said)
            got = seen.told["got"]
            found[f"without guards it succeeds: {attack.name}"] = [] if got else [str(seen.told)]
        found["the honest session without guards"] = end_victim(ground, victim)
    finally:
        ground.stop()
    return found


if __name__ == "__main__":
    sys.exit(main())
