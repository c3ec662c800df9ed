"""What a run came to: numbers, what must hold of them, and the curves."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpo
import problems

FLOAT_NOISE = 1e-3
EXACT = ("exact", "chat")
"""Variants whose rows are what was sampled."""


@dataclass
class Report:
    """What a seed came to."""

    variant: str
    seed: int
    before: float = 0.0
    after: float = 0.0
    rewards: list[float] = field(default_factory=list)
    drifts: list[grpo.Drift] = field(default_factory=list)
    tokens: int = 0
    """Sampled and learnt from, of whatever weights."""
    updates: int = 0
    updates_current: int = 0
    in_flight: int = 0
    calls: int = 0
    failed_sessions: int = 0
    seconds: float = 0.0
    seconds_by: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def spent(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds_by[what] = self.seconds_by.get(what, 0.0) + time.monotonic() - started

    @property
    def fresh_tokens(self) -> int:
        return sum(drift.tokens for drift in self.drifts)

    @property
    def drift(self) -> grpo.Drift:
        """Over all steps."""
        tokens = self.fresh_tokens
        mean = sum(drift.mean * drift.tokens for drift in self.drifts) / max(tokens, 1)
        return grpo.Drift(tokens, mean, max((d.largest for d in self.drifts), default=0.0))


def show(report: Report) -> None:
    drift = report.drift
    parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in report.seconds_by.items())
    print(
        f"{report.variant}, seed {report.seed}: held out {report.before:.2f} -> "
        f"{report.after:.2f} in {report.seconds:.0f} s ({parts}); |ratio - 1| on "
        f"{drift.tokens} fresh tokens of {report.tokens}: mean {drift.mean:.1e} max "
        f"{drift.largest:.1e}; {report.updates_current} of {report.updates} updates current, "
        f"{report.in_flight} calls in flight in them; {report.calls} calls, "
        f"{report.failed_sessions} sessions failed",
        flush=True,
    )


def check(reports: list[Report]) -> int:
    """What must hold of any run, however short."""
    wrong = []
    for report in reports:
        name = f"{report.variant}, seed {report.seed}"
        if not report.fresh_tokens:
            wrong.append(f"{name}: no fresh tokens")
        is_exact = all(drift.largest <= FLOAT_NOISE for drift in report.drifts)
        if is_exact != (report.variant in EXACT):
            told = "differ" if report.variant in EXACT else "agree, and must not"
            wrong.append(f"{name}: trainer and engine {told}: {report.drifts}")
        if report.updates_current != report.updates:
            wrong.append(f"{name}: {report.updates_current} of {report.updates} updates")
        if report.failed_sessions:
            wrong.append(f"{name}: {report.failed_sessions} sessions failed")
        if not any(report.rewards):
            wrong.append(f"{name}: no reward")
    seconds = sum(report.seconds for report in reports)
    print("\n".join(wrong) if wrong else f"{len(reports)} passed in {seconds:.0f} s")
    return 1 if wrong else 0


def keep(reports: list[Report], out: Path) -> None:
    """Numbers and curves of the seeds so far."""
    (out / "report.json").write_text(json.dumps([asdict(report) for report in reports], indent=1))
    draw(reports, out / "curve.png")


def draw(reports: list[Report], path: Path) -> None:
    """Reward and ratio by step: a line for each seed of each variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(7, 7), sharex=True)
    for report in reports:
        steps = range(len(report.rewards))
        name = f"{report.variant}, seed {report.seed}"
        [line] = above.plot(steps, report.rewards, label=name)
        ends = ([0, len(report.rewards)], [report.before, report.after])
        above.scatter(*ends, color=line.get_color(), marker="x")
        measured = [(at, drift) for at, drift in enumerate(report.drifts) if drift.tokens]
        places = [at for at, _ in measured]
        for value, style in (("mean", "-"), ("largest", ":")):
            values = [max(getattr(drift, value), 1e-9) for _, drift in measured]
            below.plot(places, values, style, color=line.get_color())
    above.axhline(1 / len(problems.TOOLS), color="grey", linestyle=":", label="by lot")
    above.set(ylabel="reward (x: held out)", ylim=(0, 1.02))
    above.legend()
    below.set(xlabel="step", ylabel="|ratio - 1| on fresh tokens\n(dotted: largest)", yscale="log")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
