"""The client of the rollout server for ordinary code; `polar.async_client` is its twin."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Optional, TypeVar, Union

import httpx

from polar import _calls
from polar._calls import Call, TaskLike
from polar._token import authorised
from polar.arrays import ArrayReader, TokenArrays
from polar.errors import ServerUnreachableError, WaitTimeoutError
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
    Trajectory,
    WeightUpdate,
    WeightUpdateList,
)
from polar.results import ResultStream
from polar.retry import RETRYABLE, Retries, RetryPolicy, retry_after

T = TypeVar("T")

LogStream = Union[Literal["stdout", "stderr", "grader", "diff"], str]


class PolarClient:
    """Talks to a rollout server.

    >>> client = PolarClient("localhost:50051")
    >>> task = client.submit(harness="pi", instruction="Fix the failing test.", num_samples=8)
    >>> client.wait(task.task_id)
    >>> for trajectory in client.get_trajectories(task.task_id):
    ...     train(trajectory.traces)

    Every request is tried again while the server is away or overloaded, as `RetryPolicy`
    says. That is safe: a submitted task always carries an id, so it is stored once. One
    client may be used by several threads.
    """

    def __init__(
        self,
        address: Optional[str] = None,
        *,
        token: Optional[str] = None,
        timeout: float = 60.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - it is immutable.
        transport: Optional[httpx.BaseTransport] = None,
    ) -> None:
        """Nothing is sent yet.

        ``address`` is ``host:port`` or a URL; ``$POLAR_SERVER`` when absent, else
        ``localhost:50051``. ``token`` is the server's bearer token; ``$POLAR_TOKEN`` when
        absent, else the one that your own servers on this machine keep for you.
        ``timeout`` is the limit in seconds of one answer. ``transport`` replaces the
        connection, for proxies and tests.
        """
        self._timeout = timeout
        self._retry = retry
        self._reached = False
        self._http = httpx.Client(
            base_url=_calls.base_url(address), auth=authorised(token), transport=transport
        )

    def submit(self, task: Optional[TaskLike] = None, /, **fields: Any) -> TaskInfo:
        """Submits a task: a `TaskRequest`, a mapping, or its fields as keyword arguments.

        Submitting a ``task_id`` again with the same content returns the stored task, so a
        trainer that restarts may submit all it wants anew; with other content it raises
        `ConflictError`. `InvalidRequestError` names every wrong field.
        """
        return self._carry_out(_calls.submit(task, fields))

    def submit_batch(self, tasks: Iterable[TaskLike]) -> list[TaskInfo]:
        """Submits tasks in one request: all of them are stored or, on an error, none."""
        return self._carry_out(_calls.submit_batch(tasks))

    def tasks(
        self, *, status: Optional[str] = None, harness: Optional[str] = None
    ) -> Iterator[TaskInfo]:
        """All tasks, newest first; only those of a status or a harness, when given."""
        before: Optional[int] = None
        while True:
            page = self._carry_out(_calls.tasks(status, harness, before))
            yield from page.tasks
            before = page.next_before
            if before is None:
                return

    def task(self, task_id: str) -> TaskInfo:
        """One task."""
        return self._carry_out(_calls.task(task_id))

    def wait(self, task_id: str, timeout: Optional[float] = None) -> TaskInfo:
        """Waits until every session of a task has ended, and returns the task.

        Raises `WaitTimeoutError` after ``timeout`` seconds; without one it waits for ever,
        which is safe as far as the server gives every task an end.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        cursor = 0
        task = self.task(task_id)
        while not task.ended:
            left = 20.0 if deadline is None else min(20.0, deadline - time.monotonic())
            if left <= 0:
                raise WaitTimeoutError(
                    f"task {task_id} has not ended after {timeout} seconds: {task.sessions}"
                )
            page = self._carry_out(_calls.events(cursor, left, task_id, ["task.ended"]))
            cursor = page.cursor
            task = self.task(task_id)
        return task

    def results(self, *task_ids: str, after: int = 0, trajectories: bool = True) -> ResultStream:
        """Sessions as they end, each once, in the order in which they ended.

        With ``task_ids`` the stream ends when those tasks have; without, it goes on for
        ever, over all tasks. ``after`` is the `Result.cursor` at which an earlier reader
        stopped. ``trajectories=False`` leaves the training data out.
        """
        return ResultStream(self, task_ids, after, trajectories)

    def events(self, after: int = 0, *, wait_seconds: float = 0.0) -> EventPage:
        """The event log behind a position. With nothing there, the server holds the answer
        for up to ``wait_seconds``.
        """
        return self._carry_out(_calls.events(after, wait_seconds))

    def get_trajectories(self, task_id: str, *statuses: str) -> list[Trajectory]:
        """The trajectories of a task's ended sessions, one for each that has one.

        With ``statuses``, only of sessions that ended so: ``"completed"``, ``"timed_out"``.
        """
        return self._carry_out(_calls.trajectories(task_id, statuses))

    def sessions(self, task_id: str) -> list[SessionInfo]:
        """The sessions of a task."""
        return self._carry_out(_calls.sessions(task_id))

    def session(self, session_id: str) -> SessionInfo:
        """One session."""
        return self._carry_out(_calls.session(session_id))

    def trajectory(self, session_id: str, *, attempt: Optional[int] = None) -> Trajectory:
        """The trajectory of an ended session; `NotFoundError` when it has none.

        ``attempt`` looks at another attempt than the one that counts, here and below.
        """
        return self._carry_out(_calls.trajectory(session_id, attempt))

    def calls(self, session_id: str, *, attempt: Optional[int] = None) -> list[CallSummary]:
        """The LLM calls of an ended session, oldest first."""
        return self._carry_out(_calls.calls(session_id, attempt))

    def logs(
        self, session_id: str, stream: LogStream = "stdout", *, attempt: Optional[int] = None
    ) -> str:
        """What an ended session's harness or grader printed, or the diff of its work folder."""
        return self._carry_out(_calls.logs(session_id, stream, attempt))

    def cancel(self, task_id: str) -> TaskInfo:
        """Cancels a task: its queued sessions end now, the running ones as soon as their
        nodes hear of it. A task that has ended stays as it is.
        """
        return self._carry_out(_calls.cancel(task_id))

    def regrade(
        self,
        task_id: str,
        *,
        sessions: Optional[Sequence[str]] = None,
        evaluator: Optional[Mapping[str, Any]] = None,
    ) -> RegradeList:
        """Grades the stored work of a task's ended sessions again, without its agent.

        Returns at once; each session's result changes when its grading is done, and with it
        its ``revision``. ``sessions`` are ids, all that can be graded again when absent, and
        ``evaluator`` replaces the task's own.
        """
        return self._carry_out(_calls.regrade(task_id, sessions, evaluator))

    def next_batch(
        self,
        after: int,
        *,
        queue: str = "default",
        groups: int = 1,
        min_groups: Optional[int] = None,
        version: Optional[str] = None,
        max_staleness: Optional[int] = None,
        equal_rewards: Literal["keep", "leave_out"] = "keep",
        min_usable: int = 1,
        reject: Sequence[str] = (),
        max_ahead: Optional[int] = None,
        wait_seconds: float = 20.0,
    ) -> BatchAnswer:
        """The batch of groups after a trainer's cursor: the number of the last batch it is done
        with, 0 before the first. Asking again with the same cursor gives the same batch, so a
        trainer that keeps its cursor with its weights trains each group once.

        ``batch`` of the answer is None when there are not ``groups`` of them within
        ``wait_seconds``, or ``min_groups`` at their end. ``version`` is the trainer's own weight
        version: groups more than ``max_staleness`` behind it are left out, and those that the
        other filters name. ``reject`` takes groups out of the batch after the cursor for others.
        ``max_ahead`` bounds the groups that are begun and in no batch.
        """
        fields = {
            "queue": queue,
            "groups": groups,
            "min_groups": min_groups,
            "version": version,
            "max_staleness": max_staleness,
            "equal_rewards": equal_rewards,
            "min_usable": min_usable,
            "reject": list(reject),
            "max_ahead": max_ahead,
        }
        return self._carry_out(_calls.next_batch(after, wait_seconds, fields))

    def batch(self, number: int, *, queue: str = "default") -> Batch:
        """A batch that was made before, as it is now."""
        return self._carry_out(_calls.batch(queue, number))

    def batch_trajectories(self, number: int, *, queue: str = "default") -> list[Trajectory]:
        """The trajectories of a batch's usable sessions, group after group."""
        return self._carry_out(_calls.batch_trajectories(queue, number))

    def batch_arrays(self, number: int, *, queue: str = "default") -> Iterator[TokenArrays]:
        """The tokens of a batch's usable sessions as NumPy arrays, one session at a time.

        They are read as they come in, so that memory holds one session, and none of their
        numbers is parsed. A stream that breaks off raises `ServerUnreachableError`; asking again
        starts from the first session. Needs NumPy.
        """
        reader = ArrayReader()
        call = _calls.batch_arrays(queue, number)
        with self._stream(call) as response:
            for piece in response.iter_bytes():
                yield from reader.feed(piece)
        reader.finish()

    def queues(self) -> list[QueueInfo]:
        """Queues of batches, and where they stand."""
        return self._carry_out(_calls.queues())

    def nodes(self) -> list[NodeSeen]:
        """The nodes that asked for work, and whether they still do."""
        return self._carry_out(_calls.nodes())

    def engines(self) -> list[NodeEngines]:
        """The engines of every node, and how each of them is."""
        return self._carry_out(_calls.engines())

    def change_engine(
        self,
        action: Literal["add", "drain", "resume", "remove", "weight"],
        engine: str,
        *,
        weight: Optional[float] = None,
        node_id: Optional[str] = None,
    ) -> NodeEngines:
        """Changes which engines a running node has; returns its engines when that is done.

        ``engine`` is the address by which the node reaches it. ``add`` checks it and brings it to
        the weights that all have; ``drain`` gives it no more calls, and ``resume`` does again;
        ``remove`` drains it and takes it away; ``weight`` sets its share of new sessions, which
        ``add`` may say too. ``node_id`` is needed where more than one node could be meant.
        """
        return self._carry_out(_calls.change_engine(action, engine, weight, node_id))

    def health(self) -> Mapping[str, Any]:
        """What the server says of itself."""
        return self._carry_out(_calls.health())

    def weights(self) -> WeightUpdateList:
        """The newest weight updates, and how far each engine is with them."""
        return self._carry_out(_calls.weight_updates())

    def update_weights(
        self,
        version: str,
        *,
        path: Optional[str] = None,
        source: Optional[Mapping[str, Any]] = None,
        mode: Literal["drain", "pause", "continue"] = "pause",
        deadline_seconds: float = 120.0,
    ) -> WeightUpdate:
        """Gives every engine of every node new weights, under running agents; returns at once.

        ``path`` is the folder of a checkpoint, as the engines see it; ``source`` is any other
        way, as in `POST /api/weights`. ``mode`` says what becomes of calls under way. See
        `wait_for_weights`.
        """
        call = _calls.update_weights(version, path, source, mode, deadline_seconds)
        return self._carry_out(call)

    def wait_for_weights(self, version: str, timeout: float = 300.0) -> WeightUpdate:
        """Waits until no engine is on its way to a version; its `status` says whether all have it.

        Raises `WaitTimeoutError` after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, min(20.0, deadline - time.monotonic()))
            update = self._carry_out(_calls.weights(version, left))
            if update.status != "rolling":
                return update
            if time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"weights {version} are not everywhere after {timeout} seconds"
                )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> PolarClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _stream(self, call: Call[T]) -> Iterator[httpx.Response]:
        """An answer that is read as it comes in. Sent once."""
        request = call.request(self._timeout)
        try:
            with self._http.stream(**request) as response:
                if not response.is_success:
                    response.read()
                call.checked(response)
                yield response
        except httpx.TransportError as error:
            reason = call.unreachable(error, reached=True)
            raise ServerUnreachableError(reason) from error

    def _carry_out(self, call: Call[T]) -> T:
        """Sends a request until there is an answer or the retry policy gives up."""
        retries = Retries(self._retry, random.Random())
        while True:
            try:
                response = self._http.request(**call.request(self._timeout))
            except httpx.TransportError as error:
                # One that took the connection is there, even when it gave no answer.
                self._reached |= not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                pause = retries.pause(time.monotonic(), reached=self._reached)
                if pause is None:
                    reason = call.unreachable(error, reached=self._reached)
                    raise ServerUnreachableError(reason) from error
            else:
                self._reached = True
                if response.status_code not in RETRYABLE:
                    return call.checked(response)
                wish = retry_after(response.headers.get("retry-after"))
                pause = retries.pause(time.monotonic(), wish)
                if pause is None:
                    return call.checked(response)
            time.sleep(pause)
