from __future__ import annotations

from math import sqrt
from typing import Optional

import pytest

from polar.advantages import ALONE, NO_REWARD, Graded, advantages


def graded(*rewards: Optional[float], group: str = "g") -> list[Graded]:
    return [Graded(f"{group}{at}", group, reward) for at, reward in enumerate(rewards)]


def test_a_group_is_measured_against_its_mean() -> None:
    found = advantages(graded(1, 1, 1, 0), scale=False)
    assert {one.baseline for one in found.by_rollout.values()} == {0.75}
    assert [one.value for one in found.by_rollout.values()] == [0.25, 0.25, 0.25, -0.75]


def test_scaled_advantages_have_the_spread_of_one() -> None:
    found = advantages(graded(1, 1, 1, 0))
    spread = sqrt(0.75 * 0.25)
    assert found.value("g0") == pytest.approx(0.25 / spread, rel=1e-5)
    assert found.value("g3") == pytest.approx(-0.75 / spread, rel=1e-5)
    assert found.by_rollout["g0"].spread == pytest.approx(spread)


def test_leave_one_out_measures_against_the_others() -> None:
    found = advantages(graded(1, 1, 1, 0), "leave_one_out")
    assert found.by_rollout["g0"].baseline == pytest.approx(2 / 3)
    assert found.value("g0") == pytest.approx(1 / 3)
    assert found.value("g3") == -1.0
    assert sum(one.value for one in found.by_rollout.values()) == pytest.approx(0.0)


def test_groups_do_not_mix() -> None:
    found = advantages([*graded(1, 0), *graded(0.5, 0.5, group="h")], scale=False)
    assert [found.value(name) for name in ("g0", "g1", "h0", "h1")] == [0.5, -0.5, 0.0, 0.0]


def test_a_rollout_without_reward_is_no_zero() -> None:
    found = advantages(graded(1, None, 1, 0), scale=False)
    assert found.by_rollout["g0"].baseline == pytest.approx(2 / 3)
    assert found.value("g1") is None
    assert found.left_out == {"g1": NO_REWARD}
    assert found.reasons == {NO_REWARD: 1}


def test_a_rollout_given_twice_counts_once() -> None:
    one, other = graded(1, 0)
    assert advantages([one, other, one], scale=False).by_rollout["g0"].baseline == 0.5


def test_alone_there_is_nobody_to_be_measured_against() -> None:
    assert advantages(graded(1, None), "leave_one_out").left_out == {"g0": ALONE, "g1": NO_REWARD}
    assert advantages(graded(1)).value("g0") == 0.0


def test_nearly_equal_rewards_do_not_blow_up() -> None:
    values = advantages(graded(1, 1 + 1e-9)).by_rollout.values()
    assert all(abs(one.value) < 1e-2 for one in values)
    assert advantages([]).by_rollout == {}
