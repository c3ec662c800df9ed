"""TRL: `GRPOTrainer` with a `rollout_func`, and the samples of its asynchronous trainer.

    from polar.integrations import trl as bridge
    trainer = GRPOTrainer(..., rollout_func=bridge.rollout_func(client, make_task, forks="main"),
                          reward_funcs=bridge.reward)

`rollout_func` returns one row for each prompt that it is given, so a rollout that became
several rows cannot come whole: ``forks`` says whether that is an error (`raise`) or whether
its main row is taken (`main`), the others being counted in `Rollouts.left_out`. A rollout
with nothing to train on keeps its place with a masked token and no reward, which TRL leaves
out of the baseline. Advantages are TRL's own; as it has a row per rollout, they are right.

The asynchronous trainer takes any number of rows: `rollout_samples` has all of them, each
with its rollout's advantage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Callable, Literal, Optional

from polar._calls import TaskLike
from polar.client import PolarClient
from polar.errors import PolarError
from polar.integrations._packages import package
from polar.integrations._versions import oldest
from polar.integrations.running import run
from polar.results import Result
from polar.rows import Batch, MissingLogprobs, Row, collect

Forks = Literal["raise", "main"]

REWARD = "polar_reward"
"""The field of `rollout_func`'s answer that `reward` reads."""


class ForkedRolloutError(PolarError):
    """A rollout has several rows where the trainer takes one."""


class Rollouts(dict[str, Any]):
    """What `rollout_func` returns, with what did not fit in."""

    left_out: Counter[str]
    """Rows and rollouts that TRL does not get, by reason."""


def completions(
    results: Sequence[Sequence[Result]],
    *,
    forks: Forks = "raise",
    missing_logprobs: MissingLogprobs = "raise",
    placeholder_id: int = 0,
) -> Rollouts:
    """`prompt_ids`, `completion_ids`, `logprobs`, `env_mask` and `polar_reward` of rollouts: a
    row for each, in their order.

    ``placeholder_id`` stands for the completion of those that have none, masked.
    """
    ended = [result for group in results for result in group]
    batch = collect(ended, estimator=None, missing_logprobs=missing_logprobs)
    rows = {found[0].rollout_id: found for found in batch.by_rollout()}
    prompts = {found[0].group_id: found[0].prompt_ids for found in rows.values()}
    fields: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", REWARD)
    }
    answer = Rollouts(fields)
    answer.left_out = batch.left_out_rollouts + batch.left_out_rows
    for result in ended:
        session = result.session
        row = _one(rows.get(session.session_id, []), forks, answer.left_out)
        # A masked token has no logprob that counts, and 0.0 is what TRL has for it.
        one: tuple[Any, ...] = (
            (prompts.get(session.group_id, [placeholder_id]), [placeholder_id], [0.0], [0], None)
            if row is None
            else (row.prompt_ids, row.response_ids, row.filled(0.0), row.loss_mask, row.reward)
        )
        for name, value in zip(fields, one):
            fields[name].append(value)
    return answer


def _one(rows: Sequence[Row], forks: Forks, left_out: Counter[str]) -> Optional[Row]:
    """The row that stands for a rollout: its main agent's with the most to train on."""
    if len(rows) < 2:
        return rows[0] if rows else None
    if forks == "raise":
        raise ForkedRolloutError(
            f"rollout {rows[0].rollout_id} has {len(rows)} rows and TRL's rollout_func takes one: "
            "pass forks='main' to train on its main row alone, or use the asynchronous trainer"
        )
    left_out["forked_row"] += len(rows) - 1
    return max(rows, key=lambda row: (row.role == "main", row.trained))


def rollout_func(
    client: PolarClient,
    make_task: Callable[[Any], TaskLike],
    *,
    forks: Forks = "raise",
    missing_logprobs: MissingLogprobs = "raise",
    seen: Optional[Callable[[Rollouts], None]] = None,
) -> Callable[[list[Any], Any], Rollouts]:
    """The `rollout_func` that runs prompts as tasks. ``make_task`` makes one of a prompt, and
    ``seen`` is told each answer before TRL gets it.

    Prompts that repeat, as TRL gives them for a group, become one task of so many samples.
    """

    def roll_out(prompts: list[Any], trainer: Any) -> Rollouts:
        groups = _repeats(prompts)
        tasks = []
        for prompt, number in groups:
            task = make_task(prompt)
            body = task.body() if hasattr(task, "body") else dict(task)
            tasks.append({**body, "num_samples": number})
        tokenizer = trainer.processing_class
        placeholder = getattr(tokenizer, "pad_token_id", None) or 0
        answer = completions(
            run(client, tasks),
            forks=forks,
            missing_logprobs=missing_logprobs,
            placeholder_id=placeholder,
        )
        if seen is not None:
            seen(answer)
        return answer

    return roll_out


def _repeats(prompts: Sequence[Any]) -> list[tuple[Any, int]]:
    """Prompts with how often each stands there in a row."""
    groups: list[tuple[Any, int]] = []
    for prompt in prompts:
        if groups and groups[-1][0] == prompt:
            groups[-1] = (prompt, groups[-1][1] + 1)
        else:
            groups.append((prompt, 1))
    return groups


def reward(completions: Sequence[Any], **fields: Any) -> list[Optional[float]]:
    """The reward function for `GRPOTrainer`: what the evaluators said, None where nothing."""
    given = fields.get(REWARD)
    return list(given) if given is not None else [None] * len(completions)


def rollout_samples(
    batch: Batch, *, unknown_version: Optional[int] = None, weigh_rows: bool = False
) -> list[Any]:
    """`RolloutSample`s of the asynchronous GRPO trainer: a row each.

    ``model_version`` is that of the oldest token, since staleness is counted from it.
    ``weigh_rows`` multiplies advantages by `loss_weight`, for losses that take the mean over
    rows; the trainer's own loss is a mean over tokens, which forks do not change.
    """
    numpy = package("numpy", "numpy")
    worker = package("trl.experimental.async_grpo.async_rollout_worker", "trl")
    groups = {rows[0][0].group_id: at for at, rows in enumerate(batch.by_group())}
    found = []
    for row in batch.rows:
        context = len(row.prompt_ids)
        mask, logprobs = [0] * context + row.loss_mask, [0.0] * context + row.filled(0.0)
        sampled = (version for version, on in zip(row.versions, row.loss_mask) if on)
        found.append(
            worker.RolloutSample(
                prompt=row.prompt_messages,
                completion=row.response_messages,
                input_ids=numpy.asarray(row.token_ids, dtype=numpy.int64),
                completion_mask=numpy.asarray(mask, dtype=numpy.int64),
                old_log_probs=numpy.asarray(logprobs, dtype=numpy.float32),
                advantage=row.advantage * (row.loss_weight if weigh_rows else 1.0),
                model_version=oldest(sampled, unknown_version),
                group_id=groups[row.group_id],
                metrics={"reward": row.reward},
            )
        )
    return found


def training_sequences(batch: Batch) -> list[Any]:
    """`TrainingSequence`s of the asynchronous trainer's worker: rows before their advantages."""
    worker = package("trl.experimental.async_grpo.async_rollout_worker", "trl")
    return [
        worker.TrainingSequence(
            input_ids=row.token_ids,
            completion_mask=[0] * len(row.prompt_ids) + row.loss_mask,
            old_log_probs=[0.0] * len(row.prompt_ids) + row.filled(0.0),
            rollout_id=row.rollout_id,
        )
        for row in batch.rows
    ]
