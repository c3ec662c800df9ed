"""SkyRL: what a `GeneratorInterface` returns.

    class PolarGenerator(GeneratorInterface):
        async def generate(self, input_batch):
            ...run the prompts as tasks...
            return generator_output(batch, input_batch["trajectory_ids"])

The rows of a rollout are SkyRL's steps of one trajectory (`generator.step_wise_trajectories`
on): beside each other, the last one marked. SkyRL takes the reward of the last step and gives
the advantage to all of them, so its baseline counts rollouts. A rollout without anything to
train on keeps its place with a masked token, since SkyRL expects every prompt to come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from polar.errors import PolarError
from polar.integrations._packages import package
from polar.rows import Batch, Row


class StepWiseNeededError(PolarError):
    """A rollout has several rows, which SkyRL takes step-wise alone."""


def generator_output(
    batch: Batch,
    trajectory_ids: Optional[Sequence[Any]] = None,
    *,
    step_wise: bool = True,
    placeholder_id: int = 0,
) -> dict[str, Any]:
    """A `GeneratorOutput` of all rollouts of the batch, in their order.

    ``trajectory_ids`` are those of SkyRL's input, one for each rollout; without them they are
    made of groups and places in them. With ``step_wise=False`` a rollout must have one row.
    """
    rows = {found[0].rollout_id: found for found in batch.by_rollout()}
    if trajectory_ids is None:
        trajectory_ids = _identities(batch)
    if len(trajectory_ids) != len(batch.rollouts):
        raise ValueError(f"{len(trajectory_ids)} trajectory_ids for {len(batch.rollouts)} rollouts")
    output: dict[str, Any] = {name: [] for name in _LISTS}
    means = _group_means(batch)
    for rollout, identity in zip(batch.rollouts, trajectory_ids):
        steps = rows.get(rollout.rollout_id, [])
        if len(steps) > 1 and not step_wise:
            raise StepWiseNeededError(
                f"rollout {rollout.rollout_id} has {len(steps)} rows: switch on "
                "generator.step_wise_trajectories and pass step_wise=True"
            )
        mean = means.get(rollout.group_id, 0.0)
        for values in map(_fields, steps) if steps else [_placeholder(placeholder_id, mean)]:
            for name, value in values.items():
                output[name].append(value)
            output["trajectory_ids"].append(identity)
            output["is_last_step"].append(False)
        output["is_last_step"][-1] = True
    if not step_wise:
        output["is_last_step"] = None
    output["rollout_metrics"] = {
        f"polar/left_out/{reason}": count
        for reason, count in (batch.left_out_rollouts + batch.left_out_rows).items()
    }
    return output


_LISTS = (
    "prompt_token_ids",
    "response_ids",
    "rewards",
    "loss_masks",
    "rollout_logprobs",
    "stop_reasons",
    "trajectory_ids",
    "is_last_step",
)


def _fields(row: Row) -> dict[str, Any]:
    """The reward stands on the last token of every row; SkyRL reads the last row's."""
    return {
        "prompt_token_ids": row.prompt_ids,
        "response_ids": row.response_ids,
        "rewards": [0.0] * (len(row.response_ids) - 1) + [row.reward],
        "loss_masks": row.loss_mask,
        "rollout_logprobs": row.filled(0.0),
        "stop_reasons": "length" if row.truncated else "stop",
    }


def _placeholder(token: int, reward: float) -> dict[str, Any]:
    return {
        "prompt_token_ids": [token],
        "response_ids": [token],
        "rewards": [reward],
        "loss_masks": [0],
        "rollout_logprobs": [0.0],
        "stop_reasons": "stop",
    }


def _group_means(batch: Batch) -> dict[str, float]:
    """The mean reward of each group, of the rollouts that SkyRL gets rows of."""
    rewards: dict[str, list[float]] = {}
    for rows in batch.by_rollout():
        rewards.setdefault(rows[0].group_id, []).append(rows[0].reward)
    return {group: sum(values) / len(values) for group, values in rewards.items()}


def _identities(batch: Batch) -> list[Any]:
    kind = package("skyrl.train.generators.base", "skyrl").TrajectoryID
    places: dict[str, int] = {}
    found = []
    for rollout in batch.rollouts:
        place = places.get(rollout.group_id, 0)
        places[rollout.group_id] = place + 1
        found.append(kind(instance_id=rollout.group_id, repetition_id=place))
    return found
