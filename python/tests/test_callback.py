from __future__ import annotations

import hashlib
import hmac

import pytest

from polar import SignatureError, verify_callback

BODY = '{"session_id": "s0", "note": "ü"}'.encode()


def signed(secret: str = "key", body: bytes = BODY, at: int = 1000) -> dict[str, str]:
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Polar-Signature": f"t={at},v1={digest}"}


def test_a_signed_body_passes() -> None:
    verify_callback("key", signed(), BODY, now=1000)
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
