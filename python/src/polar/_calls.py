"""The server's HTTP API as values: what each request says, and how its answer is read.

Does no IO. Both clients carry these out, so that a path or a shape is written once.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Callable, Generic, Optional, TypeVar, Union
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from polar.errors import PolarError, UnexpectedAnswerError, api_error
from polar.models import (
    Batch,
    BatchAnswer,
    CallSummary,
    EventPage,
    NodeEngines,
    NodeSeen,
    QueueInfo,
    RegradeList,
    SessionInfo,
    TaskInfo,
    TaskPage,
    TaskRequest,
    Trajectory,
    WeightUpdate,
    WeightUpdateList,
)

T = TypeVar("T")

ENGINE_SECONDS = 300.0
"""Longest that a node takes for a change of its engines: one that comes is checked and gets the
weights that all have."""

TaskLike = Union[TaskRequest, Mapping[str, Any]]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request of the API."""

    what: str
    """What it does, for messages: ``submit a task``."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    content: Optional[bytes] = None
    held_seconds: float = 0.0
    """How long the server may hold the request open, beyond the usual timeout."""

    def request(self, timeout: float) -> dict[str, Any]:
        """The arguments of httpx's ``request``."""
        headers = {"content-type": "application/json"} if self.content is not None else {}
        return {
            "method": self.method,
            "url": self.path,
            "params": self.params,
            "content": self.content,
            "headers": headers,
            "timeout": timeout + self.held_seconds,
        }

    def unreachable(self, error: httpx.TransportError, *, reached: bool) -> str:
        """The message when no answer came."""
        reason = str(error) or type(error).__name__
        url = error.request.url.copy_with(query=None)
        if reached:
            return (
                f"{self.what}: no answer from {url} any more ({reason}); see what ended the server"
            )
        return (
            f"{self.what}: no answer from {url} ({reason}), and none ever; is the server running "
            "and the address right?"
        )

    def checked(self, response: httpx.Response) -> T:
        """The answer, or the exception that it stands for."""
        if not response.is_success:
            raise api_error(response.status_code, _body(response), self.what)
        try:
            return self.read(response)
        except (ValidationError, ValueError) as error:
            raise UnexpectedAnswerError(
                f"{self.what}: the answer of {response.url} is not understood; is it a Polar "
                f"server, and is this package as new as the server? {error}"
            ) from error


def base_url(address: Optional[str]) -> str:
    """``localhost:50051`` or a URL, as the URL that paths are put behind."""
    if address is None:
        address = os.environ.get("POLAR_SERVER") or "localhost:50051"
    text = address.strip()
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host or " " in text:
        raise PolarError(
            f"{address!r} is not an address; give host:port or a URL, "
            "such as 'localhost:50051' or 'https://polar.example.org'"
        )
    return str(url).rstrip("/")


def submit(task: Optional[TaskLike], fields: Mapping[str, Any]) -> Call[TaskInfo]:
    """One task, given as a model, a mapping or keyword arguments."""
    content = json.dumps(_named(task, fields)).encode()
    return Call("submit a task", "POST", "/api/tasks", _model(TaskInfo), content=content)


def submit_batch(tasks: Iterable[TaskLike]) -> Call[list[TaskInfo]]:
    content = json.dumps([_named(task, {}) for task in tasks]).encode()
    return Call("submit tasks", "POST", "/api/tasks", _list(TaskInfo), content=content)


def task(task_id: str) -> Call[TaskInfo]:
    return Call(f"get task {task_id}", "GET", f"/api/tasks/{_part(task_id)}", _model(TaskInfo))


def tasks(status: Optional[str], harness: Optional[str], before: Optional[int]) -> Call[TaskPage]:
    """One page of tasks, newest first."""
    query = {"status": status, "harness": harness, "before": before}
    params = {key: value for key, value in query.items() if value is not None}
    return Call("list tasks", "GET", "/api/tasks", _model(TaskPage), params)


