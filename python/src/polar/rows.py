"""Rows to train on: the traces of ended sessions with their rollouts' advantages.

Between what the server keeps and what trainers take. It decides what can be trained on,
says what was left out and why, and makes up nothing: a logprob that the engine did not
give is None here, and stays so until a caller says what to do about it. The bridges in
`polar.integrations` only lay rows out.

Pure, and without dependencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from polar.advantages import Advantages, Estimator, Graded, advantages
from polar.errors import PolarError
from polar.models import TokenTree, Trace, Trajectory, WeightSpan
from polar.results import Result

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

MissingLogprobs = Literal["raise", "leave_out", "keep"]
"""What becomes of a row that is to be trained on where a token has no logprob: an error, a
row less (counted), or a row in which it is None."""

Rollout: TypeAlias = "Union[Result, Trajectory]"

NO_TRAJECTORY = "no_trajectory"
"""Why a rollout has no rows: its session came to nothing that was kept."""

NOTHING_TO_TRAIN = "nothing_to_train"
"""Why a row is left out: none of its tokens is trained."""

LOGPROBS_MISSING = "logprobs_missing"
"""Why a row is left out: the engine gave no logprob for a token to train on."""


class MissingLogprobsError(PolarError):
    """A row is to be trained on, and the engine gave no logprob for some of its tokens."""


@dataclass(frozen=True)
class Row:
    """One sequence. Lists over the response are as long as `response_ids`."""

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    """1 where the policy sampled the token and it is to be trained on."""
    logprobs: list[Optional[float]]
    """Of the policy that sampled; None where there is none, as for all context."""
    versions: list[Optional[str]]
    """Which weights sampled the token; None for context, or where the engine has no label."""
    rollout_id: str
    group_id: str
    reward: float
    """Of the rollout."""
    advantage: float
    """Of the rollout, the same for all its tokens; 0.0 where none was asked for."""
    baseline: float
    """What the advantage was taken against."""
    siblings: int
    """Rows of this rollout in the batch."""
    loss_weight: float
    """`1 / siblings`: makes every rollout count once."""
    role: str
    """Who spoke: `main`, `sub_agent`, ...."""
    reason: str
    """How the session ended: `completed`, `agent_timeout`, ...."""
    finish_reason: Optional[str]
    """How the last reply ended: `stop`, `tool_calls`, `length`, ...."""
    prompt_messages: list[Any]
    response_messages: list[Any]
    tools: Any
    sampling: Mapping[str, Any]
    calls: list[str]
    turn_scores: list[Optional[float]] = field(default_factory=list)
    """What the evaluator gave each of the calls, None where nothing; empty where it gave none."""
    turn_ends: list[int] = field(default_factory=list)
    """One past the last response token of each call: the place of its score."""

    @property
    def token_ids(self) -> list[int]:
        """The whole sequence."""
        return [*self.prompt_ids, *self.response_ids]

    @property
    def trained(self) -> int:
        """Tokens to train on."""
        return sum(self.loss_mask)

    @property
    def truncated(self) -> bool:
        """Whether the agent or its last reply was cut off."""
        return self.reason == "agent_timeout" or self.finish_reason == "length"

    @property
    def temperature(self) -> float:
        """At which it was sampled, 1.0 where that is not known."""
        value = self.sampling.get("temperature")
        return 1.0 if value is None else float(value)

    def runs(self) -> Iterator[tuple[bool, int, int]]:
        """The response in runs of sampled tokens and of context: `(sampled, start, end)`."""
        start = 0
        for mask, tokens in groupby(self.loss_mask):
            end = start + len(list(tokens))
            yield mask == 1, start, end
            start = end

    def filled(self, value: float = 0.0) -> list[float]:
        """The logprobs as formats have them that know no gaps: ``value`` where the mask is 0.

        Raises `MissingLogprobsError` where a token to train on has none.
        """
        if lacks_logprobs(self.loss_mask, self.logprobs):
            raise MissingLogprobsError(_lacking(self.rollout_id, self.loss_mask, self.logprobs))
        return [
            value if mask == 0 or logprob is None else logprob
            for mask, logprob in zip(self.loss_mask, self.logprobs)
        ]


@dataclass(frozen=True)
class Batch:
    """Rows, those of a rollout beside each other, and what did not become one."""

    rows: list[Row]
    rollouts: list[Graded]
    """All that were given, each once, in their order: with reward and without."""
    advantages: Advantages
    left_out_rollouts: Counter[str] = field(default_factory=Counter)
    """Rollouts without a row, by reason."""
    left_out_rows: Counter[str] = field(default_factory=Counter)
    """Rows of the other rollouts that are not here, by reason."""
    untrained_tokens: Counter[str] = field(default_factory=Counter)
    """Tokens that were sampled and that the server marked as not to be trained, by reason."""

    def by_rollout(self) -> list[list[Row]]:
        """The rows of each rollout that has any."""
        return [list(rows) for _, rows in groupby(self.rows, key=lambda row: row.rollout_id)]

    def by_group(self) -> list[list[list[Row]]]:
        """The rows of each rollout of each group."""
        groups: dict[str, list[list[Row]]] = {}
        for rows in self.by_rollout():
            groups.setdefault(rows[0].group_id, []).append(rows)
        return list(groups.values())


def collect(
    rollouts: Iterable[Rollout],
    *,
    estimator: Optional[Estimator] = "group_relative",
    scale: bool = True,
    missing_logprobs: MissingLogprobs = "raise",
) -> Batch:
    """Rows of ended sessions: `Result`s as the client reads them, or trajectories.

    A group should be given whole, for its baseline is made of what is given. Sessions
    without a reward are left out and counted; with ``estimator=None`` there are no
    advantages, and they only need a reward. ``scale`` is as of `polar.advantages`.
    """
    given = {rollout_id: (graded, trajectory) for rollout_id, graded, trajectory in _read(rollouts)}
    graded = [rollout for rollout, _ in given.values()]
    found = advantages(graded, estimator or "group_relative", scale=scale)
    batch = Batch([], graded, found)
    for rollout, trajectory in given.values():
        if trajectory is not None:
            batch.untrained_tokens.update(trajectory.tokens.untrained)
        unknown = found.left_out.get(rollout.rollout_id)
        if rollout.reward is None or (unknown is not None and estimator is not None):
            batch.left_out_rollouts[unknown or NO_TRAJECTORY] += 1
        elif trajectory is None:
            batch.left_out_rollouts[NO_TRAJECTORY] += 1
        else:
            kept = _kept(_rows(trajectory, rollout, found, estimator), missing_logprobs, batch)
            weight = 1.0 / len(kept) if kept else 0.0
            batch.rows.extend(replace(row, siblings=len(kept), loss_weight=weight) for row in kept)
    return batch


def _read(
    rollouts: Iterable[Rollout],
) -> Iterator[tuple[str, Graded, Optional[Trajectory]]]:
    """A session's own reward goes before its trajectory's: it may have been graded anew."""
    for rollout in rollouts:
        if isinstance(rollout, Result):
            session, trajectory = rollout.session, rollout.trajectory
            graded = Graded(session.session_id, session.group_id, session.reward)
        else:
            trajectory = rollout
            graded = Graded(rollout.session_id, rollout.group_id, rollout.reward)
        yield graded.rollout_id, graded, trajectory


def _kept(rows: Iterable[Row], missing: MissingLogprobs, batch: Batch) -> list[Row]:
    """Those that can be trained on; the others are counted."""
    kept = []
    for row in rows:
        if not row.trained:
            batch.left_out_rows[NOTHING_TO_TRAIN] += 1
        elif missing == "keep" or not lacks_logprobs(row.loss_mask, row.logprobs):
            kept.append(row)
        elif missing == "leave_out":
            batch.left_out_rows[LOGPROBS_MISSING] += 1
        else:
            raise MissingLogprobsError(_lacking(row.rollout_id, row.loss_mask, row.logprobs))
    return kept


def lacks_logprobs(loss_mask: list[int], logprobs: list[Optional[float]]) -> bool:
    """Whether a token that is to be trained on has no logprob."""
    return any(mask and logprob is None for mask, logprob in zip(loss_mask, logprobs))


def _lacking(rollout_id: str, loss_mask: list[int], logprobs: list[Optional[float]]) -> str:
    lacking = sum(mask == 1 and logprob is None for mask, logprob in zip(loss_mask, logprobs))
    return (
        f"the engine gave no logprob for {lacking} of {sum(loss_mask)} tokens to train on in a "
        f"row of {rollout_id}; pass missing_logprobs='leave_out' to do without such rows"
    )


def _rows(
    trajectory: Trajectory, rollout: Graded, found: Advantages, estimator: Optional[Estimator]
) -> Iterator[Row]:
    known = found.by_rollout.get(rollout.rollout_id)
    traces = trajectory.traces if trajectory.tree is None else flattened(trajectory.tree)
    for trace in traces:
        yield Row(
            prompt_ids=trace.prompt_ids,
            response_ids=trace.response_ids,
            loss_mask=trace.loss_mask,
            logprobs=trace.response_logprobs,
            versions=_by_token(trace.weight_versions, len(trace.response_ids)),
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            reward=rollout.reward or 0.0,
            advantage=known.value if known and estimator is not None else 0.0,
            baseline=known.baseline if known else 0.0,
            siblings=1,
            loss_weight=1.0,
            role=str(trace.lineage.role),
            reason=str(trajectory.reason or "completed"),
            finish_reason=trace.finish_reason,
            prompt_messages=trace.prompt_messages,
            response_messages=trace.response_messages,
            tools=trace.tools,
            sampling=trace.sampling,
            calls=list(trace.calls),
            turn_scores=list(trace.turn_scores),
            turn_ends=list(trace.turn_ends),
        )


def _by_token(spans: Iterable[WeightSpan], length: int) -> list[Optional[str]]:
    versions: list[Optional[str]] = [None] * length
    for span in spans:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    return versions


def flattened(tree: TokenTree) -> Iterator[Trace]:
    """The sequences of a tree as traces. A token that several of them share is trained in
    the first one alone.
    """
    trained: set[int] = set()
    for lineage in tree.lineages:
        path: list[int] = []
        at: Optional[int] = lineage.last_node
        while at is not None:
            path.append(at)
            at = tree.nodes[at].parent
        ids: list[int] = []
        mask: list[int] = []
        logprobs: list[Optional[float]] = []
        spans: list[WeightSpan] = []
        begin = lineage.prompt_tokens
        for index in reversed(path):
            node = tree.nodes[index]
            start = len(ids) - begin
            own = index not in trained
            trained.add(index)
            ids += node.ids
            mask += node.loss_mask if own else [0] * len(node.ids)
            logprobs += node.logprobs if own else [None] * len(node.ids)
            spans += [
                WeightSpan(start=start + s.start, end=start + s.end, version=s.version)
                for s in node.weight_versions
                if own and start + s.start >= 0
            ]
        yield Trace(
            prompt_ids=ids[:begin],
            response_ids=ids[begin:],
            loss_mask=mask[begin:],
            response_logprobs=logprobs[begin:],
            prompt_messages=[tree.values[at] for at in lineage.prompt_messages],
            response_messages=[tree.values[at] for at in lineage.response_messages],
            weight_versions=spans,
            lineage=lineage.lineage,
            calls=lineage.calls,
            turn_scores=lineage.turn_scores,
            turn_ends=lineage.turn_ends,
            rollout_id="",
            group_id="",
            siblings=len(tree.lineages),
            loss_weight=1.0 / len(tree.lineages),
            sampling=lineage.sampling,
            tools=None if lineage.tools is None else tree.values[lineage.tools],
            finish_reason=lineage.finish_reason,
        )
