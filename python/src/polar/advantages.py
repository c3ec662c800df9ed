"""Advantages of rollouts over what their group reached.

A rollout is one session, in however many rows its tokens come: a rewritten history or a
sub-agent makes a row of its own. So all is counted by rollout here. Three rollouts of
reward 1 and one of reward 0 have the baseline 0.75, whether or not one of them forked;
counted by row it would move with every fork.

Pure, and without dependencies. `polar.rows.collect` puts the numbers on rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Literal, Optional

Estimator = Literal["group_relative", "leave_one_out"]
"""`group_relative`: reward minus the group's mean, over its spread (GRPO).
`leave_one_out`: reward minus the mean of the others (RLOO)."""

NO_REWARD = "no_reward"
"""Why a rollout has no advantage: it was not graded, so nothing is known of it."""

ALONE = "alone_in_group"
"""Why a rollout has no advantage: no other of its group has a reward to compare with."""

SPREAD_FLOOR = 1e-6
"""Added to the spread, so that rewards that are nearly alike do not blow up."""


@dataclass(frozen=True)
class Graded:
    """A rollout as far as advantages go."""

    rollout_id: str
    group_id: str
    reward: Optional[float]
    """None where it has none. That is no 0: it takes no part in the baseline."""


@dataclass(frozen=True)
class Advantage:
    """What a rollout reached beyond its group."""

    value: float
    baseline: float
    """What was taken from the reward: the mean of the group, or of its others."""
    spread: float
    """Standard deviation of the group's rewards."""


@dataclass(frozen=True)
class Advantages:
    """Advantages by `rollout_id`, and which rollouts have none."""

    by_rollout: dict[str, Advantage] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """The reason for each rollout without one."""

    def value(self, rollout_id: str) -> Optional[float]:
        """The advantage of a rollout; None where it has none."""
        found = self.by_rollout.get(rollout_id)
        return None if found is None else found.value

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many rollouts have none, by reason."""
        return Counter(self.left_out.values())


def advantages(
    rollouts: Iterable[Graded],
    estimator: Estimator = "group_relative",
    *,
    scale: bool = True,
) -> Advantages:
    """The advantage of each rollout within its group.

    A rollout that is given twice, as after a restart, counts once. With ``scale``
    `group_relative` is divided by the spread; without, it is the plain difference.
    """
    groups: dict[str, dict[str, Optional[float]]] = defaultdict(dict)
    for rollout in rollouts:
        groups[rollout.group_id][rollout.rollout_id] = rollout.reward
    found = Advantages()
    for group in groups.values():
        rewards = {name: reward for name, reward in group.items() if reward is not None}
        found.left_out.update({name: NO_REWARD for name in group if name not in rewards})
        if estimator == "leave_one_out" and len(rewards) == 1:
            found.left_out.update(dict.fromkeys(rewards, ALONE))
            continue
        values = list(rewards.values())
        for name, advantage in zip(rewards, _ESTIMATORS[estimator](values, scale)):
            found.by_rollout[name] = advantage
    return found


def _group_relative(rewards: Sequence[float], scale: bool) -> list[Advantage]:
    baseline, spread = mean_and_spread(rewards)
    divisor = spread + SPREAD_FLOOR if scale else 1.0
    return [Advantage((reward - baseline) / divisor, baseline, spread) for reward in rewards]


def _leave_one_out(rewards: Sequence[float], _scale: bool) -> list[Advantage]:
    total, others = sum(rewards), len(rewards) - 1
    _, spread = mean_and_spread(rewards)
    baselines = [(total - reward) / others for reward in rewards]
    return [
        Advantage(reward - baseline, baseline, spread)
        for reward, baseline in zip(rewards, baselines)
    ]


_ESTIMATORS = {"group_relative": _group_relative, "leave_one_out": _leave_one_out}


def mean_and_spread(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a group; zeros where it is empty."""
    if not rewards:
        return 0.0, 0.0
    mean = sum(rewards) / len(rewards)
    return mean, sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