def cancel(task_id: str) -> Call[TaskInfo]:
    path = f"/api/tasks/{_part(task_id)}"
    return Call(f"cancel task {task_id}", "DELETE", path, _model(TaskInfo))


def regrade(
    task_id: str, session_ids: Optional[Sequence[str]], evaluator: Optional[Mapping[str, Any]]
) -> Call[RegradeList]:
    body: dict[str, Any] = {}
    if session_ids is not None:
        body["sessions"] = list(session_ids)
    if evaluator is not None:
        body["evaluator"] = dict(evaluator)
    path = f"/api/tasks/{_part(task_id)}/regrade"
    content = json.dumps(body).encode()
    return Call(f"grade {task_id} again", "POST", path, _model(RegradeList), content=content)


def sessions(task_id: str) -> Call[list[SessionInfo]]:
    path = f"/api/tasks/{_part(task_id)}/sessions"
    read = _member("sessions", SessionInfo)
    return Call(f"get the sessions of {task_id}", "GET", path, read)


def trajectories(task_id: str, statuses: Sequence[str]) -> Call[list[Trajectory]]:
    path = f"/api/tasks/{_part(task_id)}/trajectories"
    params = {"status": ",".join(statuses)} if statuses else {}
    return Call(f"get the trajectories of {task_id}", "GET", path, _list(Trajectory), params)


def session(session_id: str) -> Call[SessionInfo]:
    path = f"/api/sessions/{_part(session_id)}"
    return Call(f"get session {session_id}", "GET", path, _model(SessionInfo))


def trajectory(session_id: str, attempt: Optional[int]) -> Call[Trajectory]:
    path = f"/api/sessions/{_part(session_id)}/trajectory"
    what = f"get the trajectory of {session_id}"
    return Call(what, "GET", path, _model(Trajectory), _attempt(attempt))


def calls(session_id: str, attempt: Optional[int]) -> Call[list[CallSummary]]:
    path = f"/api/sessions/{_part(session_id)}/calls"
    what = f"get the calls of {session_id}"
    return Call(what, "GET", path, _list(CallSummary), _attempt(attempt))


def logs(session_id: str, stream: str, attempt: Optional[int]) -> Call[str]:
    path = f"/api/sessions/{_part(session_id)}/logs"
    params = {"stream": stream, **_attempt(attempt)}
    return Call(f"get the {stream} of {session_id}", "GET", path, _text, params)


def events(
    after: int,
    wait_seconds: float = 0.0,
    task_id: Optional[str] = None,
    kinds: Sequence[str] = (),
) -> Call[EventPage]:
    params: dict[str, Any] = {"after": after, "wait_seconds": wait_seconds}
    if task_id is not None:
        params["task_id"] = task_id
    if kinds:
        params["kinds"] = ",".join(kinds)
    read = _model(EventPage)
    return Call("read events", "GET", "/api/events", read, params, held_seconds=wait_seconds)


def next_batch(after: int, wait_seconds: float, fields: Mapping[str, Any]) -> Call[BatchAnswer]:
    body = {"after": after, "wait_seconds": wait_seconds, **fields}
    content = json.dumps({key: value for key, value in body.items() if value is not None}).encode()
    return Call(
        "ask for a batch",
        "POST",
        "/api/batches/next",
        _model(BatchAnswer),
        content=content,
        held_seconds=wait_seconds,
    )


def batch(queue: str, number: int) -> Call[Batch]:
    return Call(f"get batch {number} of {queue}", "GET", _batch(queue, number), _model(Batch))


def batch_trajectories(queue: str, number: int) -> Call[list[Trajectory]]:
    path = f"{_batch(queue, number)}/trajectories"
    what = f"get the trajectories of batch {number} of {queue}"
    return Call(what, "GET", path, _list(Trajectory))


def batch_arrays(queue: str, number: int) -> Call[None]:
    """Its answer is read as it comes in."""
    path = f"{_batch(queue, number)}/trajectories"
    what = f"get the arrays of batch {number} of {queue}"
    return Call(what, "GET", path, lambda _: None, {"format": "safetensors"})


