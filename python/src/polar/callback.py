"""Reading callbacks: is it the server's, and what does it say.

The server signs each callback with the secret of the task's `Callback`::

    polar-signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Optional, Union

from pydantic import ValidationError

from polar._model import Model
from polar.errors import SignatureError, UnexpectedAnswerError
from polar.models import Event, SessionInfo, TaskInfo

HEADER = "polar-signature"


class CallbackBody(Model):
    """What a callback says. It may come more than once; `Event.seq` tells repeats."""

    event: Event
    """``session.ended`` or ``task.ended``."""

    session: Optional[SessionInfo] = None
    """The session, when one has ended."""

    task: Optional[TaskInfo] = None
    """The task, when it has ended."""


def verify_callback(
    secret: Union[str, bytes],
    headers: Mapping[str, str],
    body: Union[str, bytes],
    *,
    tolerance_seconds: Optional[float] = 300.0,
    now: Optional[float] = None,
) -> CallbackBody:
    """What a callback says. Raises `SignatureError` unless it was signed with ``secret``.

    Pass the body's bytes as they came, not JSON written anew. ``tolerance_seconds`` is how
    far the signature's time may lie from now, so that a recorded callback cannot be played
    back later; None accepts any time. A callback that is repeated is signed anew.
    """
    given = next((value for name, value in headers.items() if name.lower() == HEADER), None)
    if given is None:
        raise SignatureError(f"the callback has no {HEADER} header; is the task's secret set?")
    parts = [part.strip().partition("=") for part in given.split(",")]
    stamp = next((value for name, _, value in parts if name == "t"), "")
    if not (stamp.isascii() and stamp.isdigit()):
        raise SignatureError(f"the {HEADER} header {given!r} has no time t=<unix seconds>")
    signed = stamp.encode() + b"." + _bytes(body)
    expected = hmac.new(_bytes(secret), signed, hashlib.sha256).hexdigest().encode()
    signatures = [value.encode() for name, _, value in parts if name == "v1"]
    if not any(hmac.compare_digest(expected, signature) for signature in signatures):
        raise SignatureError("the callback's signature does not match the secret and the body")
    age = (time.time() if now is None else now) - int(stamp)
    if tolerance_seconds is not None and abs(age) > tolerance_seconds:
        raise SignatureError(
            f"the callback was signed {age:.0f} seconds ago, more than {tolerance_seconds:.0f}; "
            "check both machines' clocks"
        )
    try:
        return CallbackBody.model_validate_json(body)
    except ValidationError as error:
        raise UnexpectedAnswerError(f"the callback is not understood: {error}") from error


def _bytes(value: Union[str, bytes]) -> bytes:
    return value.encode() if isinstance(value, str) else value
