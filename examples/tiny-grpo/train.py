"""The loop: an agent works, an evaluator scores, GRPO learns, and the engine gets the weights.

    train.py [--seeds 3] [--steps 16] [--variant exact chat by-prompts late noisy] [--check]

Agents of the next step begin before the weights of this one are handed over, so that weights
change under their calls. Nothing here knows the agent, and the agent knows
nothing of this.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from polar.models import HttpEvaluator
from polar.rows import Row, collect

import deployment
import grpo
import model
import problems
import spoilt
from report import Report, check, keep, show

HERE = Path(__file__).resolve().parent
# The agent needs no more than the standard library, and a thousand of them are started.
PYTHON = f"{sys.executable} -I -S"


@dataclass(frozen=True)
class Variant:
    """How rollouts become rows."""

    token_mode: bool = True
    """Whether Polar makes the prompts, or the engine renders each of them from messages."""
    calls_alone: bool = False
    """Whether a row is one call, for the trainer to merge."""
    spoil: Callable[[list[Row], random.Random], Iterable[Row]] | None = None


VARIANTS = {
    "exact": Variant(),
    "chat": Variant(token_mode=False),
    "by-prompts": Variant(False, True, lambda rows, _: spoilt.merged_by_prompts(rows)),
    "late": Variant(spoil=lambda rows, _: spoilt.one_token_late(rows)),
    "noisy": Variant(spoil=spoilt.noisy),
}


@dataclass(frozen=True)
class Settings:
    """How much of everything. All sessions of a group have the same requests."""

    steps: int = 16
    groups: int = 4
    group_size: int = 6
    requests: int = 6
    held_out_sessions: int = 2
    rate: float = 1e-3
    epochs: int = 2
    sessions_at_once: int = 8


def main() -> int:
    arguments = parse()
    # Whoever ends it ends the engine and Polar with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(arguments.threads)
    started = time.monotonic()
    base = model.make(arguments.cache / "base")
    out = deployment.fresh(arguments.out)
    settings = Settings(steps=arguments.steps)
    reports: list[Report] = []
    with deployment.engine(base, out) as engine, problems.evaluator() as evaluator:
        for name in arguments.variant:
            state = out / f"polar-{name}"
            with deployment.polar(engine, state, VARIANTS[name].token_mode) as client:
                for seed in range(arguments.seeds):
                    loop = Loop(client, evaluator, base, out, name, seed, settings)
                    reports.append(loop.run())
                    show(reports[-1])
                    keep(reports, out)
    print(f"{time.monotonic() - started:.0f} s in all; the curve is in {out / 'curve.png'}")
    return check(reports) if arguments.check else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument(
        "--variant",
        nargs="+",
        choices=list(VARIANTS),
        default=["exact"],
        help="how rollouts become rows: exactly; by chats that the engine renders, exactly too; "
        "by such chats, merged by their prompts alone; with logprobs one token late; with noise",
    )
    parser.add_argument("--check", action="store_true", help="end with 1 unless all is as it must")
    parser.add_argument("--threads", type=int, default=2, help="threads of the trainer")
    parser.add_argument("--out", type=Path, default=Path("tiny-grpo-out"))
    parser.add_argument("--cache", type=Path, default=Path("tiny-grpo-cache"))
    arguments = parser.parse_args()
    arguments.out, arguments.cache = arguments.out.resolve(), arguments.cache.resolve()
    return arguments


class Loop:
    """One seed: from the base model to the trained one."""

    def __init__(
        self,
        client: PolarClient,
        evaluator: str,
        base: Path,
        out: Path,
        name: str,
        seed: int,
        settings: Settings,
    ) -> None:
        self.client, self.evaluator, self.out, self.settings = client, evaluator, out, settings
        self.variant = VARIANTS[name]
        self.name = f"{name}-{seed}"
        self.policy = grpo.Policy(model.load(base), settings.rate, seed)
        self.source = random.Random(seed)
        self.version = ""
        self.report = Report(name, seed)

    def run(self) -> Report:
        started = time.monotonic()
        self.push(0)
        self.report.before = self.held_out("before")
        tasks = self.submit(0)
        for step in range(self.settings.steps):
            tasks = self.step(step, tasks)
        self.report.after = self.held_out("after")
        self.report.seconds = time.monotonic() - started
        return self.report

    def step(self, step: int, tasks: list[str]) -> list[str]:
        """Learns from the groups; gives the tasks of the next step, whose agents run by then."""
        with self.report.spent("sampling"):
            rows = self.rows(self.results(tasks))
        with self.report.spent("learning"):
            self.report.drifts.append(self.policy.drift(rows, self.version))
            self.report.tokens += sum(row.trained for row in rows)
            chosen = grpo.weighed(rows)
            if chosen:
                settings = self.settings
                share = 1.0 - 0.7 * step / settings.steps
                self.policy.step(chosen, settings.epochs, settings.sessions_at_once, share)
        with self.report.spent("weights"):
            # Agents are at work by then: weights change under their calls.
            following = self.submit(step + 1)
            self.wait_until_working(following)
            self.push(step + 1)
        return following

    def wait_until_working(self, tasks: list[str]) -> None:
        """Until the first agents run, if there are any to come."""
        while tasks and not any(self.client.task(t).sessions.get("running") for t in tasks):
            time.sleep(0.1)

    def push(self, step: int) -> None:
        """Hands the weights over and waits until every engine has them."""
        self.version = f"{self.name}-step-{step}"
        folder = self.out / "weights" / self.version
        model.save(self.policy.model, folder)
        self.client.update_weights(self.version, path=str(folder), mode="pause")
        update = self.client.wait_for_weights(self.version, timeout=120)
        self.report.updates += 1
        self.report.updates_current += update.status == "current"
        calls = [engine.calls for engine in update.engines if engine.calls is not None]
        self.report.in_flight += sum(counted.in_flight or 0 for counted in calls)

    def submit(self, step: int) -> list[str]:
        """The groups of a step; none behind the last one."""
        settings = self.settings
        if step == settings.steps:
            return []
        asked = problems.requests(self.source, settings.groups * settings.requests)
        return self.submitted(f"step-{step}", asked, settings.group_size)

    def held_out(self, name: str) -> float:
        """Mean score of all requests that are never trained on."""
        asked = problems.held_out()
        with self.report.spent("held out"):
            tasks = self.submitted(name, asked, self.settings.held_out_sessions)
            rewards = [result.session.reward or 0.0 for result in self.results(tasks)]
        return sum(rewards) / len(rewards)

    def submitted(self, name: str, asked: list[tuple[str, str]], sessions: int) -> list[str]:
        """A task for every few of the requests."""
        few = self.settings.requests
        tasks = [
            self.task(f"{name}-{start}", asked[start : start + few], sessions)
            for start in range(0, len(asked), few)
        ]
        return [task.task_id for task in self.client.submit_batch(tasks)]

    def task(self, name: str, asked: list[tuple[str, str]], sessions: int) -> TaskRequest:
        agent = WriteFile(path="agent.py", content=(HERE / "agent.py").read_text())
        strategy = "per_request" if self.variant.calls_alone else "prefix_merging"
        return TaskRequest(
            task_id=f"tiny-grpo-{self.name}-{name}",
            instruction=json.dumps([words for words, _ in asked]),
            harness=HarnessSpec(name="shell", command=f"exec {PYTHON} agent.py"),
            runtime=RuntimeSpec(type="local", prepare=[agent]),
            evaluator=HttpEvaluator(url=self.evaluator),
            trajectory_strategy=strategy,
            num_samples=sessions,
            sampling=SamplingPins(temperature=1.0, max_tokens=32),
            timeout_seconds=300.0,
            metadata={"right": [tool for _, tool in asked]},
        )

    def results(self, tasks: list[str]) -> list[Result]:
        results = list(self.client.results(*tasks))
        self.report.calls += sum(r.session.report.calls for r in results if r.session.report)
        self.report.failed_sessions += sum(r.session.reason != "completed" for r in results)
        return results

    def rows(self, results: list[Result]) -> list[Row]:
        batch = collect(results, estimator=None)
        rewards = [rollout.reward for rollout in batch.rollouts if rollout.reward is not None]
        self.report.rewards.append(sum(rewards) / len(rewards) if rewards else 0.0)
        spoil = self.variant.spoil
        return batch.rows if spoil is None else list(spoil(batch.rows, self.source))


if __name__ == "__main__":
    sys.exit(main())
