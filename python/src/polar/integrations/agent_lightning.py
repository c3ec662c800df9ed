"""Agent Lightning 1.x: the events of a rollout, and the triplets that are made of them.

`events` gives what its gateway would have stored: a `model_request` for each call, with the
ids and logprobs of its prompt and reply, and a `reward`. Post them to
`/api/rollouts/{id}/attempt/{attempt}/events`, or give them to a store. `triplets` gives the
turns as its trainer has them at once.

Its server keeps the last of the calls that have the same prompt; a reply that was asked for
anew from the same prompt loses its first answer there. `same_prompts` says how many do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from polar.integrations._packages import package
from polar.integrations._versions import number
from polar.rows import Batch, Row


def events(
    batch: Batch, *, model: str = "polar", attempt_id: str = "0", at: float = 0.0
) -> dict[str, list[dict[str, Any]]]:
    """The events of each rollout that has rows, by `rollout_id`: as JSON, in order.

    ``at`` is the timestamp that they get; a server that stores them gives its own.
    """
    found = {}
    for rows in batch.by_rollout():
        first = rows[0]
        data = [_request(row, model, *turn) for row in rows for turn in _turns(row)]
        said = [{"event_type": "model_request", "data": one} for one in data]
        reward = {"value": first.reward, "source": "polar", "reason": first.reason}
        shared = {"rollout_id": first.rollout_id, "attempt_id": attempt_id, "timestamp": at}
        ended = {"event_type": "reward", "data": reward}
        found[first.rollout_id] = [{**event, **shared} for event in [*said, ended]]
    return found


def triplets(batch: Batch) -> dict[str, list[Any]]:
    """The `Triplet`s of each rollout; the last one has the reward."""
    kind = package("agentlightning.verl.agl_rollout_manager", "agentlightning[verl]").Triplet
    found: dict[str, list[Any]] = {}
    for rows in batch.by_rollout():
        turns = [(row, *turn) for row in rows for turn in _turns(row)]
        found[rows[0].rollout_id] = [
            kind(
                prompt={"token_ids": prompt},
                response={"token_ids": response, "log_probs": logprobs},
                reward=row.reward if at == len(turns) - 1 else None,
                metadata={"role": row.role, "version": version},
            )
            for at, (row, prompt, response, logprobs, version) in enumerate(turns)
        ]
    return found


def same_prompts(batch: Batch) -> int:
    """Turns that Agent Lightning's server drops, since a later one has the same prompt."""
    dropped = 0
    for rows in batch.by_rollout():
        prompts = [tuple(prompt) for row in rows for prompt, *_ in _turns(row)]
        dropped += len(prompts) - len(set(prompts))
    return dropped


Turn = tuple[list[int], list[int], list[float], Optional[str]]


def _turns(row: Row) -> Iterator[Turn]:
    """Prompt, reply, its logprobs and the weights that it ended with, of each sampled run."""
    logprobs = row.filled(0.0)
    for sampled, start, end in row.runs():
        if sampled:
            prompt = row.prompt_ids + row.response_ids[:start]
            last = row.versions[end - 1]
            yield prompt, row.response_ids[start:end], logprobs[start:end], last


def _request(
    row: Row,
    model: str,
    prompt: list[int],
    response: list[int],
    logprobs: list[float],
    version: Optional[str],
) -> dict[str, Any]:
    served = number(version, -1)
    return {
        "model": model,
        "model_version": None if served < 0 else served,
        "request": {"model": model, "messages": row.prompt_messages},
        "response": {
            "prompt_token_ids": prompt,
            "choices": [
                {
                    "token_ids": response,
                    "logprobs": {"content": [{"logprob": value} for value in logprobs]},
                }
            ],
        },
        "http_status": 200,
        "status": "ok",
        "finish_reason": row.finish_reason,
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(response)},
        "server": {"model": model, "version": None if served < 0 else served},
    }
