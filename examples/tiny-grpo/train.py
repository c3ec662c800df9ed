"""The loop: an agent works, an evaluator scores, GRPO learns, and the engine gets the weights.

    train.py [--seeds 3] [--steps 22] [--overlap] [--corrupt shifted|noisy] [--check]

Sessions of the next step are submitted before the weights of this one are handed over, so
that weights change under running agents. Nothing here knows the agent, and the agent knows
nothing of this.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from polar import (
    HarnessSpec,
    PolarClient,
    Result,
    RuntimeSpec,
    SamplingPins,
    TaskRequest,
    WriteFile,
)
from polar.models import PythonEvaluator
from polar.rows import Batch, Row, collect

import deployment
import grpo
import model
import problems

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Settings:
    """How much of everything. A step is one group, all of whose sessions have the same requests."""

    steps: int = 22
    group_size: int = 8
    requests: int = 16
    held_out_requests: int = 20
    held_out_sessions: int = 4
    rate: float = 4e-4
    epochs: int = 2
    rows_at_once: int = 48
    corrupt: str = ""
    overlap: bool = False
    """Whether agents work while the policy learns: calls are under way when weights change."""


@dataclass
class Report:
    """What a seed came to."""

    seed: int
    before: float = 0.0
    after: float = 0.0
    rewards: list[float] = field(default_factory=list)
    drifts: list[grpo.Drift] = field(default_factory=list)
    stale_tokens: int = 0
    updates: int = 0
    updates_current: int = 0
    in_flight: int = 0
    calls: int = 0
    failed_sessions: int = 0
    seconds: float = 0.0


def main() -> int:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    base = model.make(arguments.cache / "base")
    out = deployment.fresh(arguments.out)
    settings = Settings(steps=arguments.steps, corrupt=arguments.corrupt, overlap=arguments.overlap)
    reports: list[Report] = []
    with deployment.running(base, out) as client:
        for seed in range(arguments.seeds):
            reports.append(Loop(client, base, out, seed, settings).run())
            show(reports[-1])
            keep(reports, out)
    print(f"the curve is in {out / 'curve.png'}")
    return check(reports) if arguments.check else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument(
        "--corrupt",
        choices=["shifted", "noisy"],
        default="",
        help="spoil the logprobs on their way to the trainer, to see what that does",
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="let agents work while the policy learns, so that calls see weights change",
    )
    parser.add_argument("--check", action="store_true", help="end with 1 unless all is exact")
    parser.add_argument("--threads", type=int, default=2, help="threads of the trainer")
    parser.add_argument("--out", type=Path, default=Path("tiny-grpo-out"))
    parser.add_argument("--cache", type=Path, default=Path("tiny-grpo-cache"))
    arguments = parser.parse_args()
    arguments.out, arguments.cache = arguments.out.resolve(), arguments.cache.resolve()
    return arguments


class Loop:
    """One seed: from the base model to the trained one."""

    def __init__(
        self, client: PolarClient, base: Path, out: Path, seed: int, settings: Settings
    ) -> None:
        self.client, self.out, self.seed, self.settings = client, out, seed, settings
        self.policy = grpo.Policy(model.load(base), settings.rate, seed)
        self.source = random.Random(seed)
        self.version = ""
        self.report = Report(seed)

    def run(self) -> Report:
        started = time.monotonic()
        self.push(0)
        self.report.before = self.held_out("before")
        task = self.submit("step-0")
        for step in range(self.settings.steps):
            task = self.step(step, task)
        self.report.after = self.held_out("after")
        self.report.seconds = time.monotonic() - started
        return self.report

    def step(self, step: int, task: str) -> str:
        """Learns from one group; gives the task of the next, whose agents run by then."""
        following = self.next_task(step) if self.settings.overlap else None
        batch = self.collected(self.results(task))
        fresh = [row for row in batch.rows if self.is_fresh(row)]
        self.report.stale_tokens += sum(row.trained for row in batch.rows) - sum(
            row.trained for row in fresh
        )
        self.report.drifts.append(self.policy.drift(fresh))
        rows = grpo.scored(batch)
        if rows:
            self.policy.step(rows, self.settings.epochs, self.settings.rows_at_once)
        following = self.next_task(step) if following is None else following
        self.push(step + 1)
        return following

    def next_task(self, step: int) -> str:
        return "" if step + 1 == self.settings.steps else self.submit(f"step-{step + 1}")

    def is_fresh(self, row: Row) -> bool:
        """Whether the weights that are trained now sampled all of it."""
        return all(
            v == self.version for v, on in zip(row.versions, row.loss_mask, strict=True) if on
        )

    def push(self, step: int) -> None:
        """Hands the weights over and waits until every engine has them."""
        self.version = f"seed-{self.seed}-step-{step}"
        folder = self.out / "weights" / self.version
        model.save(self.policy.model, folder)
        self.client.update_weights(self.version, path=str(folder), mode="pause")
        update = self.client.wait_for_weights(self.version, timeout=120)
        self.report.updates += 1
        self.report.updates_current += update.status == "current"
        calls = [engine.calls for engine in update.engines if engine.calls is not None]
        self.report.in_flight += sum(counted.in_flight or 0 for counted in calls)

    def submit(self, name: str) -> str:
        asked = problems.requests(self.source, self.settings.requests)
        return self.client.submit(self.task(name, asked, self.settings.group_size)).task_id

    def held_out(self, name: str) -> float:
        """Mean score of requests that are never trained on."""
        settings = self.settings
        asked = problems.requests(random.Random(7), settings.held_out_requests, held_out=True)
        task = self.client.submit(self.task(name, asked, settings.held_out_sessions))
        rewards = [result.session.reward or 0.0 for result in self.results(task.task_id)]
        return sum(rewards) / len(rewards)

    def task(self, name: str, asked: list[tuple[str, str]], sessions: int) -> TaskRequest:
        agent = WriteFile(path="agent.py", content=(HERE / "agent.py").read_text())
        return TaskRequest(
            task_id=f"tiny-grpo-{self.seed}-{name}",
            instruction=json.dumps([words for words, _ in asked]),
            harness=HarnessSpec(name="shell", command=f"{sys.executable} agent.py"),
            runtime=RuntimeSpec(type="local", prepare=[agent]),
            evaluator=PythonEvaluator(code=problems.EVALUATOR, python=sys.executable),
            num_samples=sessions,
            sampling=SamplingPins(temperature=1.0, max_tokens=40),
            timeout_seconds=300.0,
            metadata={"right": [tool for _, tool in asked]},
        )

    def results(self, task_id: str) -> list[Result]:
        results = list(self.client.results(task_id))
        self.report.calls += sum(r.session.report.calls for r in results if r.session.report)
        self.report.failed_sessions += sum(r.session.reason != "completed" for r in results)
        return results

    def collected(self, results: list[Result]) -> Batch:
        batch = collect(results, estimator=None)
        rewards = [rollout.reward for rollout in batch.rollouts if rollout.reward is not None]
        self.report.rewards.append(sum(rewards) / len(rewards) if rewards else 0.0)
        return replace(batch, rows=list(corrupted(batch.rows, self.settings.corrupt, self.source)))


def corrupted(rows: list[Row], how: str, source: random.Random) -> Iterator[Row]:
    """The rows with spoilt logprobs: each one token late, or with noise."""
    for row in rows:
        known = [value for value in row.logprobs if value is not None]
        if how == "shifted":
            known = [0.0, *known[:-1]]
        elif how == "noisy":
            known = [value + source.gauss(0.0, 0.5) for value in known]
        spoilt = iter(known)
        yield replace(row, logprobs=[v if v is None else next(spoilt) for v in row.logprobs])


def show(report: Report) -> None:
    fresh = [drift for drift in report.drifts if drift.tokens]
    tokens = sum(drift.tokens for drift in fresh)
    mean = sum(drift.mean * drift.tokens for drift in fresh) / max(tokens, 1)
    largest = max((drift.largest for drift in fresh), default=0.0)
    print(
        f"seed {report.seed}: held out {report.before:.2f} -> {report.after:.2f} "
        f"in {report.seconds:.0f} s; |ratio - 1| on {tokens} fresh tokens mean {mean:.1e} "
        f"max {largest:.1e}; {report.stale_tokens} tokens of older weights; "
        f"{report.updates_current} of {report.updates} updates current, "
        f"{report.in_flight} calls in flight in them; {report.calls} calls, "
        f"{report.failed_sessions} sessions failed",
        flush=True,
    )


def check(reports: list[Report]) -> int:
    """What must hold of any run, however short."""
    wrong = []
    for report in reports:
        fresh = [drift for drift in report.drifts if drift.tokens]
        if not fresh:
            wrong.append(f"seed {report.seed}: no fresh tokens")
        if any(drift.largest > 1e-3 for drift in fresh):
            wrong.append(f"seed {report.seed}: trainer and engine differ: {fresh}")
        if report.updates_current != report.updates:
            wrong.append(
                f"seed {report.seed}: {report.updates_current} of {report.updates} updates"
            )
        if report.failed_sessions:
            wrong.append(f"seed {report.seed}: {report.failed_sessions} sessions failed")
        if not any(report.rewards):
            wrong.append(f"seed {report.seed}: no reward")
    print(
        "\n".join(wrong)
        if wrong
        else f"{len(reports)} passed in {sum(r.seconds for r in reports):.0f} s"
    )
    return 1 if wrong else 0


def keep(reports: list[Report], out: Path) -> None:
    """Numbers and curve of the seeds so far."""
    (out / "report.json").write_text(json.dumps([asdict(report) for report in reports], indent=1))
    draw(reports, out / "curve.png")


def draw(reports: list[Report], path: Path) -> None:
    """Reward by step, a line for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for report in reports:
        steps = range(len(report.rewards))
        [line] = axes.plot(steps, report.rewards, label=f"seed {report.seed}")
        ends = ([0, len(report.rewards)], [report.before, report.after])
        axes.scatter(*ends, color=line.get_color(), marker="x")
    axes.axhline(1 / 3, color="grey", linestyle=":", label="by lot")
    axes.set(xlabel="step", ylabel="reward (x: held out)", ylim=(0, 1.02))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
