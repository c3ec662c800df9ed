"""When to try a request again, and how long to pause before."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Optional

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to keep trying while the server is away or overloaded.

    A server that has answered before is waited for as long as ``seconds`` says. An address
    where nothing ever answered is more likely wrong, and given up after ``connect_seconds``.

    Every request of the client can safely be repeated: those that change something carry
    an id, so a repetition changes nothing more. A restart of the server is thus only a pause.
    """

    seconds: float = 120.0
    """Keep trying for this long after the first failure; 0 never tries again."""

    connect_seconds: float = 5.0
    """Keep trying for no longer than this as long as the server was never reached."""

    first_pause: float = 0.2
    """Seconds before the second try; doubled after each."""

    longest_pause: float = 10.0
    """Upper limit of a pause, unless the server asks for a longer one."""


class Retries:
    """The tries of one request. Reads no clock itself: the caller says what time it is."""

    def __init__(self, policy: RetryPolicy, draw: random.Random) -> None:
        self._policy = policy
        self._draw = draw
        self._pause = policy.first_pause
        self._failed_at: Optional[float] = None

    def pause(
        self, now: float, retry_after: Optional[float] = None, *, reached: bool = True
    ) -> Optional[float]:
        """Seconds to pause before the next try, or None to give up.

        ``retry_after`` is the server's own wish; ``reached`` says whether the server ever
        took a connection. Half of a pause is drawn at random, so that clients do not
        return in step.
        """
        if self._failed_at is None:
            self._failed_at = now
        seconds = self._policy.seconds
        if not reached:
            seconds = min(seconds, self._policy.connect_seconds)
        pause = self._pause * (0.5 + self._draw.random() / 2)
        self._pause = min(self._pause * 2, self._policy.longest_pause)
        if retry_after is not None:
            pause = max(pause, retry_after)
        return pause if now + pause < self._failed_at + seconds else None


def retry_after(header: Optional[str]) -> Optional[float]:
    """The ``Retry-After`` header in seconds. A date is ignored: the pause grows anyway."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
