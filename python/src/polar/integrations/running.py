"""Running a trainer's prompts as tasks, for the hooks that are asked for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence

from polar._calls import TaskLike
from polar.client import PolarClient
from polar.results import Result


def run(client: PolarClient, tasks: Sequence[TaskLike]) -> list[list[Result]]:
    """Submits tasks and waits until all their sessions have ended; the results of each task,
    in the order of the tasks and, within one, of its samples.
    """
    cursor = client.events().cursor
    submitted = client.submit_batch(tasks)
    ended: dict[str, list[Result]] = {task.task_id: [] for task in submitted}
    if not ended:
        return []
    # Tasks that were there before, as after a restart, may have ended before the cursor.
    after = 0 if any(task.ended or sum(_begun(task.sessions)) for task in submitted) else cursor
    for result in client.results(*ended, after=after):
        ended[result.session.task_id].append(result)
    for results in ended.values():
        results.sort(key=lambda result: result.session.sample_index)
    return list(ended.values())


def _begun(sessions: dict[str, int]) -> list[int]:
    """The sessions of a task that are past being queued."""
    return [number for status, number in sessions.items() if status != "queued"]
