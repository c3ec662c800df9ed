from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from polar.models import ForkPoint, LineageInfo, TokenTree, TreeLineage, TreeNode, WeightSpan
from polar.rows import LOGPROBS_MISSING, NOTHING_TO_TRAIN, MissingLogprobsError, collect
from tests.training import group, result, trace, trajectory


def test_a_fork_does_not_move_the_baseline() -> None:
    batch = collect(group(), scale=False)
    assert {row.baseline for row in batch.rows} == {0.75}
    assert {row.rollout_id: row.advantage for row in batch.rows} == {
        "r0": 0.25,
        "r1": 0.25,
        "r2": 0.25,
        "r3": -0.75,
    }
    by_row = sum(row.reward for row in batch.rows) / len(batch.rows)
    assert by_row != 0.75


def test_every_rollout_weighs_one_however_many_rows_it_has() -> None:
    batch = collect(group())
    assert [len(rows) for rows in batch.by_rollout()] == [3, 1, 1, 1]
    for rows in batch.by_rollout():
        assert sum(row.loss_weight for row in rows) == pytest.approx(1.0)
        assert {row.siblings for row in rows} == {len(rows)}


def test_what_is_left_out_is_counted() -> None:
    batch = collect(group())
    assert batch.left_out_rollouts == {"no_reward": 2}
    assert batch.left_out_rows == {}
    assert [rollout.rollout_id for rollout in batch.rollouts] == [f"r{at}" for at in range(6)]
    assert collect(group(), estimator="leave_one_out").left_out_rollouts == {"no_reward": 2}


def test_a_missing_logprob_is_an_error_unless_said_otherwise() -> None:
    with pytest.raises(MissingLogprobsError, match=r"1 of 2 tokens.*r0.*leave_out"):
        collect(group(hole=True))


def test_a_row_with_a_hole_is_left_out_and_its_siblings_make_up_for_it() -> None:
    batch = collect(group(hole=True), missing_logprobs="leave_out")
    assert batch.left_out_rows == {LOGPROBS_MISSING: 1}
    rows = batch.by_rollout()[0]
    assert [(row.role, row.siblings, row.loss_weight) for row in rows] == [("main", 2, 0.5)] * 2
    assert {row.baseline for row in batch.rows} == {0.75}


def test_a_kept_hole_stays_a_hole() -> None:
    batch = collect(group(hole=True), missing_logprobs="keep")
    [row] = [row for row in batch.rows if row.role == "sub_agent"]
    assert row.logprobs[0] is None
    with pytest.raises(MissingLogprobsError):
        row.filled()


def test_context_has_no_logprob_and_is_filled_where_a_format_wants_it() -> None:
    row = collect(group()).rows[0]
    assert row.loss_mask == [1, 1, 0, 0, 1, 1, 1]
    assert row.logprobs == [-0.5, -0.75, None, None, -1.5, -1.75, -2.0]
    assert row.filled() == [-0.5, -0.75, 0.0, 0.0, -1.5, -1.75, -2.0]
    assert row.versions == ["step-3"] * 2 + [None] * 2 + ["step-3"] * 3
    assert list(row.runs()) == [(True, 0, 2), (False, 2, 4), (True, 4, 7)]
    assert row.token_ids == [1, 2, 3, 10, 11, 4, 5, 12, 13, 14]


def test_a_row_with_nothing_to_train_is_left_out() -> None:
    idle = trace([1], [5])
    idle.loss_mask = [0]
    ended = [trajectory("a", 1.0, idle, trace([1], [6])), trajectory("b", 0.0, trace([1], [7]))]
    batch = collect(ended)
    assert batch.left_out_rows == {NOTHING_TO_TRAIN: 1}
    assert [row.rollout_id for row in batch.rows] == ["a", "b"]
    assert batch.rows[0].loss_weight == 1.0