def update_weights(
    version: str,
    path: Optional[str],
    source: Optional[Mapping[str, Any]],
    mode: str,
    deadline_seconds: float,
) -> Call[WeightUpdate]:
    if (path is None) == (source is None):
        raise ValueError("update_weights needs either a path or a source")
    body = {
        "version": version,
        "source": {"disk": {"path": path}} if source is None else dict(source),
        "mode": mode,
        "deadline_seconds": deadline_seconds,
    }
    content = json.dumps(body).encode()
    read = _model(WeightUpdate)
    return Call(f"update to weights {version}", "POST", "/api/weights", read, content=content)


def weight_updates() -> Call[WeightUpdateList]:
    return Call("list weights", "GET", "/api/weights", _model(WeightUpdateList))


def weights(version: str, wait_seconds: float) -> Call[WeightUpdate]:
    path, read = f"/api/weights/{_part(version)}", _model(WeightUpdate)
    what, params = f"ask for weights {version}", {"wait_seconds": wait_seconds}
    return Call(what, "GET", path, read, params, held_seconds=wait_seconds)


def queues() -> Call[list[QueueInfo]]:
    return Call("list the queues", "GET", "/api/queues", _member("queues", QueueInfo))


def _batch(queue: str, number: int) -> str:
    return f"/api/batches/{_part(queue)}/{number}"


def nodes() -> Call[list[NodeSeen]]:
    return Call("list the nodes", "GET", "/api/nodes", _member("nodes", NodeSeen))


def engines() -> Call[list[NodeEngines]]:
    return Call("list the engines", "GET", "/api/engines", _member("nodes", NodeEngines))


def change_engine(
    action: str, engine: str, weight: Optional[float], node_id: Optional[str]
) -> Call[NodeEngines]:
    body: dict[str, Any] = {"action": action, "engine": engine}
    if weight is not None:
        body["weight"] = weight
    if node_id is not None:
        body["node_id"] = node_id
    return Call(
        f"{action} the engine {engine}",
        "POST",
        "/api/engines",
        _model(NodeEngines),
        content=json.dumps(body).encode(),
        held_seconds=ENGINE_SECONDS,
    )


def health() -> Call[dict[str, Any]]:
    return Call("ask for the server's health", "GET", "/api/health", _model(dict[str, Any]))


def _named(task: Optional[TaskLike], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The task's JSON. Without an id it gets one here, not on the server, so that sending
    it again after a lost answer cannot make a second task.
    """
    if isinstance(task, BaseModel):
        body = TaskRequest.model_validate(task).body()
    else:
        body = dict(task or {})
    body = {key: _plain(value) for key, value in {**body, **fields}.items()}
    if body.get("task_id") is None:
        body["task_id"] = f"task-{uuid.uuid4().hex[:20]}"
    return body


def _plain(value: Any) -> Any:
    """Models inside of mappings and lists as plain JSON."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _part(word: str) -> str:
    """An id as one segment of a path."""
    return quote(word, safe="")


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Kept, since making one costs more than reading most answers with it."""


def _model(kind: type[T]) -> Callable[[httpx.Response], T]:
    return lambda response: _adapter(kind).validate_json(response.content)


def _list(kind: type[T]) -> Callable[[httpx.Response], list[T]]:
    return lambda response: _adapter(list[kind]).validate_json(response.content)  # type: ignore[valid-type]


def _member(key: str, kind: type[T]) -> Callable[[httpx.Response], list[T]]:
    """The list that an object holds as ``key``."""

    def read(response: httpx.Response) -> list[T]:
        items = _adapter(dict[str, Any]).validate_json(response.content).get(key)
        read_items: list[T] = _adapter(list[kind]).validate_python(items)  # type: ignore[valid-type]
        return read_items

    return read


def _attempt(number: Optional[int]) -> dict[str, Any]:
    return {} if number is None else {"attempt": number}


def _text(response: httpx.Response) -> str:
    return response.content.decode("utf-8", errors="replace")


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text
