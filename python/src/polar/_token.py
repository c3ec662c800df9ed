"""The token of requests: the caller's, or that of the user's own servers on this machine."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Callable, Optional

import httpx


def authorised(token: Optional[str]) -> Callable[[httpx.Request], httpx.Request]:
    """What puts the token on each request: the one given, ``$POLAR_TOKEN``, or else the one
    that the user's own servers keep.

    That is looked up anew each time, as a server may start after the client. It is told to
    this machine only: another one may be somebody else's.
    """
    token = token if token is not None else os.environ.get("POLAR_TOKEN") or None

    def put(request: httpx.Request) -> httpx.Request:
        found = token
        if found is None and _is_on_this_machine(request.url.host):
            found = _kept()
        if found:
            request.headers["authorization"] = f"Bearer {found}"
        return request

    return put


def _kept() -> Optional[str]:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    try:
        return Path(base, "polar", "token").read_text().strip()
    except OSError:
        # Without a token the server says what is missing.
        return None


def _is_on_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
