"""GRPO in PyTorch, on the rows that Polar gives.

Every request that the agent was given is a conversation of its own, and so a row. The
evaluator scored each; a row is measured against the rows of the same request in the other
sessions of its group.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from polar.advantages import Graded, advantages
from polar.integrations import torch as tensors
from polar.rows import Batch, Row

CLIP_LOW, CLIP_HIGH = 0.2, 0.28


@dataclass(frozen=True)
class Drift:
    """How far the trainer's probability of a sampled token is from the engine's, as a ratio."""

    tokens: int
    mean: float
    largest: float


def scored(batch: Batch) -> list[tuple[Row, float]]:
    """Rows that are to be learnt from, each with its advantage."""
    graded, rows = [], {}
    for at, row in enumerate(batch.rows):
        name = f"{row.rollout_id} {at}"
        asked = row.prompt_messages[-1]["content"]
        graded.append(Graded(name, f"{row.group_id} {asked}", score(row)))
        rows[name] = row
    found = advantages(graded)
    return [(rows[name], one.value) for name, one in found.by_rollout.items() if one.value]


def score(row: Row) -> float | None:
    """What the evaluator gave the row's call."""
    return row.turn_scores[-1] if row.turn_scores else None


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

    def step(self, rows: list[tuple[Row, float]], epochs: int, at_once: int) -> None:
        """Goes over the rows ``epochs`` times, ``at_once`` for each step of the optimiser."""
        for _ in range(epochs):
            self._source.shuffle(rows)
            for start in range(0, len(rows), at_once):
                self._update(rows[start : start + at_once])

    def _update(self, rows: list[tuple[Row, float]]) -> None:
        batch = tensors.padded(Batch([row for row, _ in rows], [], advantages([])))
        advantage = torch.tensor([value for _, value in rows])[:, None]
        mask = batch["loss_mask"][:, 1:]
        # Where nothing was sampled there is no logprob; those places are not looked at.
        sampled = torch.where(mask, batch["logprobs"][:, 1:], 0.0)
        ratio = torch.exp(torch.where(mask, self.logprobs(batch) - sampled, 0.0))
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        gain = torch.minimum(ratio * advantage, clipped * advantage)
        loss = -torch.where(mask, gain, 0.0).sum() / mask.sum()
        self._optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._steps += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate * min(1.0, self._steps / 5)
        self._optimiser.step()

    def logprobs(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Of each token but the first, in its context."""
        logits = self.model(input_ids=batch["input_ids"]).logits[:, :-1]
        following = batch["input_ids"][:, 1:, None]
        return logits.log_softmax(-1).gather(-1, following)[..., 0]

    def drift(self, rows: list[Row]) -> Drift:
        """How far sampling and training are apart, before anything was learnt of these rows."""
        if not rows:
            return Drift(0, 0.0, 0.0)
        batch = tensors.padded(Batch(rows, [], advantages([])))
        mask = batch["loss_mask"][:, 1:]
        with torch.no_grad():
            apart = (self.logprobs(batch) - batch["logprobs"][:, 1:])[mask]
        ratio = (apart.exp() - 1).abs()
        return Drift(len(ratio), ratio.mean().item(), ratio.max().item())
