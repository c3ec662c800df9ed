"""What the clients' connection pools rely on."""

from __future__ import annotations

import http.client
import select
import socket
from urllib.parse import urlsplit

import pytest

from deployment import Session

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}'


@pytest.mark.parametrize(
    ("path", "secret", "status"),
    [
        ("/v1/chat/completions", "wrong", 401),
        ("/v1/messages", "wrong", 401),
        ("/v1/embeddings", None, 404),
    ],
)
def test_a_refused_request_leaves_its_connection_usable(
    session: Session, path: str, secret: str | None, status: int
) -> None:
    """Clients send headers and body apart and use the connection again after any answer."""
    address = urlsplit(session.proxy)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        for key, expected in ((secret or session.secret, status), (session.secret, None)):
            target = path if expected else "/v1/chat/completions"
            connection.sendall(
                f"POST {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
            )
            # A server that answers without the body has its chance to do so.
            select.select([connection], [], [], 0.5)
            connection.sendall(BODY)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            answer.read()
            assert answer.status == (expected or 200)
