from __future__ import annotations

from pathlib import Path
from typing import Optional

import httpx
import pytest

from polar import (
    AuthenticationError,
    InvalidRequestError,
    NotFoundError,
    PolarClient,
    PolarError,
    UnexpectedAnswerError,
)
from tests.conftest import ScriptedServer

PROBLEMS = {
    "error": {
        "code": "invalid",
        "message": "2 fields are wrong",
        "problems": [
            {"field": "harness.name", "problem": 'no adapter is called "x"', "example": '"pi"'},
            {"field": "num_samples", "problem": "must be at least 1", "example": "8"},
        ],
    }
}


def test_wrong_fields_are_told_one_by_one(server: ScriptedServer, client: PolarClient) -> None:
    server.will(httpx.Response(422, json=PROBLEMS))
    with pytest.raises(InvalidRequestError) as caught:
        client.submit(harness="x", num_samples=0)
    error = caught.value
    assert [problem.field for problem in error.problems] == ["harness.name", "num_samples"]
    assert error.code == "invalid"
    assert str(error).splitlines() == [
        "submit a task: 2 fields are wrong (HTTP 422)",
        '  harness.name: no adapter is called "x"',
        '    for example: "pi"',
        "  num_samples: must be at least 1",
        "    for example: 8",
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, AuthenticationError), (403, AuthenticationError), (404, NotFoundError)],
)
def test_statuses_have_their_classes(
    server: ScriptedServer, client: PolarClient, status: int, kind: type[PolarError]
) -> None:
    server.will(httpx.Response(status, text="no"))
    with pytest.raises(kind, match="get task t1: no"):
        client.task("t1")


@pytest.mark.parametrize("body", ["<html>hello</html>", "[]", "{}", '{"task_id": 1}'])
def test_an_answer_of_something_else_is_told_apart(
    server: ScriptedServer, client: PolarClient, body: str
) -> None:
    server.will(httpx.Response(200, text=body))
    with pytest.raises(UnexpectedAnswerError, match="is it a Polar server"):
        client.task("t1")


def test_a_list_of_something_else_is_told_apart(
    server: ScriptedServer, client: PolarClient
) -> None:
    for body in ("{}", "[]", "3", '{"sessions": 3}'):
        server.will(httpx.Response(200, text=body))
        with pytest.raises(UnexpectedAnswerError):
            client.sessions("t1")


@pytest.mark.parametrize("body", ['"text"', "[1]", '{"error": "text"}', '{"problems": 3}'])
def test_any_error_body_is_survived(server: ScriptedServer, client: PolarClient, body: str) -> None:
    server.will(httpx.Response(400, text=body))
    with pytest.raises(InvalidRequestError):
        client.task("t1")


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("localhost:50051", "http://localhost:50051/api/tasks/a%2Fb"),
        ("https://polar.example.org/base/", "https://polar.example.org/base/api/tasks/a%2Fb"),
        ("[::1]:50051", "http://[::1]:50051/api/tasks/a%2Fb"),
    ],
)
def test_addresses(server: ScriptedServer, address: str, url: str) -> None:
    client = PolarClient(address, transport=httpx.MockTransport(server))
    server.will(httpx.Response(404))
    with pytest.raises(NotFoundError):
        client.task("a/b")
    assert str(server.requests[0].url) == url


@pytest.mark.parametrize("address", ["", "ftp://x", "http://", "local host"])
def test_bad_addresses_are_refused_at_once(address: str) -> None:
    with pytest.raises(PolarError, match="is not an address"):
        PolarClient(address)


def test_the_token_is_sent(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_TOKEN", "from-env")
    for token, expected in [(None, "Bearer from-env"), ("mine", "Bearer mine")]:
        client = PolarClient("x", token=token, transport=httpx.MockTransport(server))
        server.will(httpx.Response(404))
        with pytest.raises(NotFoundError):
            client.task("t")
        assert server.requests[-1].headers["authorization"] == expected


def test_promise_9_only_this_machine_is_told_the_users_own_token(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def sent_to(address: str, token: Optional[str] = None) -> Optional[str]:
        client = PolarClient(address, token=token, transport=httpx.MockTransport(server))
        server.will(httpx.Response(404))
        with pytest.raises(NotFoundError):
            client.task("t")
        sent: Optional[str] = server.requests[-1].headers.get("authorization")
        return sent

    assert sent_to("localhost:1") is None
    (tmp_path / "polar").mkdir()
    (tmp_path / "polar" / "token").write_text("kept\n")
    for address in ("localhost:1", "127.0.0.1", "http://[::1]:1"):
        assert sent_to(address) == "Bearer kept"
        assert sent_to(address, token="mine") == "Bearer mine"
    for address in ("elsewhere:1", "10.0.0.1", "localhost.elsewhere"):
        assert sent_to(address) is None


def test_the_address_may_be_in_the_environment(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLAR_SERVER", raising=False)
    for value, host in [(None, "localhost:50051"), ("elsewhere:7", "elsewhere:7")]:
        if value is not None:
            monkeypatch.setenv("POLAR_SERVER", value)
        client = PolarClient(transport=httpx.MockTransport(server))
        server.will(httpx.Response(404))
        with pytest.raises(NotFoundError):
            client.task("t")
        assert server.requests[-1].url.netloc.decode() == host
