"""The harness of the storm: makes calls and does its work, then what its kind says.

    agent.py KIND CALLS

It tells by the name of its process where it is, for the test to see from outside.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request

KIND, CALLS = sys.argv[1], int(sys.argv[2])
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main() -> None:
    call_itself("storm-works")
    history: list[dict[str, str]] = []
    for number in range(CALLS):
        history.append({"role": "user", "content": f"word {number}"})
        history.append({"role": "assistant", "content": call(history)})
    if KIND != "idle":
        with open("work", "w") as file:
            file.write("done\n")
    END.get(KIND, lambda: None)()


def call_itself(name: str) -> None:
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)


def call(history: list[dict[str, str]]) -> str:
    request = urllib.request.Request(
        os.environ["POLAR_BASE_URL"] + "/v1/chat/completions",
        data=json.dumps({"model": "polar", "max_tokens": 60, "messages": history}).encode(),
        headers={
            "content-type": "application/json",
            "authorization": f"Bearer {os.environ['POLAR_API_KEY']}",
        },
    )
    with OPENER.open(request, timeout=60) as response:
        reply = json.loads(response.read())
    return str(reply["choices"][0]["message"]["content"])


def wait() -> None:
    call_itself("storm-waits")
    while True:
        signal.pause()


def crash() -> None:
    print("this agent gives up", file=sys.stderr)
    sys.exit(3)


def fork_bomb() -> None:
    while True:
        try:
            os.fork()
        except OSError:
            signal.sigtimedwait([], 0.05)


def write_much() -> None:
    piece = b"x" * 65536
    for _ in range(int(os.environ["STORM_OUTPUT_MB"]) * 16):
        os.write(1, piece)


def hog_disk() -> None:
    piece = b"x" * (1 << 20)
    for number in range(1024):
        with open(f"hog-{number}", "wb") as file:
            for _ in range(8):
                file.write(piece)


END = {
    "timeout": wait,
    "killed_agent": wait,
    "crash": crash,
    "fork_bomb": fork_bomb,
    "output": write_much,
    "disk_hog": hog_disk,
}

main()
