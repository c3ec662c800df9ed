"""What goes wrong where rollouts are captured otherwise, to be seen beside what Polar gives.

Each function makes rows that a trainer takes without a word; only the ratio of its
probabilities to those of sampling tells.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from polar.rows import Row


def merged_by_prompts(rows: list[Row]) -> Iterator[Row]:
    """Rows of single calls, merged wherever a prompt begins with the prompt before.

    What the later prompt has in the place of the reply is not looked at: the ids that were
    sampled stay, behind them comes the prompt's rest. Where an engine renders each prompt
    anew from messages, a reply may be other ids there than those that were sampled; then what
    follows was sampled in another context than it is trained in.
    """
    for _, own in groupby(rows, key=lambda row: row.rollout_id):
        merged: Row | None = None
        prompt: list[int] = []
        for row in own:
            if merged is None or row.prompt_ids[: len(prompt)] != prompt:
                if merged is not None:
                    yield merged
                merged = row
            else:
                merged = behind(merged, row)
            prompt = row.prompt_ids
        if merged is not None:
            yield merged


def behind(first: Row, then: Row) -> Row:
    """One row of two, with the rest of the second's prompt between them."""
    rest = then.prompt_ids[len(first.token_ids) :]
    start = len(first.response_ids) + len(rest)
    return replace(
        first,
        response_ids=[*first.response_ids, *rest, *then.response_ids],
        loss_mask=[*first.loss_mask, *[0] * len(rest), *then.loss_mask],
        logprobs=[*first.logprobs, *[None] * len(rest), *then.logprobs],
        versions=[*first.versions, *[None] * len(rest), *then.versions],
        calls=[*first.calls, *then.calls],
        turn_scores=[*first.turn_scores, *then.turn_scores],
        turn_ends=[*first.turn_ends, *[start + end for end in then.turn_ends]],
    )


def one_token_late(rows: list[Row]) -> Iterator[Row]:
    """Every logprob is that of the token before."""
    for row in rows:
        known = [value for value in row.logprobs if value is not None]
        yield with_logprobs(row, [0.0, *known[:-1]])


def noisy(rows: list[Row], source: random.Random) -> Iterator[Row]:
    """Every logprob is a little off, as those of another precision are."""
    for row in rows:
        known = [value for value in row.logprobs if value is not None]
        yield with_logprobs(row, [value + source.gauss(0.0, 0.5) for value in known])


def with_logprobs(row: Row, values: list[float]) -> Row:
    given = iter(values)
    return replace(row, logprobs=[v if v is None else next(given) for v in row.logprobs])
