"""The client against a real server without nodes."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from polar import (
    AsyncPolarClient,
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PolarClient,
    TaskRequest,
    WaitTimeoutError,
)
from tests.processes import Process, until
from tools.generate_models import MODELS, generate


class Server:
    """A rollout server that can crash and come back at the same address."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self._process = self._start("0")
        self.address = self._process.addresses["api"].removeprefix("http://")

    def _start(self, port: str) -> Process:
        return Process(
            "rollout-server",
            f"--port={port}",
            f"--state={self._folder}",
            *self._arguments,
            log=self._folder / "server.log",
            announces={"api": r"control API\s+(http://\S+)"},
        )

    def kill(self) -> None:
        self._process.kill()

    def start_again(self) -> None:
        self._process = self._start(self.address.rpartition(":")[2])

    def stop(self) -> None:
        self._process.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[PolarClient]:
    with PolarClient(server.address) as client:
        yield client


def task(task_id: str, **more: object) -> TaskRequest:
    fields = {"task_id": task_id, "instruction": "Fix it.", "harness": "pi", **more}
    return TaskRequest.model_validate(fields)


def test_the_models_are_those_of_the_server(server: Server) -> None:
    document = httpx.get(f"http://{server.address}/api/openapi.json").json()
    current = shape(MODELS.read_text(encoding="utf-8"))
    assert current == shape(generate(document)), (
        "src/polar/models.py is not what the server serves; "
        "run tools/generate_models.py with the URL of a running server"
    )


def shape(source: str) -> str:
    """Everything but layout and descriptions."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef)):
            node.body = [
                statement
                for statement in node.body
                if not (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                )
            ]
    return ast.dump(tree)


def test_submitting_again_returns_the_stored_task(client: PolarClient) -> None:
    first = client.submit(task("t1", num_samples=3, metadata={"step": 7}))
    assert first.task_id == "t1"
    assert first.status == "running"
    assert first.sessions == {"queued": 3}
    assert first.metadata == {"step": 7}
    assert client.submit(task("t1", num_samples=3, metadata={"step": 7})) == first
    with pytest.raises(ConflictError):
        client.submit(task("t1", num_samples=4))


def test_a_task_may_be_given_by_keywords_in_short_forms(client: PolarClient) -> None:
    info = client.submit(
        harness="pi", runtime="local", trajectory_strategy="per_request", instruction="Fix it."
    )
    assert client.task(info.task_id) == info


def test_every_wrong_field_is_told(client: PolarClient) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        client.submit(harness="no-such", num_samples=0, instruction="x")
    assert {problem.field for problem in caught.value.problems} == {"harness.name", "num_samples"}
    assert "for example" in str(caught.value)


def test_a_batch_is_stored_whole_or_not_at_all(client: PolarClient) -> None:
    with pytest.raises(InvalidRequestError):
        client.submit_batch([task("good"), task("bad", num_samples=0)])
    with pytest.raises(NotFoundError):
        client.task("good")
    stored = client.submit_batch([task("a"), task("b"), task("c")])
    assert [info.task_id for info in stored] == ["a", "b", "c"]
    assert [info.task_id for info in client.tasks()] == ["c", "b", "a"]
    assert list(client.tasks(status="completed")) == []
    assert len(list(client.tasks(harness="pi"))) == 3


def test_a_cancelled_task_ends_its_sessions_and_its_streams(client: PolarClient) -> None:
    client.submit_batch([task("t1", num_samples=2), task("t2")])
    assert client.cancel("t1").status == "cancelled"
    assert client.wait("t1", timeout=60).ended
    results = list(client.results("t1"))
    assert {result.session.session_id for result in results} == {"t1-s0", "t1-s1"}
    assert all(result.session.status == "cancelled" for result in results)
    assert all(result.trajectory is None for result in results)
    assert client.get_trajectories("t1") == []
    assert [session.status for session in client.sessions("t2")] == ["queued"]
    # From behind the last result there is nothing more.
    assert list(client.results("t1", after=results[-1].cursor)) == []
    assert len(list(client.results("t1", after=results[0].cursor))) == 1


def test_waiting_has_a_timeout(client: PolarClient) -> None:
    client.submit(task("t1"))
    with pytest.raises(WaitTimeoutError, match="queued"):
        client.wait("t1", timeout=0.1)


def test_only_what_has_ended_is_graded_again(client: PolarClient) -> None:
    client.submit(task("t1"))
    evaluator = {"type": "command", "command": "true"}
    for sessions, field in ((None, "sessions"), (["t1-s0"], "sessions[0]")):
        with pytest.raises(InvalidRequestError, match="has not ended") as caught:
            client.regrade("t1", sessions=sessions, evaluator=evaluator)
        assert [problem.field for problem in caught.value.problems] == [field]


def test_what_is_not_there_is_not_found(client: PolarClient) -> None:
    client.submit(task("t1"))
    for ask in (
        lambda: client.task("no"),
        lambda: client.cancel("no"),
        lambda: client.regrade("no"),
        lambda: client.sessions("no"),
        lambda: client.session("no"),
        lambda: client.get_trajectories("no"),
        lambda: client.trajectory("t1-s0"),
        lambda: client.calls("t1-s0"),
        lambda: client.logs("t1-s0", "stderr"),
    ):
        with pytest.raises(NotFoundError):
            ask()


def test_the_server_tells_of_itself(client: PolarClient) -> None:
    assert client.health()["status"] == "ok"
    assert client.nodes() == []


def test_the_users_own_server_is_found_with_its_token(server: Server) -> None:
    with PolarClient(server.address, token="") as client, pytest.raises(AuthenticationError):
        client.tasks().__next__()
    with PolarClient(server.address) as client:
        assert list(client.tasks()) == []
    server.kill()
    server.start_again()
    with PolarClient(server.address) as client:
        assert list(client.tasks()) == []


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    server = Server(tmp_path, "--token=secret")
    try:
        with (
            PolarClient(server.address, token="wrong") as client,
            pytest.raises(AuthenticationError),
        ):
            client.submit(task("t1"))
        with PolarClient(server.address, token="secret") as client:
            assert client.submit(task("t1")).task_id == "t1"
    finally:
        server.stop()


def test_promise_5_a_stream_gets_each_result_once_across_a_crash_of_the_server(
    server: Server, client: PolarClient
) -> None:
    client.submit_batch([task("t1"), task("t2"), task("t3")])
    got: list[str] = []

    def read() -> None:
        with PolarClient(server.address) as reader:
            got.extend(result.session.session_id for result in reader.results("t1", "t2", "t3"))

    reading = threading.Thread(target=read)
    reading.start()
    client.cancel("t1")
    until(lambda: got == ["t1-s0"], lambda: got)
    server.kill()
    server.start_again()
    client.cancel("t2")
    client.cancel("t3")
    reading.join(timeout=60)
    assert got == ["t1-s0", "t2-s0", "t3-s0"]


def test_the_async_client_does_the_same(server: Server) -> None:
    async def run() -> list[str]:
        async with AsyncPolarClient(server.address) as client:
            await client.submit_batch([task("t1"), task("t2")])
            waiting = asyncio.create_task(client.wait("t1", timeout=60))
            assert [info.task_id async for info in client.tasks()] == ["t2", "t1"]
            for task_id in ("t1", "t2"):
                await client.cancel(task_id)
            assert (await waiting).ended
            return [r.session.session_id async for r in client.results("t1", "t2")]

    assert asyncio.run(run()) == ["t1-s0", "t2-s0"]
