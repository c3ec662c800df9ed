"""Flags as Python programs spell them."""

from __future__ import annotations

from collections.abc import Sequence


def dashed(arguments: Sequence[str]) -> list[str]:
    """Writes flag names with dashes: ``--rollout_server=a_b`` becomes ``--rollout-server=a_b``.

    Values, and everything after ``--``, stay as they are.
    """
    result: list[str] = []
    for index, argument in enumerate(arguments):
        if argument == "--":
            return [*result, *arguments[index:]]
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            argument = name.replace("_", "-") + equals + value
        result.append(argument)
    return result