def test_tokens_that_the_server_does_not_train_are_told() -> None:
    found = trajectory("a", 1.0, trace([1], [5]), untrained={"side_call": 4, "logprob_missing": 2})
    assert collect([found]).untrained_tokens == {"side_call": 4, "logprob_missing": 2}


def test_a_session_that_was_graded_anew_has_its_new_reward() -> None:
    old = trajectory("a", 0.0, trace([1], [5]))
    assert collect([result("a", 1.0, old)]).rows[0].reward == 1.0


def test_a_graded_session_without_a_trajectory_is_part_of_the_baseline() -> None:
    batch = collect([*group()[:4], result("r9", 0.0, None)], scale=False)
    assert batch.left_out_rollouts == {"no_trajectory": 1}
    assert {row.baseline for row in batch.rows} == {0.6}


def test_without_an_estimator_there_are_no_advantages() -> None:
    batch = collect(group(), estimator=None)
    assert {row.advantage for row in batch.rows} == {0.0}
    assert len(batch.rows) == 6


def test_how_a_rollout_ended_is_told() -> None:
    rows = {row.rollout_id: row for row in collect(group()).rows}
    assert (rows["r2"].reason, rows["r2"].truncated) == ("agent_timeout", True)
    assert (rows["r3"].finish_reason, rows["r3"].truncated) == ("length", True)
    assert not rows["r1"].truncated
    assert rows["r1"].temperature == 0.7
    assert replace(rows["r1"], sampling={}).temperature == 1.0


def tree() -> TokenTree:
    """Two sequences that share a prompt and a reply: 1 2 [3 4] 5 [6] and 1 2 [3 4] 7 [8]."""

    def node(parent: Optional[int], ids: list[int], sampled: bool) -> TreeNode:
        span = WeightSpan(start=0, end=len(ids), version="9")
        return TreeNode(
            parent=parent,
            ids=ids,
            loss_mask=[int(sampled)] * len(ids),
            logprobs=[-float(one) if sampled else None for one in ids],
            weight_versions=[span] if sampled else [],
            calls=[],
            role="main",
        )

    def lineage(last: int, prompt: int, parent: Optional[int]) -> TreeLineage:
        fork = ForkPoint(cause="branch", shared_tokens=4)
        return TreeLineage(
            last_node=last,
            prompt_tokens=prompt,
            prompt_messages=[0],
            response_messages=[1],
            lineage=LineageInfo(role="main", fork=fork, parent=parent),
            calls=[],
            sampling={},
        )

    return TokenTree(
        nodes=[
            node(None, [1, 2], False),
            node(0, [3, 4], True),
            node(1, [5], False),
            node(2, [6], True),
            node(1, [7], False),
            node(4, [8], True),
        ],
        lineages=[lineage(3, 2, None), lineage(5, 5, 0)],
        values=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}],
    )


def test_a_tree_becomes_the_rows_that_merging_makes() -> None:
    first, second = collect([trajectory("a", 1.0, tree=tree())]).rows
    assert (first.prompt_ids, first.response_ids) == ([1, 2], [3, 4, 5, 6])
    assert first.loss_mask == [1, 1, 0, 1]
    assert first.versions == ["9", "9", None, "9"]
    assert (second.prompt_ids, second.response_ids) == ([1, 2, 3, 4, 7], [8])
    assert second.logprobs == [-8.0]
    assert first.trained + second.trained == 4
    assert first.prompt_messages == [{"role": "user", "content": "?"}]


def test_promise_1_a_reply_that_sequences_of_a_tree_share_is_trained_once() -> None:
    shared = tree()
    shared.lineages[1].prompt_tokens = 2
    first, second = collect([trajectory("a", 1.0, tree=shared)]).rows
    assert first.loss_mask == [1, 1, 0, 1]
    assert (second.prompt_ids, second.response_ids) == ([1, 2], [3, 4, 7, 8])
    assert second.loss_mask == [0, 0, 0, 1]
    assert second.logprobs == [None, None, None, -8.0]
    assert second.versions == [None, None, None, "9"]
