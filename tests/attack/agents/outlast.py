"""An agent that takes more than it has: time, disk, processes, output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from telling import Loot, play, word

FOREVER = "import sys, time\nwhile True: time.sleep(1000)"
STUBBORN = """import signal, sys, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(1000)"""
REBORN = "import os, sys, time\ntime.sleep(0.05)\nos.execv(sys.executable, sys.orig_argv)"
# The child goes on in the place of its parent, so that no number holds for long.
RUNNER = """import os, sys, time
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.01)"""


def start(program: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-c", program, word("mark")]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(line, stdin=nowhere, stdout=nowhere, stderr=nowhere)


def scatter() -> None:
    """Leaves processes in every way there is to be left alone."""
    start(FOREVER)
    start(STUBBORN)
    start(REBORN)
    start(RUNNER)
    os.kill(start(FOREVER).pid, signal.SIGSTOP)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            start(STUBBORN)
            os._exit(0)
        os._exit(0)
    os.wait()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    line = ["nohup", sys.executable, "-c", FOREVER, word("mark")]
    subprocess.Popen(line, start_new_session=True, **quiet)


def deadline() -> None:
    """Works, then stays for ever."""
    Path("work").write_text("done before the deadline\n")
    scatter()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    print("working on", flush=True)
    os.execv(sys.executable, [sys.executable, "-c", STUBBORN, word("mark")])


def leave_behind() -> None:
    """Ends well, and leaves others to go on."""
    Path("work").write_text("done\n")
    scatter()
    print("gone", flush=True)


def fork_bomb() -> None:
    """Until nothing more starts; then goes on trying."""
    loot = Loot()
    refused = 0
    while True:
        try:
            if os.fork() == 0:
                while True:
                    try:
                        os.fork()
                    except OSError:
                        time.sleep(0.01)
        except OSError as problem:
            refused += 1
            if refused == 1:
                loot.met["fork"] = str(problem.errno)
                loot.tell()
            time.sleep(0.01)


def fill_disk() -> None:
    """In files none of which is too large."""
    piece = os.urandom(1 << 20)
    for number in range(4096):
        with open(f"file-{number}", "wb") as file:
            for _ in range(8):
                file.write(piece)
    print("filled", flush=True)


def huge_file() -> None:
    """In one that is longer than all together may be."""
    loot = Loot()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def write() -> None:
        with open("file", "wb") as file:
            for _ in range(1024):
                file.write(b"x" * (1 << 20))

    loot.attempt("file", write)
    loot.tell()


def huge_output() -> None:
    """On both streams, without a line end."""
    piece = b"x" * (1 << 20)
    for _ in range(200):
        os.write(1, piece)
        os.write(2, piece)


if __name__ == "__main__":
    names = [deadline, leave_behind, fork_bomb, fill_disk, huge_file, huge_output]
    play({work.__name__: work for work in names})
