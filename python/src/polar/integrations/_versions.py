"""Numbers of weight versions, for trainers that count them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

from polar.errors import PolarError


class VersionUnknownError(PolarError, ValueError):
    """A trainer wants the number of a weight version, and there is none."""


def number(label: Optional[str], unknown: Optional[int]) -> int:
    """The number that a label ends with: 12 of `12`, `step-12` or `v12`.

    Without one it is ``unknown``, or an error where that is None.
    """
    found = re.search(r"(\d+)$", label or "")
    if found:
        return int(found[1])
    if unknown is not None:
        return unknown
    what = "the engine gave no weight version" if label is None else f"{label!r} ends in no number"
    raise VersionUnknownError(f"{what}; pass unknown_version= to say what stands for it")


def oldest(labels: Iterable[Optional[str]], unknown: Optional[int]) -> int:
    """The least of the numbers: how stale a row is at most."""
    return min(number(label, unknown) for label in labels)
