"""Reading the ends of sessions from the server's event log, each once.

The log is an append-only sequence, and a cursor is a position in it. A reader that keeps
its cursor finds its place again after a restart of either side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from polar import _calls
from polar.errors import NotFoundError
from polar.models import Event, EventPage, SessionInfo, TaskInfo, Trajectory

if TYPE_CHECKING:
    from polar._calls import Call
    from polar.async_client import AsyncPolarClient
    from polar.client import PolarClient

_HOLD_SECONDS = 20.0
_KINDS = ("session.ended", "task.ended")


@dataclass(frozen=True)
class Result:
    """A session that has ended."""

    session: SessionInfo
    """How it ended, its reward, and what its node reported."""

    trajectory: Optional[Trajectory]
    """Its training data; None where there is none, as for a session that never ran."""

    cursor: int
    """Position behind this result. Keep it once the result is dealt with, and pass it as
    ``after`` to go on behind it."""


class ResultStream(Iterator[Result]):
    """Sessions as they end. Made by `PolarClient.results`.

    An error leaves the stream where it is: asking for the next result tries again.
    """

    def __init__(
        self, client: PolarClient, task_ids: Collection[str], after: int, trajectories: bool
    ) -> None:
        self._client = client
        self._reader = LogReader(task_ids, after)
        self._trajectories = trajectories

    @property
    def cursor(self) -> int:
        """Position behind the last result that was handed out."""
        return self._reader.cursor

    def __next__(self) -> Result:
        client, reader = self._client, self._reader
        while reader.next_end() is None:
            if reader.done:
                raise StopIteration
            page = client._carry_out(reader.next_page())
            reader.take(page)
            for task_id in reader.unsure(page):
                reader.learn(client.task(task_id))
        session = client.session(reader.next_end() or "")
        trajectory = self._trajectory(session) if self._trajectories else None
        return Result(session, trajectory, reader.advance())

    def _trajectory(self, session: SessionInfo) -> Optional[Trajectory]:
        try:
            return self._client.trajectory(session.session_id)
        except NotFoundError:
            return None


class AsyncResultStream(AsyncIterator[Result]):
    """Sessions as they end. Made by `AsyncPolarClient.results`.

    An error leaves the stream where it is: asking for the next result tries again.
    """

    def __init__(
        self, client: AsyncPolarClient, task_ids: Collection[str], after: int, trajectories: bool
    ) -> None:
        self._client = client
        self._reader = LogReader(task_ids, after)
        self._trajectories = trajectories

    @property
    def cursor(self) -> int:
        """Position behind the last result that was handed out."""
        return self._reader.cursor

    async def __anext__(self) -> Result:
        client, reader = self._client, self._reader
        while reader.next_end() is None:
            if reader.done:
                raise StopAsyncIteration
            page = await client._carry_out(reader.next_page())
            reader.take(page)
            for task_id in reader.unsure(page):
                reader.learn(await client.task(task_id))
        session = await client.session(reader.next_end() or "")
        trajectory = await self._trajectory(session) if self._trajectories else None
        return Result(session, trajectory, reader.advance())

    async def _trajectory(self, session: SessionInfo) -> Optional[Trajectory]:
        try:
            return await self._client.trajectory(session.session_id)
        except NotFoundError:
            return None


class LogReader:
    """Decides what to read next and which events count. Does no IO.

    Without ``task_ids`` it reads on for ever. With them it is done when the log holds no
    further end of theirs.
    """

    def __init__(self, task_ids: Collection[str], after: int) -> None:
        self.cursor = after
        """Everything up to here was handed out."""
        self.done = False
        """Whether no page is left to read."""
        self._read_up_to = after
        self._ends: deque[Event] = deque()
        self._wanted = frozenset(task_ids)
        self._running = set(task_ids)
        self._known_ended: set[str] = set()

    def next_end(self) -> Optional[str]:
        """The session whose end is next, of those read so far."""
        return self._ends[0].session_id if self._ends else None

    def advance(self) -> int:
        """Moves behind the next end, once it was dealt with; returns its position."""
        position = self._ends.popleft().seq
        self.cursor = position if self._ends else self._read_up_to
        return position

    def next_page(self) -> Call[EventPage]:
        """The request for the next events."""
        last_look = bool(self._running) and self._running <= self._known_ended
        only = next(iter(self._wanted)) if len(self._wanted) == 1 else None
        hold = 0.0 if last_look else _HOLD_SECONDS
        return _calls.events(self._read_up_to, hold, only, _KINDS)

    def take(self, page: EventPage) -> None:
        """Takes in the next events."""
        for event in page.events:
            if self._wanted and event.task_id not in self._wanted:
                continue
            if event.kind == "session.ended" and event.session_id is not None:
                self._ends.append(event)
            elif event.kind == "task.ended":
                self._running.discard(event.task_id)
        nothing_left = not page.events and self._running <= self._known_ended
        self.done = bool(self._wanted) and (not self._running or nothing_left)
        self._read_up_to = max(self._read_up_to, page.cursor)
        if not self._ends:
            self.cursor = self._read_up_to

    def unsure(self, page: EventPage) -> list[str]:
        """Tasks to ask about after an empty page: their end may lie before the cursor."""
        if page.events or self.done:
            return []
        return sorted(self._running - self._known_ended)

    def learn(self, task: TaskInfo) -> None:
        """Takes the answer for one of `unsure`."""
        if task.ended:
            self._known_ended.add(task.task_id)
