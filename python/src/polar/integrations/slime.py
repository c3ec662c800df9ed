"""slime, and Megatron through it.

Two hooks of slime's command line:

    --rollout-function-path polar.integrations.slime.generate_rollout
    --custom-reward-post-process-path polar.integrations.slime.post_process_rewards

The first runs the prompts of slime's data source as tasks and returns `list[list[Sample]]`,
a list for each group with the rows of all its rollouts; rows of one rollout share their
`rollout_id`, over which slime sums its masks. The second takes the place of slime's own
normalisation, which goes by position and so counts a rollout that forked more than once.

What slime's arguments do not know goes into the file of `--custom-config-path`:

| key | is |
| --- | --- |
| `polar_task` | `module.function`: makes a task of the first `Sample` of a group |
| `polar_server` | address of the rollout server; `$POLAR_SERVER` when absent |
| `polar_estimator` | `group_relative` (when absent) or `leave_one_out` |
| `polar_missing_logprobs` | `raise` (when absent) or `leave_out`: rows without them |
| `polar_eval_tasks` | `module.function`: makes `{name: [tasks]}` of the arguments, for evaluation |

`samples` alone lays out a `Batch`, for rollout functions of your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Callable, Optional

from polar.advantages import Estimator, Graded, advantages
from polar.client import PolarClient
from polar.integrations._packages import package
from polar.integrations.running import run
from polar.rows import Batch, Row, collect

SOURCE = "github.com/THUDM/slime"


def samples(batch: Batch, *, response: Optional[Callable[[Row], str]] = None) -> list[list[Any]]:
    """Slime's `Sample`s of each group: a row each.

    ``response`` gives the text of a row's response; slime shows it and trains without.
    """
    kind = package("slime.utils.types", SOURCE).Sample
    numbers = {rows[0].rollout_id: at for at, rows in enumerate(batch.by_rollout())}
    groups = []
    for group_index, group in enumerate(batch.by_group()):
        rows = [row for rollout in group for row in rollout]
        groups.append(
            [_sample(kind, row, group_index, numbers[row.rollout_id], response) for row in rows]
        )
    for index, sample in enumerate(sample for group in groups for sample in group):
        sample.index = index
    return groups


def _sample(
    kind: Any, row: Row, group_index: int, rollout: int, response: Optional[Callable[[Row], str]]
) -> Any:
    sample = kind(
        group_index=group_index,
        prompt=row.prompt_messages,
        tokens=row.token_ids,
        response=response(row) if response else _said(row),
        response_length=len(row.response_ids),
        reward=row.reward,
        loss_mask=row.loss_mask,
        rollout_log_probs=row.filled(0.0),
        weight_versions=list(dict.fromkeys(v for v in row.versions if v is not None)),
        status=kind.Status(_status(row)),
        session_id=row.rollout_id,
        metadata={
            "polar_rollout_id": row.rollout_id,
            "polar_group_id": row.group_id,
            "polar_role": row.role,
            "polar_reason": row.reason,
            "polar_baseline": row.baseline,
            "polar_loss_weight": row.loss_weight,
        },
    )
    # Younger than the class in older releases, which lack the field.
    sample.rollout_id = rollout
    return sample


def _said(row: Row) -> str:
    """What the model said, as text."""
    said = (m.get("content") for m in row.response_messages if m.get("role") == "assistant")
    return "\n".join(text for text in said if isinstance(text, str))


def _status(row: Row) -> str:
    if row.truncated:
        return "truncated"
    if row.reason == "cancelled":
        return "aborted"
    return "completed" if row.reason == "completed" else "failed"


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Rewards as they are, and as advantages per rollout: for slime's hook of that name."""
    rewards = [float(sample.get_reward_value(args)) for sample in samples]
    graded = [
        Graded(_rollout_of(sample, at), str(sample.group_index), reward)
        for at, (sample, reward) in enumerate(zip(samples, rewards))
    ]
    estimator: Estimator = getattr(args, "polar_estimator", "group_relative")
    scale = bool(getattr(args, "grpo_std_normalization", True))
    found = advantages(graded, estimator, scale=scale)
    return rewards, [found.value(rollout.rollout_id) or 0.0 for rollout in graded]


def _rollout_of(sample: Any, at: int) -> str:
    rollout = getattr(sample, "rollout_id", None)
    return f"row {at}" if rollout is None else str(rollout)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Runs a batch of slime's prompts as tasks: for `--rollout-function-path`.

    Groups come back in the order of the prompts. One in which nothing can be trained on is
    left out, and how many there were is among the metrics.
    """
    base = package("slime.rollout.base_types", SOURCE)
    with PolarClient(getattr(args, "polar_server", None)) as client:
        if evaluation:
            return base.RolloutFnEvalOutput(data=_evaluate(args, client))
        make_task = _named(args.polar_task)
        groups = data_source.get_samples(args.rollout_batch_size)
        tasks = []
        for at, group in enumerate(groups):
            task = {"task_id": f"slime-{rollout_id}-{at}", **_mapping(make_task(group[0]))}
            tasks.append({**task, "num_samples": len(group)})
        results = run(client, tasks)
    batch = collect(
        (result for group in results for result in group),
        estimator=getattr(args, "polar_estimator", "group_relative"),
        missing_logprobs=getattr(args, "polar_missing_logprobs", "raise"),
    )
    return base.RolloutFnTrainOutput(samples=samples(batch), metrics=metrics(batch))


def metrics(batch: Batch) -> dict[str, float]:
    """What was left out and why, for the trainer's log."""
    rewards = [rollout.reward for rollout in batch.rollouts if rollout.reward is not None]
    counts = {
        "rollouts": len(batch.rollouts),
        "rows": len(batch.rows),
        "tokens_trained": sum(row.trained for row in batch.rows),
        "reward_mean": sum(rewards) / len(rewards) if rewards else 0.0,
    }
    for what, reasons in (
        ("rollouts_left_out", batch.left_out_rollouts),
        ("rows_left_out", batch.left_out_rows),
        ("tokens_untrained", batch.untrained_tokens),
    ):
        counts.update({f"{what}/{reason}": number for reason, number in reasons.items()})
    return {f"polar/{name}": float(number) for name, number in counts.items()}


def _evaluate(args: Any, client: PolarClient) -> dict[str, dict[str, Any]]:
    found = {}
    for name, tasks in _named(args.polar_eval_tasks)(args).items():
        ended = [result for group in run(client, tasks) for result in group]
        graded = [result for result in ended if result.session.reward is not None]
        found[name] = {
            "rewards": [result.session.reward for result in graded],
            "truncated": [result.session.reason == "agent_timeout" for result in graded],
        }
    return found


def _named(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _mapping(task: Any) -> dict[str, Any]:
    return task.body() if hasattr(task, "body") else dict(task)
