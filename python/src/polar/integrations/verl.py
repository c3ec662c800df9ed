"""verl: outputs of an agent loop, and the batch that its trainer takes.

`polar.integrations.verl_agent_loop` has the class to name in verl's configuration. The functions
here are for hooks of your own: `agent_loop_outputs` for a subclass of `AgentLoopBase`, whose `run`
returns an `AgentLoopOutput` a sample, or several to verl's trainer of version 1; `data_proto` for
a trainer that takes a `DataProto` with as many rows as there are.

Of several rows with the same `uid`, verl's GRPO makes a baseline over rows, in which a
rollout that forked counts more than once. `data_proto` therefore brings the baseline of
each row's group per rollout along as `reward_baselines`, and `register_advantages` makes
verl use it:

    polar.integrations.verl.register_advantages()      # where the trainer starts
    algorithm.adv_estimator=polar                      # in its configuration
"""

from __future__ import annotations

from typing import Any, Optional

from polar.errors import PolarError
from polar.integrations._packages import package
from polar.integrations._versions import number
from polar.rows import Batch, Row

ESTIMATOR = "polar"
"""The name that `register_advantages` gives the estimator."""


class RowTooLongError(PolarError, ValueError):
    """A row does not fit into the lengths that a batch is padded to."""


def agent_loop_outputs(
    batch: Batch, *, logprobs: bool = True, unknown_version: Optional[int] = None
) -> list[Any]:
    """An `AgentLoopOutput` for each row. ``logprobs=False`` leaves theirs away."""
    loop = package("verl.experimental.agent_loop.agent_loop", "verl")
    return [
        loop.AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.loss_mask,
            response_logprobs=row.filled(0.0) if logprobs else None,
            reward_score=row.reward,
            num_turns=_turns(row),
            metrics=loop.AgentLoopMetrics(),
            extra_fields=_of_loop(_extra(row, unknown_version)),
        )
        for row in batch.rows
    ]


def data_proto(
    batch: Batch,
    *,
    prompt_length: int,
    response_length: int,
    pad_token_id: int,
    logprobs: bool = True,
    unknown_version: Optional[int] = None,
) -> Any:
    """A `DataProto` of all rows: prompts padded on the left to ``prompt_length``, responses on
    the right to ``response_length``.

    A row that is longer raises `RowTooLongError`, for cutting it would train other tokens
    than were sampled; leave such rows out before, by `dataclasses.replace(batch, rows=...)`.
    """
    torch = package("torch", "torch")
    numpy = package("numpy", "numpy")
    protocol = package("verl.protocol", "verl")
    tensordict = package("tensordict", "tensordict")
    padded = [_padded(row, prompt_length, response_length, pad_token_id) for row in batch.rows]
    tensors = {
        name: torch.tensor([row[name] for row in padded], dtype=torch.int64) for name in _INTEGERS
    }
    tensors["position_ids"] = (tensors["attention_mask"].cumsum(1) - 1).clamp(min=0)
    tensors["rm_scores"] = torch.zeros(len(padded), response_length, dtype=torch.float32)
    for at, row in enumerate(batch.rows):
        tensors["rm_scores"][at, len(row.response_ids) - 1] = row.reward
    baselines = [row.baseline for row in batch.rows]
    tensors["reward_baselines"] = torch.tensor(baselines, dtype=torch.float32)
    if logprobs:
        filled = [_right(row.filled(0.0), response_length, 0.0) for row in batch.rows]
        tensors["rollout_log_probs"] = torch.tensor(filled, dtype=torch.float32)
    extra = [_extra(row, unknown_version) for row in batch.rows]
    columns = {key: _objects(numpy, [fields[key] for fields in extra]) for key in _EXTRA}
    turns = numpy.array([_turns(row) for row in batch.rows], dtype=numpy.int32)
    return protocol.DataProto(
        batch=tensordict.TensorDict(tensors, batch_size=len(padded)),
        non_tensor_batch={"__num_turns__": turns, **columns},
        meta_info={"metrics": [{} for _ in padded], "reward_extra_keys": []},
    )


_INTEGERS = ("prompts", "responses", "response_mask", "input_ids", "attention_mask")
_EXTRA = (
    "uid",
    "rollout_id",
    "loss_weight",
    "raw_prompt",
    "turn_scores",
    "tool_rewards",
    "min_global_steps",
    "max_global_steps",
)


def _padded(row: Row, prompt_length: int, response_length: int, pad: int) -> dict[str, list[int]]:
    for name, ids, limit in (
        ("prompt", row.prompt_ids, prompt_length),
        ("response", row.response_ids, response_length),
    ):
        if len(ids) > limit:
            raise RowTooLongError(
                f"a row of {row.rollout_id} has a {name} of {len(ids)} tokens, and {name}_length "
                f"is {limit}: raise it, or leave such rows out of the batch"
            )
    missing = prompt_length - len(row.prompt_ids)
    prompts = [pad] * missing + row.prompt_ids
    responses = _right(row.response_ids, response_length, pad)
    attended = [1] * len(row.response_ids)
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": _right(row.loss_mask, response_length, 0),
        "input_ids": prompts + responses,
        "attention_mask": [0] * missing
        + [1] * len(row.prompt_ids)
        + _right(attended, response_length, 0),
    }


def _right(values: list[Any], length: int, filling: Any) -> list[Any]:
    return values + [filling] * (length - len(values))


def _objects(numpy: Any, values: list[Any]) -> Any:
    """An array of objects, also where the values are lists of one length."""
    column = numpy.empty(len(values), dtype=object)
    column[:] = values
    return column


def _turns(row: Row) -> int:
    """Chat turns, as verl counts them: user, assistant and tool."""
    said = [*row.prompt_messages, *row.response_messages]
    return sum(message.get("role") != "system" for message in said)


def _of_loop(extra: dict[str, Any]) -> dict[str, Any]:
    """Without what verl says itself of the sample, which must not be another thing here."""
    own = {key: value for key, value in extra.items() if key not in ("uid", "raw_prompt")}
    return {**own, "reward_extra_info": {}}


def _extra(row: Row, unknown: Optional[int]) -> dict[str, Any]:
    sampled = [version for version, on in zip(row.versions, row.loss_mask) if on]
    known = [version for version in sampled if version is not None or unknown is not None]
    steps = [number(version, unknown) for version in known]
    return {
        "uid": row.group_id,
        "rollout_id": row.rollout_id,
        "loss_weight": row.loss_weight,
        "raw_prompt": row.prompt_messages,
        "turn_scores": row.turn_scores,
        "tool_rewards": [],
        "min_global_steps": min(steps, default=None),
        "max_global_steps": max(steps, default=None),
    }


def register_advantages() -> None:
    """Teaches verl the estimator `polar`: reward minus the baseline that `data_proto` brought."""
    core = package("verl.trainer.ppo.core_algos", "verl")
    if ESTIMATOR not in core.ADV_ESTIMATOR_REGISTRY:
        core.register_adv_est(ESTIMATOR)(outcome_advantage)


def outcome_advantage(
    token_level_rewards: Any, response_mask: Any, reward_baselines: Any, **_: Any
) -> tuple[Any, Any]:
    """Advantages and returns [rows, response_length]: the same for all tokens of a row."""
    outcome = token_level_rewards.sum(dim=-1)
    mask = response_mask.to(token_level_rewards.dtype)
    advantages = (outcome - reward_baselines).unsqueeze(-1) * mask
    return advantages, outcome.unsqueeze(-1) * mask
