"""NeMo RL: message logs, and the batch that its policy trains on.

`message_log` is what an environment or a rollout function gives: turns with their tokens,
of which those of the assistant carry `generation_logprobs` and are trained. Each row is
one, and goes on from all that was seen before, as NeMo RL asserts. `train_batch` is what
`policy.train` takes: NeMo RL's own baseline goes by prompt and by row, so the advantages
are those per rollout, and `sample_mask` carries `loss_weight`.
"""

from __future__ import annotations

from typing import Any, Optional

from polar.integrations._packages import package
from polar.integrations._versions import oldest
from polar.rows import Batch, Row


def message_log(row: Row) -> list[dict[str, Any]]:
    """The row as turns: `role`, `content`, `token_ids` int64, and for what was sampled
    `generation_logprobs` float32.

    Context is the user's turn, whoever spoke: NeMo RL reads no more from it than that it is
    not trained.
    """
    torch = package("torch", "torch")
    logprobs = row.filled(0.0)
    log = [_turn(torch, "user", row.prompt_ids, _text(row.prompt_messages, ()))]
    replies = [message for message in row.response_messages if message.get("role") == "assistant"]
    reply = iter(replies)
    for sampled, start, end in row.runs():
        ids = row.response_ids[start:end]
        if sampled:
            turn = _turn(torch, "assistant", ids, _text([next(reply, {})], ("assistant",)))
            turn["generation_logprobs"] = torch.tensor(logprobs[start:end], dtype=torch.float32)
        else:
            turn = _turn(torch, "user", ids, "")
        log.append(turn)
    return log


def _turn(torch: Any, role: str, ids: list[int], content: str) -> dict[str, Any]:
    return {"role": role, "content": content, "token_ids": torch.tensor(ids, dtype=torch.int64)}


def _text(messages: list[Any], roles: tuple[str, ...]) -> str:
    said = (m.get("content") for m in messages if not roles or m.get("role") in roles)
    return "\n".join(text for text in said if isinstance(text, str))


def train_batch(
    batch: Batch, *, pad_token_id: int, unknown_version: Optional[int] = None
) -> dict[str, Any]:
    """`input_ids` int64, `token_mask`, `generation_logprobs`, `advantages` float32 [rows,
    tokens], `input_lengths` int64 and `sample_mask`, `total_reward` float32 [rows],
    `prompt_ids_for_adv` int64 [rows, prompt], and `weight_version`, a list of the oldest of
    each row. Padded on the right.
    """
    torch = package("torch", "torch")
    rows = batch.rows
    width = max((len(row.token_ids) for row in rows), default=0)
    prompts = max((len(row.prompt_ids) for row in rows), default=0)

    def padded(values: list[list[Any]], filling: Any, length: int, kind: Any) -> Any:
        full = [value + [filling] * (length - len(value)) for value in values]
        return torch.tensor(full, dtype=kind)

    def behind_context(row: Row, values: list[Any]) -> list[Any]:
        return [0.0] * len(row.prompt_ids) + values

    masks = [behind_context(row, [float(mask) for mask in row.loss_mask]) for row in rows]
    logprobs = [behind_context(row, row.filled(0.0)) for row in rows]
    values = [[row.advantage] * len(row.token_ids) for row in rows]
    return {
        "input_ids": padded([row.token_ids for row in rows], pad_token_id, width, torch.int64),
        "input_lengths": torch.tensor([len(row.token_ids) for row in rows], dtype=torch.int64),
        "token_mask": padded(masks, 0.0, width, torch.float32),
        "generation_logprobs": padded(logprobs, 0.0, width, torch.float32),
        "advantages": padded(values, 0.0, width, torch.float32),
        "sample_mask": torch.tensor([row.loss_weight for row in rows], dtype=torch.float32),
        "total_reward": torch.tensor([row.reward for row in rows], dtype=torch.float32),
        "prompt_ids_for_adv": padded(
            [row.prompt_ids for row in rows], pad_token_id, prompts, torch.int64
        ),
        "weight_version": [
            oldest((v for v, on in zip(row.versions, row.loss_mask) if on), unknown_version)
            for row in rows
        ],
    }
