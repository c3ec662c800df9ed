"""SkyRL: the generator that runs its prompts as tasks, for an entry point's `get_generator`.

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return PolarGenerator(make_task, step_wise=cfg.generator.step_wise_trajectories)

Samples of one prompt stand beside each other in what SkyRL asks for, and become one task of so many
samples: a group, in Polar as in SkyRL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Callable, Optional

from polar.async_client import AsyncPolarClient
from polar.errors import PolarError
from polar.integrations._packages import package
from polar.integrations.skyrl import generator_output
from polar.results import Result
from polar.rows import MissingLogprobs, collect

_Base: Any = package("skyrl.train.generators.base", "skyrl").GeneratorInterface


class PolarGenerator(_Base):  # type: ignore[misc]
    """Runs a batch of prompts as tasks and waits for all of them.

    ``make_task`` makes a task of a prompt and its other columns (`env_extras`). Sampling parameters
    of SkyRL are pinned where the task pins none. ``step_wise`` is the
    `generator.step_wise_trajectories` of SkyRL's configuration: without it a rollout has to have
    one row.
    """

    def __init__(
        self,
        make_task: Callable[[Any, Mapping[str, Any]], Any],
        *,
        server: Optional[str] = None,
        step_wise: bool = True,
        missing_logprobs: MissingLogprobs = "raise",
        placeholder_id: int = 0,
    ) -> None:
        self._make_task = make_task
        self._server = server
        self._step_wise = step_wise
        self._missing_logprobs: MissingLogprobs = missing_logprobs
        self._placeholder_id = placeholder_id

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """A `GeneratorOutput` of all samples, in the order of the input."""
        tasks = self._tasks(input_batch)
        async with AsyncPolarClient(self._server) as client:
            submitted = [task.task_id for task in await client.submit_batch(tasks)]
            try:
                groups = await asyncio.gather(*(_ended(client, task) for task in submitted))
            except BaseException:
                # Nobody waits for them any more.
                for task_id in submitted:
                    with suppress(PolarError):
                        await client.cancel(task_id)
                raise
        batch = collect(
            [result for group in groups for result in group],
            estimator=None,
            missing_logprobs=self._missing_logprobs,
        )
        return generator_output(
            batch,
            input_batch.get("trajectory_ids"),
            step_wise=self._step_wise,
            placeholder_id=self._placeholder_id,
        )

    def _tasks(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A task for each run of samples of one prompt."""
        pins = _pins(asked.get("sampling_params") or {})
        tasks = []
        for places in _groups(asked):
            extras = (asked.get("env_extras") or [])[places[0] : places[0] + 1]
            made = self._make_task(asked["prompts"][places[0]], extras[0] if extras else {})
            task = made.body() if hasattr(made, "body") else dict(made)
            sampling = {**pins, **(task.get("sampling") or {})}
            tasks.append({**task, "num_samples": len(places), "sampling": sampling})
        return tasks


def _groups(asked: Mapping[str, Any]) -> list[list[int]]:
    """Places of samples of one prompt, which stand beside each other."""
    identities: Optional[Sequence[Any]] = asked.get("trajectory_ids")
    if identities is None:
        return [[place] for place in range(len(asked["prompts"]))]
    runs = groupby(range(len(identities)), key=lambda place: identities[place].instance_id)
    return [list(places) for _, places in runs]


async def _ended(client: AsyncPolarClient, task_id: str) -> list[Result]:
    results = [result async for result in client.results(task_id)]
    return sorted(results, key=lambda result: result.session.sample_index)


def _pins(asked: Mapping[str, Any]) -> dict[str, Any]:
    """SkyRL's parameters as tasks have them. `max_generate_length` is its limit of a reply."""
    named = {
        "temperature": asked.get("temperature"),
        "top_p": asked.get("top_p"),
        "top_k": asked.get("top_k"),
        "max_tokens": asked.get("max_tokens", asked.get("max_generate_length")),
    }
    return {name: value for name, value in named.items() if value is not None}
