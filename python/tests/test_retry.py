from __future__ import annotations

import asyncio
import random
from typing import Optional

import httpx
import pytest

from polar import (
    AsyncPolarClient,
    ConflictError,
    PolarClient,
    RetryPolicy,
    ServerError,
    ServerUnreachableError,
)
from polar.retry import Retries, retry_after
from tests.conftest import Answer, ScriptedServer, ok, task_info


def away() -> list[Answer]:
    return [
        httpx.ConnectError("refused"),
        httpx.RemoteProtocolError("closed without an answer"),
        httpx.ReadTimeout("too slow"),
        httpx.Response(503, text="restarting"),
        httpx.Response(429, headers={"retry-after": "0"}),
    ]


def test_a_restart_of_the_server_is_only_a_pause(
    server: ScriptedServer, client: PolarClient
) -> None:
    server.will(*away(), ok(task_info()))
    assert client.task("t1").task_id == "t1"
    assert server.answers == []


def test_the_async_client_tries_again_too(server: ScriptedServer) -> None:
    async def task_id() -> str:
        async with AsyncPolarClient(
            "polar.test", retry=RetryPolicy(first_pause=0.0), transport=httpx.MockTransport(server)
        ) as client:
            return (await client.task("t1")).task_id

    server.will(*away(), ok(task_info()))
    assert asyncio.run(task_id()) == "t1"


def test_a_submission_whose_answer_was_lost_is_sent_again_as_the_same_task(
    server: ScriptedServer, client: PolarClient
) -> None:
    server.will(httpx.ReadError("reset"), ok(task_info()))
    client.submit(harness="pi", instruction="Fix it.")
    first, second = server.bodies()
    assert first == second
    assert first["task_id"].startswith("task-")


def test_tasks_of_a_batch_get_an_id_each(server: ScriptedServer, client: PolarClient) -> None:
    server.will(ok([task_info("a"), task_info("b")]))
    client.submit_batch([{"harness": "pi"}, {"harness": "pi", "task_id": "mine"}])
    minted, given = (task["task_id"] for task in server.bodies()[0])
    assert given == "mine"
    assert minted not in ("", "mine")


def test_refusals_are_not_tried_again(server: ScriptedServer, client: PolarClient) -> None:
    server.will(httpx.Response(409, json={"error": {"message": "another task"}}))
    with pytest.raises(ConflictError, match="another task"):
        client.submit(harness="pi")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.ConnectError("refused"), ServerUnreachableError),
        (httpx.Response(502, text="<html>bad gateway</html>"), ServerError),
    ],
)
def test_gives_up_when_the_time_is_over(
    server: ScriptedServer, answer: Answer, error: type[Exception]
) -> None:
    client = PolarClient(
        "polar.test", retry=RetryPolicy(seconds=0), transport=httpx.MockTransport(server)
    )
    server.will(answer)
    with pytest.raises(error):
        client.task("t1")


def test_an_address_where_nothing_ever_answered_is_soon_given_up(server: ScriptedServer) -> None:
    policy = RetryPolicy(first_pause=0, connect_seconds=0)
    client = PolarClient("polar.test", retry=policy, transport=httpx.MockTransport(server))
    server.will(httpx.ConnectError("refused"))
    with pytest.raises(ServerUnreachableError, match="and none ever"):
        client.task("t1")
    server.will(ok(task_info()), httpx.ConnectError("refused"), ok(task_info()))
    client.task("t1")
    assert client.task("t1").task_id == "t1", "a server that was there is waited for"
    assert server.answers == []


def test_the_async_client_gives_such_an_address_up_too(server: ScriptedServer) -> None:
    async def task() -> None:
        policy = RetryPolicy(first_pause=0, connect_seconds=0)
        async with AsyncPolarClient(
            "polar.test", retry=policy, transport=httpx.MockTransport(server)
        ) as client:
            await client.task("t1")

    server.will(httpx.ConnectError("refused"))
    with pytest.raises(ServerUnreachableError, match="and none ever"):
        asyncio.run(task())


def test_how_long_depends_on_whether_the_server_was_ever_reached() -> None:
    policy = RetryPolicy(seconds=60, first_pause=1, connect_seconds=5)
    retries = Retries(policy, random.Random(1))
    assert retries.pause(100, reached=False) is not None
    assert retries.pause(105, reached=False) is None
    assert retries.pause(105, reached=True) is not None


def test_pauses_grow_and_end() -> None:
    policy = RetryPolicy(seconds=60, first_pause=1, longest_pause=8)
    retries = Retries(policy, random.Random(1))
    now, pauses = 100.0, []
    while (pause := retries.pause(now)) is not None:
        pauses.append(pause)
        now += pause
    for pause, most in zip(pauses, [1, 2, 4, 8, 8]):
        assert most / 2 <= pause <= most
    assert 60 - 8 <= now - 100 < 60


def test_the_servers_own_wish_counts() -> None:
    retries = Retries(RetryPolicy(seconds=60), random.Random(1))
    assert retries.pause(0, retry_after=30) == 30
    assert retries.pause(30, retry_after=31) is None


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        (None, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_retry_after_header(header: Optional[str], seconds: Optional[float]) -> None:
    assert retry_after(header) == seconds
