from __future__ import annotations

import asyncio

import httpx
import pytest

from polar import AsyncPolarClient, PolarClient, RetryPolicy, ServerUnreachableError
from tests.conftest import ScriptedServer, event, ok, page, session_info, task_info


def gone() -> httpx.Response:
    return httpx.Response(404, json={"error": {"code": "not_found", "message": "none"}})


def test_each_end_comes_once_and_the_cursor_follows(
    server: ScriptedServer, client: PolarClient
) -> None:
    server.will(
        page(3, event(1, "task.created"), event(3, "session.ended", session_id="s0")),
        ok(session_info("s0")),
        page(9, event(7, "session.ended", session_id="s1"), event(8, "task.ended")),
        ok(session_info("s1")),
    )
    stream = client.results("t1", after=0, trajectories=False)
    results = list(stream)
    assert [(r.session.session_id, r.cursor) for r in results] == [("s0", 3), ("s1", 7)]
    assert stream.cursor == 9
    assert [r.url.params["after"] for r in server.requests if "events" in r.url.path] == ["0", "3"]


def test_the_cursor_stays_behind_results_that_were_not_handed_out(
    server: ScriptedServer, client: PolarClient
) -> None:
    ends = [event(n, "session.ended", session_id=f"s{n}") for n in (1, 2, 3)]
    server.will(page(3, *ends), ok(session_info("s1")))
    stream = client.results(trajectories=False)
    assert next(stream).cursor == 1
    assert stream.cursor == 1


def test_an_error_leaves_the_stream_where_it_was(server: ScriptedServer) -> None:
    client = PolarClient(
        "polar.test", retry=RetryPolicy(seconds=0), transport=httpx.MockTransport(server)
    )
    stream = client.results("t1", trajectories=False)
    server.will(
        page(1, event(1, "session.ended", session_id="s0")),
        httpx.ConnectError("refused"),
        ok(session_info("s0")),
        httpx.ConnectError("refused"),
        page(2, event(2, "task.ended")),
    )
    with pytest.raises(ServerUnreachableError):
        next(stream)
    assert stream.cursor == 0
    assert next(stream).session.session_id == "s0"
    with pytest.raises(ServerUnreachableError):
        next(stream)
    assert list(stream) == []


def test_a_task_that_ended_before_the_cursor_ends_the_stream(
    server: ScriptedServer, client: PolarClient
) -> None:
    server.will(page(50), ok(task_info(status="completed")), page(50))
    assert list(client.results("t1", after=50)) == []
    first, _, last = server.requests
    assert float(first.url.params["wait_seconds"]) > 0
    assert float(last.url.params["wait_seconds"]) == 0


def test_an_end_between_the_idle_page_and_the_look_at_the_task_is_not_missed(
    server: ScriptedServer, client: PolarClient
) -> None:
    server.will(
        page(50),
        ok(task_info(status="completed")),
        page(52, event(51, "session.ended", session_id="s0"), event(52, "task.ended")),
        ok(session_info("s0")),
    )
    assert len(list(client.results("t1", after=50, trajectories=False))) == 1


def test_the_last_look_reads_page_after_page(server: ScriptedServer, client: PolarClient) -> None:
    server.will(
        page(50),
        ok(task_info(status="completed")),
        page(51, event(51, "session.ended", session_id="s0")),
        ok(session_info("s0")),
        page(52, event(52, "session.ended", session_id="s1")),
        ok(session_info("s1")),
        page(52),
    )
    assert len(list(client.results("t1", after=50, trajectories=False))) == 2


def test_ends_of_other_tasks_are_passed_over(server: ScriptedServer, client: PolarClient) -> None:
    server.will(
        page(
            4,
            event(1, "session.ended", "other", "x"),
            event(2, "task.ended", "other"),
            event(3, "task.ended", "t1"),
            event(4, "task.ended", "t2"),
        )
    )
    assert list(client.results("t1", "t2")) == []


def test_a_session_without_a_trajectory_still_comes(
    server: ScriptedServer, client: PolarClient
) -> None:
    server.will(
        page(2, event(1, "session.ended", session_id="s0"), event(2, "task.ended")),
        ok(session_info("s0", status="failed")),
        gone(),
    )
    [result] = client.results("t1")
    assert result.trajectory is None
    assert result.session.status == "failed"


def test_the_async_stream_reads_the_same(server: ScriptedServer) -> None:
    server.will(
        page(1, event(1, "session.ended", session_id="s0")),
        ok(session_info("s0")),
        gone(),
        page(2),
        ok(task_info(status="completed")),
        page(2),
    )

    async def read() -> list[int]:
        async with AsyncPolarClient("x", transport=httpx.MockTransport(server)) as client:
            return [result.cursor async for result in client.results("t1")]

    assert asyncio.run(read()) == [1]


def test_wait_returns_the_ended_task(server: ScriptedServer, client: PolarClient) -> None:
    server.will(
        ok(task_info()), page(3), ok(task_info()), page(9), ok(task_info(status="completed"))
    )
    assert client.wait("t1").ended
    held = [r.url.params for r in server.requests if "events" in r.url.path]
    assert [params["after"] for params in held] == ["0", "3"]
    assert {params["task_id"] for params in held} == {"t1"}


def test_wait_ends_with_its_timeout(server: ScriptedServer, client: PolarClient) -> None:
    server.will(ok(task_info()))
    with pytest.raises(TimeoutError, match="running"):
        client.wait("t1", timeout=0)


def test_tasks_walks_all_pages(server: ScriptedServer, client: PolarClient) -> None:
    server.will(
        ok({"tasks": [task_info("c"), task_info("b")], "next_before": 7}),
        ok({"tasks": [task_info("a")]}),
    )
    assert [task.task_id for task in client.tasks(status="running")] == ["c", "b", "a"]
    assert dict(server.requests[1].url.params) == {"status": "running", "before": "7"}
