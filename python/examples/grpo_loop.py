"""A trainer's side of GRPO: groups of sessions in, rows with advantages out.

    polar up --engine http://localhost:8000        # or the two processes of the README
    python examples/grpo_loop.py localhost:50051 --state state.json

It may be stopped and started again at any time: tasks are submitted under fixed ids, so
none is run twice, and what was trained on is noted with the cursor after each step, so no
group is lost or trained on twice. Put your optimiser step where `train_on` stands.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Optional

from polar import CommandEvaluator, PolarClient, Result, SamplingPins, TaskRequest, Trace

GROUP_SIZE = 8


@dataclass(frozen=True)
class Row:
    """One sequence of a training batch. All lists are as long as `token_ids`."""

    token_ids: list[int]
    loss_mask: list[int]
    """1 where the policy sampled the token and it is to be trained on."""
    logprobs: list[Optional[float]]
    """Of the policy that sampled; None where the token was not sampled."""
    advantage: float
    weight: float
    """Makes each rollout count once, however many traces it has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", nargs="?", default="localhost:50051")
    parser.add_argument("--state", type=Path, default=Path("state.json"))
    arguments = parser.parse_args()

    with PolarClient(arguments.server) as client:
        tasks = client.submit_batch(problems())
        state = Progress.load(arguments.state)
        groups: dict[str, list[Result]] = defaultdict(list)
        sizes = {task.task_id: task.num_samples for task in tasks}
        for result in client.results(*sizes, after=state.cursor):
            session = result.session
            if session.group_id in state.trained:
                continue
            group = groups[session.group_id]
            group.append(result)
            if len(group) == sizes[session.task_id]:
                train_on(rows(groups.pop(session.group_id)))
                state.trained.append(session.group_id)
                # Groups that still wait for members are read again from their first one.
                begun = [other[0].cursor - 1 for other in groups.values()]
                state.cursor = min(begun, default=result.cursor)
                state.save(arguments.state)


@dataclass
class Progress:
    """What a restart must know. Write it together with your checkpoint."""

    cursor: int = 0
    trained: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Progress:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, path: Path) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(path)


def problems() -> list[TaskRequest]:
    """What to practise: here, two tiny tasks."""
    return [
        TaskRequest(
            task_id=f"grpo-example-{name}",
            instruction=f"Write the {name} to answer.txt.",
            harness="pi",
            evaluator=CommandEvaluator(command=f"grep -qx '{answer}' answer.txt"),
            num_samples=GROUP_SIZE,
            sampling=SamplingPins(temperature=1.0),
            timeout_seconds=600,
        )
        for name, answer in [("sum of 17 and 25", "42"), ("seventh prime number", "17")]
    ]


def rows(group: list[Result]) -> list[Row]:
    """The group's traces, each with its rollout's advantage over the group's mean."""
    rewards = [result.session.reward for result in group]
    known = [reward for reward in rewards if reward is not None]
    spread = pstdev(known) if known else 0.0
    if spread == 0.0:
        return []  # All alike: nothing to learn from.
    return [
        row(trace, (reward - fmean(known)) / spread)
        for result, reward in zip(group, rewards)
        if result.trajectory is not None and reward is not None
        for trace in result.trajectory.traces
    ]


def row(trace: Trace, advantage: float) -> Row:
    """A trace at full length: Polar's lists cover the response, the prompt goes before."""
    before = len(trace.prompt_ids)
    unknown: list[Optional[float]] = [None] * before
    return Row(
        token_ids=trace.token_ids,
        loss_mask=[0] * before + trace.loss_mask,
        logprobs=unknown + trace.response_logprobs,
        advantage=advantage,
        weight=trace.loss_weight,
    )


def train_on(batch: list[Row]) -> None:
    """Stands for the optimiser step."""
    trained = sum(sum(row.loss_mask) for row in batch)
    print(f"{len(batch)} sequences, {trained} tokens to train on")


if __name__ == "__main__":
    main()
