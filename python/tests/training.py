"""Sessions as a trainer gets them: a group with forks, a sub-agent, timeouts and holes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from polar import Result, SessionInfo, Trace, Trajectory
from polar.models import ForkPoint, LineageInfo, TokenCounts, TokenTree, WeightSpan
from tests.conftest import session_info


def trace(
    prompt: Sequence[int],
    *runs: Sequence[int],
    role: str = "main",
    version: Optional[str] = "step-3",
    finish_reason: str = "stop",
    hole: bool = False,
) -> Trace:
    """A prompt, then runs of tokens that were sampled and of context in turn. ``hole`` takes a
    logprob away.
    """
    ids: list[int] = []
    mask: list[int] = []
    spans: list[WeightSpan] = []
    messages: list[dict[str, Any]] = []
    for at, run in enumerate(runs):
        sampled = at % 2 == 0
        if sampled:
            spans.append(WeightSpan(start=len(ids), end=len(ids) + len(run), version=version))
        ids += run
        mask += [int(sampled)] * len(run)
        messages.append({"role": "assistant" if sampled else "user", "content": f"{list(run)}"})
    logprobs = [-0.5 - 0.25 * at if on else None for at, on in enumerate(mask)]
    if hole:
        logprobs[0] = None
    return Trace(
        prompt_ids=list(prompt),
        response_ids=ids,
        loss_mask=mask,
        response_logprobs=logprobs,
        prompt_messages=[{"role": "user", "content": "Do it."}],
        response_messages=messages,
        weight_versions=spans,
        lineage=LineageInfo(role=role, fork=ForkPoint(cause="new_lineage", shared_tokens=0)),
        calls=[f"call-{ids[0]}"],
        rollout_id="",
        group_id="",
        siblings=1,
        loss_weight=1.0,
        sampling={"temperature": 0.7},
        finish_reason=finish_reason,
    )


def trajectory(
    session_id: str,
    reward: Optional[float],
    *traces: Trace,
    group_id: str = "g",
    reason: str = "completed",
    tree: Optional[TokenTree] = None,
    untrained: Optional[dict[str, int]] = None,
) -> Trajectory:
    trained = sum(sum(one.loss_mask) for one in traces)
    lost = untrained or {}
    counts = TokenCounts(
        sampled=trained + sum(lost.values()), trained=trained, context=0, untrained=lost
    )
    for one in traces:
        one.rollout_id, one.group_id, one.siblings = session_id, group_id, len(traces)
        one.loss_weight, one.reward = 1.0 / len(traces), reward
    return Trajectory(
        session_id=session_id,
        task_id=group_id,
        group_id=group_id,
        strategy="prefix_tree" if tree else "prefix_merging",
        traces=list(traces),
        tree=tree,
        tokens=counts,
        forks={},
        reward=reward,
        reason=reason,
    )


def result(
    session_id: str, reward: Optional[float], found: Optional[Trajectory], **more: Any
) -> Result:
    info = session_info(session_id, "g", reward=reward, **more)
    return Result(SessionInfo.model_validate(info), found, 0)


def group(hole: bool = False) -> list[Result]:
    """Six rollouts with the rewards 1, 1, 1, 0 and two without. The first one forked and had a
    sub-agent, the third one ran out of time and was graded, the fifth one was not, and the
    sixth one never ran.
    """
    rollouts: list[tuple[str, Optional[float], str, list[Trace]]] = [
        (
            "r0",
            1.0,
            "completed",
            [
                trace([1, 2, 3], [10, 11], [4, 5], [12, 13, 14]),
                trace([1, 2, 3, 10], [15], version="step-4"),
                trace([7, 8], [20, 21], role="sub_agent", hole=hole),
            ],
        ),
        ("r1", 1.0, "completed", [trace([1, 2, 3], [16, 17])]),
        ("r2", 1.0, "agent_timeout", [trace([1, 2, 3], [18], finish_reason="cancelled")]),
        ("r3", 0.0, "completed", [trace([1, 2, 3], [19, 22, 23], finish_reason="length")]),
        ("r4", None, "agent_timeout", [trace([1, 2, 3], [24])]),
    ]
    ended = [
        result(name, reward, trajectory(name, reward, *traces, reason=reason), sample_index=at)
        for at, (name, reward, reason, traces) in enumerate(rollouts)
    ]
    return [*ended, result("r5", None, None, sample_index=5, status="failed")]
