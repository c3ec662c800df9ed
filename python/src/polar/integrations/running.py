"""Running a trainer's prompts as tasks, for the hooks that are asked for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence

from polar._calls import TaskLike
from polar.client import PolarClient
from polar.results import Result


def run(client: PolarClient, tasks: Sequence[TaskLike]) -> list[list[Result]]:
    """Submits tasks and waits until all their sessions have ended; the results of each task,
    in the order of the tasks and, within one, of its samples.

    Tasks under ids that were submitted before, as after a restart, are not run again.
    """
    if not tasks:
        return []
    submitted = client.submit_batch(tasks)
    # One after the other, since the server finds the events of one task by itself.
    ended = [list(client.results(task.task_id)) for task in submitted]
    for results in ended:
        results.sort(key=lambda result: result.session.sample_index)
    return ended
