"""prime-rl: the samples that its orchestrator sends to the trainer.

Whole sequences with mask, logprob and temperature of each token, and the rollout's advantage
on those that are trained. What an environment of verifiers returns to the orchestrator is
in `polar.integrations.verifiers`.

prime-rl adds its losses up over tokens, where forks change nothing; ``weigh_rows`` is for
losses that take the mean over samples.
"""

from __future__ import annotations

from typing import Any, Optional

from polar.integrations._packages import package
from polar.rows import Batch, Row


def training_samples(
    batch: Batch, env_name: str, *, weigh_rows: bool = False, kind: Optional[Any] = None
) -> list[Any]:
    """A `TrainingSample` for each row. ``kind`` takes the place of prime-rl's own class."""
    if kind is None:
        source = "github.com/PrimeIntellect-ai/prime-rl"
        kind = package("prime_rl.transport", source).TrainingSample
    return [kind(**sample_fields(row, env_name, weigh_rows=weigh_rows)) for row in batch.rows]


def sample_fields(row: Row, env_name: str, *, weigh_rows: bool = False) -> dict[str, Any]:
    """The fields of a `TrainingSample`; lists are as long as the sequence."""
    context, length = len(row.prompt_ids), len(row.token_ids)
    mask = [False] * context + [on == 1 for on in row.loss_mask]
    advantage = row.advantage * (row.loss_weight if weigh_rows else 1.0)
    return {
        "token_ids": row.token_ids,
        "mask": mask,
        "logprobs": [0.0] * context + row.filled(0.0),
        "temperatures": [row.temperature] * length,
        "env_name": env_name,
        "advantages": [advantage if on else 0.0 for on in mask],
    }
