"""A scripted server, for what a real one does only on a bad day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

import httpx
import pytest

from polar import PolarClient, RetryPolicy

Answer = Union[httpx.Response, Exception]


class ScriptedServer:
    """Gives prepared answers, one for each request, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[httpx.Request] = []

    def will(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Processes and clients find each other by the user's state folder; here by one of the
    tests' own.
    """
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        for name in ("POLAR_TOKEN", "POLAR_SERVER", "POLAR_STATE"):
            environment.delenv(name, raising=False)
        yield folder


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
def client(server: ScriptedServer) -> PolarClient:
    return PolarClient(
        "polar.test", retry=RetryPolicy(first_pause=0.0), transport=httpx.MockTransport(server)
    )


def task_info(task_id: str = "t1", status: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "status": status,
        "harness": "pi",
        "num_samples": 1,
        "sessions": {status: 1},
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        "metadata": {},
        **more,
    }


def session_info(session_id: str, task_id: str = "t1", **more: Any) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "task_id": task_id,
        "group_id": task_id,
        "sample_index": 0,
        "status": "completed",
        "attempts": [],
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        **more,
    }


def event(seq: int, kind: str, task_id: str = "t1", session_id: str = "") -> dict[str, Any]:
    found = {"seq": seq, "at": "2026-01-01T00:00:00Z", "kind": kind, "task_id": task_id, "data": {}}
    return {**found, "session_id": session_id} if session_id else found


def page(cursor: int, *events: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json={"events": list(events), "cursor": cursor})


def ok(body: Any) -> httpx.Response:
    return httpx.Response(200, json=body)
