"""What every hostile agent has: its target, and how it tells what it got."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET: dict[str, Any] = json.loads((HERE / "target.json").read_text())
BASE = os.environ.get("POLAR_BASE_URL", "")
KEY = os.environ.get("POLAR_API_KEY", "")


def word(name: str) -> str:
    """A word that is kept backwards here, so that this file is not taken for what is looked for."""
    return str(TARGET[name])[::-1]


class Loot:
    """What was got although it should not be had, and what was met instead."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.met: dict[str, str] = {}

    def attempt(self, name: str, work: Callable[[], object]) -> None:
        """Something that must fail. How it fails is told by its name."""
        try:
            found = work()
        except Exception as problem:
            self.met[name] = named(problem)
        else:
            self.got.append(f"{name}: {found!r}"[:300])

    def tell(self) -> None:
        print(json.dumps({"got": self.got, "met": self.met}), flush=True)


def named(problem: BaseException) -> str:
    """`ENETUNREACH`, or the kind of exception."""
    number = getattr(problem, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return errno.errorcode[number]
    return type(problem).__name__


def play(attacks: dict[str, Callable[[], None]]) -> None:
    attacks[sys.argv[1]]()
