"""A client that knows the published Polar's schema and nothing of ours, against a real server.

The schema is written out as its documentation has it, and reads strictly: a field of another
shape fails here as it would in a client written for it.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, Literal, Optional

import httpx
import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tests.processes import DEADLINE_SECONDS, served


class Trace(BaseModel):
    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    prompt_messages: list[dict[str, Any]]
    response_messages: list[dict[str, Any]]
    tools: Optional[list[dict[str, Any]]] = None
    finish_reason: Optional[str] = None
    response_logprobs: Optional[list[float]] = None
    reward: Optional[float] = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def is_aligned(self) -> Trace:
        assert len(self.loss_mask) == len(self.response_ids)
        assert set(self.loss_mask) <= {0, 1}
        if self.response_logprobs is not None:
            assert len(self.response_logprobs) == len(self.response_ids)
        return self


class Trajectory(BaseModel):
    status: Literal["COMPLETED", "TIMEOUT", "ERROR"]
    metadata: dict[str, Any]
    traces: list[Trace]
    error: Optional[str] = None


class SessionTiming(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    register_to_init_queue_ms: int
    init_ms: int
    run_ms: int
    postrun_ms: int


class SessionResult(BaseModel):
    session_id: str
    task_id: str
    status: Literal["COMPLETED", "TIMEOUT", "ERROR"]
    trajectory: Trajectory
    timing: SessionTiming
    node_id: Optional[str] = None
    error: Optional[str] = None
    metadata: dict[str, Any]


class TaskResult(BaseModel):
    task_id: str
    status: Literal["running", "cancelling", "cancelled", "completed", "failed"]
    results: list[SessionResult]
    result_paths: list[str]


class TaskStatus(TaskResult):
    total_sessions: int
    completed_sessions: int


def agent() -> None:
    """Asks twice. Its source is the task's command."""
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


COMMAND = f"python3 - <<'AGENT'\n{inspect.getsource(agent)}\nagent()\nAGENT"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("published")
    with served(folder) as address:
        token = (Path(os.environ["XDG_STATE_HOME"]) / "polar" / "token").read_text().strip()
        headers = {"X-Polar-Control-Token": token}
        with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
            yield client


def task(task_id: str, **more: Any) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "instruction": "Say the word.",
        "num_samples": 2,
        "timeout_seconds": 60,
        "agent": {"harness": "shell", "custom_shell": {"command": COMMAND}},
        "builder": {"strategy": "prefix_merging"},
        "evaluator": {"strategy": "session_completed"},
        "metadata": {"group_id": 3},
        **more,
    }


def submit(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post("/rollout/task/submit", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"task_id": body["task_id"], "status": "running"}


def poll(http: httpx.Client, task_id: str) -> TaskStatus:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        answer = http.get(f"/rollout/task/{task_id}")
        answer.raise_for_status()
        status = TaskStatus.model_validate_json(answer.content)
        if status.status in ("completed", "failed", "cancelled"):
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.05)


def check(result: SessionResult) -> None:
    assert result.status == result.trajectory.status == "COMPLETED"
    assert result.metadata == {"group_id": 3}
    traces = result.trajectory.traces
    assert traces[0].prompt_messages == [{"role": "user", "content": "Say the word."}]
    assert sum(sum(trace.loss_mask) for trace in traces) > 2
    for trace in traces:
        assert trace.reward == 1.0
        assert trace.response_logprobs is not None
        for logprob, mask in zip(trace.response_logprobs, trace.loss_mask):
            assert (logprob < 0.0) == (mask == 1)


def test_a_task_is_submitted_and_polled(http: httpx.Client) -> None:
    submit(http, task("polled"))
    status = poll(http, "polled")
    assert status.status == "completed"
    assert (status.total_sessions, status.completed_sessions) == (2, 2)
    for result in status.results:
        check(result)
    assert http.get("/rollout/status").json()["tasks"]["polled"] == "completed"
    assert http.get("/health").json() == {"status": "ok", "nodes": 1}


def test_the_callback_brings_the_whole_result(http: httpx.Client) -> None:
    told: Queue[TaskResult] = Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.put(TaskResult.model_validate_json(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}/callback/task_result"
        submit(http, task("told", callback_url=url))
        result = told.get(timeout=DEADLINE_SECONDS)
        receiver.shutdown()
    assert (result.task_id, result.status) == ("told", "completed")
    assert len(result.results) == 2
    for session in result.results:
        check(session)
    # The same as is there for who polls.
    polled = poll(http, "told")
    assert polled.model_dump(exclude={"total_sessions", "completed_sessions"}) == (
        result.model_dump()
    )


def test_an_agent_that_fails_is_an_error_without_reward_and_the_task_completes(
    http: httpx.Client,
) -> None:
    failing = {"harness": "shell", "custom_shell": {"command": "exit 3"}}
    submit(http, task("failing", num_samples=1, agent=failing))
    status = poll(http, "failing")
    assert status.status == "completed"
    [result] = status.results
    assert result.status == "ERROR"
    assert result.error
    assert result.trajectory.metadata["evaluation"]["outcome_reward"] == 0.0
