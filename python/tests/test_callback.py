from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from polar import SignatureError, UnexpectedAnswerError, verify_callback
from tests.conftest import event, session_info

BODY = json.dumps(
    {
        "event": event(5, "session.ended", session_id="s0"),
        "session": session_info("s0", waiting_for="ü"),
    },
    ensure_ascii=False,
).encode()


def signed(secret: str = "key", body: bytes = BODY, at: int = 1000) -> dict[str, str]:
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Polar-Signature": f"t={at},v1={digest}"}


def test_a_signed_body_passes() -> None:
    body = verify_callback("key", signed(), BODY, now=1000)
    assert body.event.seq == 5
    assert body.session is not None
    assert body.session.session_id == "s0"
    assert body.task is None
    verify_callback(b"key", signed(), BODY.decode(), now=1299)
    verify_callback("key", signed(), BODY, tolerance_seconds=None)


def test_one_of_several_signatures_is_enough() -> None:
    headers = signed()
    headers["Polar-Signature"] += ",v1=00ff"
    verify_callback("key", headers, BODY, now=1000)


@pytest.mark.parametrize(
    ("headers", "body", "now", "why"),
    [
        ({}, BODY, 1000, "no polar-signature"),
        (signed("other"), BODY, 1000, "does not match"),
        (signed(), BODY + b" ", 1000, "does not match"),
        (signed(), BODY, 1301, "301 seconds ago"),
        (signed(), BODY, 600, "clocks"),
        ({"polar-signature": "v1=abc"}, BODY, 1000, "no time"),
        ({"polar-signature": "t=1000"}, BODY, 1000, "does not match"),
        ({"polar-signature": "t=1000,v1=ü"}, BODY, 1000, "does not match"),
        ({"polar-signature": "t=²,v1=a"}, BODY, 1000, "no time"),
    ],
)
def test_others_are_refused(headers: dict[str, str], body: bytes, now: float, why: str) -> None:
    with pytest.raises(SignatureError, match=why):
        verify_callback("key", headers, body, now=now)


def test_a_signed_body_of_something_else_is_told_apart() -> None:
    with pytest.raises(UnexpectedAnswerError):
        verify_callback("key", signed(body=b"{}"), b"{}", now=1000)
