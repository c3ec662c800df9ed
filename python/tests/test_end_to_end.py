"""A trainer's view of real sessions: server, node, engine simulator and an agent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Optional

import numpy as np
import pytest

from polar import (
    AsyncPolarClient,
    Callback,
    CallbackBody,
    CommandEvaluator,
    HarnessSpec,
    PolarClient,
    SamplingPins,
    TaskRequest,
    WriteFile,
    verify_callback,
)
from polar.models import RuntimeSpec
from tests.processes import served, until


def agent() -> None:
    """An agent of two turns. Its source runs in the sandbox."""
    import json
    import os
    import urllib.request

    messages = [{"role": "user", "content": "Say the word."}]
    for _ in range(2):
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            data=json.dumps({"model": "m", "messages": messages}).encode(),
            headers={
                "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
                "content-type": "application/json",
            },
        )
        with urllib.request.urlopen(request) as response:
            messages.append(json.load(response)["choices"][0]["message"])
        messages.append({"role": "user", "content": "Once more."})
    with open("answer.txt", "w") as answer:
        answer.write(str(messages[1]["content"]))
    print("the agent is done")


AGENT = f"{inspect.getsource(agent)}\nagent()\n"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolarClient]:
    folder = tmp_path_factory.mktemp("polar")
    with served(folder) as address, PolarClient(address) as client:
        yield client


def task(task_id: str, callback: Optional[Callback] = None, samples: int = 2) -> TaskRequest:
    return TaskRequest(
        task_id=task_id,
        instruction="Say the word.",
        harness=HarnessSpec(name="shell", command="python3 agent.py"),
        runtime=RuntimeSpec(type="local", prepare=[WriteFile(path="agent.py", content=AGENT)]),
        evaluator=CommandEvaluator(command="grep -q 'You said: Say the word.' answer.txt"),
        num_samples=samples,
        sampling=SamplingPins(temperature=0.5),
        metadata={"step": 3},
        callback=callback,
    )


def test_sessions_come_with_reward_trajectory_calls_and_logs(client: PolarClient) -> None:
    submitted = client.submit(task("t1"))
    results = list(client.results("t1"))
    assert [result.session.status for result in results] == ["completed"] * 2
    for result in results:
        session, trajectory = result.session, result.trajectory
        assert session.reward == 1.0
        assert session.report is not None
        assert session.report.calls == 2
        assert trajectory is not None
        assert trajectory.tokens.is_conserved
        assert trajectory.tokens == session.report.tokens
        assert sum(sum(trace.loss_mask) for trace in trajectory.traces) == trajectory.tokens.trained
        for trace in trajectory.traces:
            assert len(trace.response_ids) == len(trace.loss_mask) == len(trace.response_logprobs)
            assert trace.token_ids[: len(trace.prompt_ids)] == trace.prompt_ids
            assert trace.sampling["temperature"] == 0.5
        assert trajectory == client.trajectory(session.session_id)
        assert len(client.calls(session.session_id)) == 2
        assert "the agent is done" in client.logs(session.session_id)
        assert "answer.txt" in client.logs(session.session_id, "diff")
    ended = client.wait("t1", timeout=60)
    assert ended.status == "completed"
    assert ended.mean_reward == 1.0
    assert ended.metadata == submitted.metadata
    expected = sorted((r.trajectory for r in results if r.trajectory), key=lambda t: t.session_id)
    assert client.get_trajectories("t1") == expected
    assert client.get_trajectories("t1", "failed", "timed_out") == []
    [node] = client.nodes()
    assert node.alive


def test_callbacks_are_signed(client: PolarClient) -> None:
    taken: list[CallbackBody] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append(verify_callback("key", dict(self.headers), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}/"
        client.submit(task("t2", Callback(url=url, secret="key"), samples=1))
        client.wait("t2", timeout=60)
        until(lambda: len(taken) >= 2, lambda: taken)
        receiver.shutdown()
    by_kind = {body.event.kind: body for body in taken}
    assert by_kind["session.ended"].session is not None
    assert by_kind["session.ended"].session.reward == 1.0
    assert by_kind["task.ended"].task is not None
    assert by_kind["task.ended"].task.status == "completed"


@pytest.mark.parametrize("strategy", ["prefix_merging", "prefix_tree"])
def test_a_batch_comes_with_the_tokens_of_its_traces(client: PolarClient, strategy: str) -> None:
    wanted = task(f"batch-{strategy}").model_copy(
        update={"queue": strategy, "trajectory_strategy": strategy}
    )
    client.submit(wanted)
    answer = client.next_batch(0, queue=strategy, wait_seconds=50)
    assert answer.batch is not None
    [group] = answer.batch.groups
    assert (group.mean_reward, [session.usable for session in group.sessions]) == (1.0, [True] * 2)
    assert client.batch(1, queue=strategy) == answer.batch
    trajectories = client.batch_trajectories(1, queue=strategy)
    assert trajectories == client.get_trajectories(wanted.task_id or "")
    found = list(client.batch_arrays(1, queue=strategy))
    assert [arrays.session_id for arrays in found] == [s.session_id for s in group.sessions]
    for arrays, trajectory in zip(found, trajectories):
        assert arrays.loss_mask.sum() == trajectory.tokens.trained
        assert arrays.layout == ("tree" if trajectory.tree else "traces")
        for index, trace in enumerate(trajectory.traces):
            tokens = arrays.sequence(index)
            prompt = arrays.prompt_tokens[index]
            assert arrays.ids[tokens].tolist() == trace.token_ids
            assert arrays.loss_mask[tokens][prompt:].tolist() == trace.loss_mask
            expected = [float("nan") if p is None else p for p in trace.response_logprobs]
            np.testing.assert_array_equal(
                arrays.logprobs[tokens][prompt:], np.array(expected, dtype=np.float32)
            )
    assert {queue.queue: queue.last for queue in client.queues()}[strategy] == 1


def test_the_async_client_reads_batches_alike(client: PolarClient) -> None:
    async def pull() -> list[str]:
        address = str(client._http.base_url)
        async with AsyncPolarClient(address) as other:
            answer = await other.next_batch(0, queue="async", wait_seconds=50)
            assert answer.batch is not None
            arrays = other.batch_arrays(answer.batch.number, queue="async")
            return [found.session_id async for found in arrays]

    client.submit(task("async").model_copy(update={"queue": "async"}))
    assert asyncio.run(pull()) == ["async-s0", "async-s1"]
