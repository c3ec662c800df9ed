"""AReaL: what a `RolloutWorkflow` returns.

    class PolarWorkflow(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            ...run the prompt as a task of so many samples...
            return tensors(batch)

A dict of tensors with a batch axis, padded on the right: as AReaL's own workflows give
them, with the versions of weights token by token, by which it corrects for staleness.
`rewards` holds advantages where ``advantages=True``, for configurations that leave AReaL's
own normalisation of rewards off: that one goes by row, and counts a rollout that forked
more than once.
"""

from __future__ import annotations

from typing import Any, Optional

from polar.integrations._packages import package
from polar.integrations._versions import number
from polar.rows import Batch, Row


def tensors(
    batch: Batch, *, advantages: bool = False, unknown_version: Optional[int] = None
) -> dict[str, Any]:
    """`input_ids`, `loss_mask`, `versions` int64, `logprobs` float32, `turn_ids` int32 and
    `attention_mask` bool [rows, tokens], and `rewards`, `original_rewards` float32 [rows].

    Context has the version -1, the turn -1 and the logprob 0.0. Turns count sampled runs.
    """
    torch = package("torch", "torch")
    width = max((len(row.token_ids) for row in batch.rows), default=0)
    rows = [_lists(row, unknown_version) for row in batch.rows]

    def padded(name: str, filling: Any, kind: Any) -> Any:
        values = [row[name] + [filling] * (width - len(row[name])) for row in rows]
        return torch.tensor(values, dtype=kind)

    rewards = [row.reward for row in batch.rows]
    values = [row.advantage for row in batch.rows] if advantages else rewards
    return {
        "input_ids": padded("input_ids", 0, torch.int64),
        "loss_mask": padded("loss_mask", 0, torch.int64),
        "logprobs": padded("logprobs", 0.0, torch.float32),
        "versions": padded("versions", -1, torch.int64),
        "turn_ids": padded("turn_ids", -1, torch.int32),
        "attention_mask": padded("attention_mask", False, torch.bool),
        "rewards": torch.tensor(values, dtype=torch.float32),
        "original_rewards": torch.tensor(rewards, dtype=torch.float32),
    }


def _lists(row: Row, unknown: Optional[int]) -> dict[str, list[Any]]:
    context = len(row.prompt_ids)
    versions = [
        number(version, unknown) if sampled else -1
        for version, sampled in zip(row.versions, row.loss_mask)
    ]
    turns, turn = [-1] * len(row.response_ids), 0
    for sampled, start, end in row.runs():
        if sampled:
            turns[start:end] = [turn] * (end - start)
            turn += 1
    return {
        "input_ids": row.token_ids,
        "loss_mask": [0] * context + row.loss_mask,
        "logprobs": [0.0] * context + row.filled(0.0),
        "versions": [-1] * context + versions,
        "turn_ids": [-1] * context + turns,
        "attention_mask": [True] * len(row.token_ids),
    }
