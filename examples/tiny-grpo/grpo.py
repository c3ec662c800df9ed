"""GRPO in PyTorch, on the rows that Polar gives.

A session is one conversation, and its row has the call that answered each request. The
evaluator scored every call; a call is measured against those that answered the same request
in the other sessions of the group, and its tokens get its advantage.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from polar.advantages import Graded, advantages
from polar.integrations import torch as tensors
from polar.rows import Batch, Row

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
MOST_APART = 20.0
"""Logprobs further apart than this are counted as so far: the ratio is beyond all sense."""


@dataclass(frozen=True)
class Drift:
    """How far the trainer's probability of a sampled token is from the engine's, as a ratio."""

    tokens: int
    mean: float
    largest: float


@dataclass(frozen=True)
class Weighed:
    """A row, and the advantage of each of its response tokens."""

    row: Row
    advantages: list[float]


@dataclass(frozen=True)
class Turn:
    """What one call sampled: response tokens of a row."""

    name: str
    asked: str
    """The same for all calls that answered the same request in the group."""
    start: int
    end: int
    score: float | None


def weighed(rows: list[Row]) -> list[Weighed]:
    """Rows that are to be learnt from."""
    turns = [list(turns_of(row, at)) for at, row in enumerate(rows)]
    graded = [Graded(turn.name, turn.asked, turn.score) for own in turns for turn in own]
    found = advantages(graded)
    all_of_them = []
    for row, own in zip(rows, turns, strict=True):
        by_token = [0.0] * len(row.response_ids)
        for turn in own:
            value = found.value(turn.name) or 0.0
            by_token[turn.start : turn.end] = [value] * (turn.end - turn.start)
        all_of_them.append(Weighed(row, by_token))
    return [one for one in all_of_them if any(one.advantages)]


def turns_of(row: Row, at: int) -> Iterator[Turn]:
    """The calls of a row. Each answers the request after the one before."""
    first = sum(message["role"] == "user" for message in row.prompt_messages)
    start = 0
    for number, end in enumerate(row.turn_ends):
        score = row.turn_scores[number] if row.turn_scores else None
        yield Turn(f"{at} {number}", f"{row.group_id} {first + number}", start, end, score)
        start = end


class Policy:
    """The model that is trained."""

    def __init__(self, model: torch.nn.Module, rate: float, seed: int) -> None:
        self.model = model.train()
        self._rate = rate
        self._steps = 0
        self._optimiser = torch.optim.AdamW(
            model.parameters(), lr=rate, weight_decay=0.0, betas=(0.9, 0.95)
        )
        self._source = random.Random(seed)

    def step(self, rows: list[Weighed], epochs: int, at_once: int, share: float) -> None:
        """Goes over the rows ``epochs`` times; the optimiser steps after ``at_once`` sessions, with
        a ``share`` of the learning rate.
        """
        sessions = [list(own) for _, own in groupby(rows, key=lambda one: one.row.rollout_id)]
        for _ in range(epochs):
            self._source.shuffle(sessions)
            for start in range(0, len(sessions), at_once):
                chosen = sessions[start : start + at_once]
                self._update([row for session in chosen for row in session], share)

    def _update(self, rows: list[Weighed], share: float) -> None:
        batch = padded([one.row for one in rows])
        mask = batch["loss_mask"][:, 1:]
        advantage = torch.zeros(mask.shape)
        for at, one in enumerate(rows):
            start = len(one.row.prompt_ids) - 1
            advantage[at, start : start + len(one.advantages)] = torch.tensor(one.advantages)
        # Where nothing was sampled there is no logprob; those places are not looked at.
        sampled = torch.where(mask, batch["logprobs"][:, 1:], 0.0)
        apart = torch.where(mask, self.logprobs(batch) - sampled, 0.0)
        ratio = apart.clamp(-MOST_APART, MOST_APART).exp()
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        gain = torch.minimum(ratio * advantage, clipped * advantage)
        loss = -torch.where(mask, gain, 0.0).sum() / mask.sum()
        self._optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._steps += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate * share * min(1.0, self._steps / 5)
        self._optimiser.step()

    def logprobs(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Of each token but the first, in its context."""
        logits = self.model(input_ids=batch["input_ids"]).logits[:, :-1]
        following = batch["input_ids"][:, 1:, None]
        return logits.log_softmax(-1).gather(-1, following)[..., 0]

    def drift(self, rows: list[Row], version: str) -> Drift:
        """How far sampling and training are apart on tokens that ``version`` sampled.

        To be asked before anything is learnt of them: these are the weights that sampled.
        """
        if not rows:
            return Drift(0, 0.0, 0.0)
        batch = padded(rows)
        fresh = torch.zeros(batch["loss_mask"].shape, dtype=torch.bool)
        for at, row in enumerate(rows):
            places = torch.tensor([found == version for found in row.versions], dtype=torch.bool)
            fresh[at, len(row.prompt_ids) : len(row.token_ids)] = places
        chosen = (fresh & batch["loss_mask"])[:, 1:]
        with torch.no_grad():
            apart = (self.logprobs(batch) - batch["logprobs"][:, 1:])[chosen]
        if not len(apart):
            return Drift(0, 0.0, 0.0)
        ratio = (apart.clamp(-MOST_APART, MOST_APART).exp() - 1).abs()
        return Drift(len(ratio), ratio.mean().item(), ratio.max().item())


def padded(rows: list[Row]) -> dict[str, torch.Tensor]:
    return tensors.padded(Batch(rows, [], advantages([])))
