"""Bridges to formats of plain lists, against their documented shapes. Those of tensors, and
all that the trainers' own classes check, are in ``tests/trainers`` at the root.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, Optional, Union

import pytest

from polar import Result
from polar.integrations import agent_lightning, prime_rl, skyrl, slime, torch, trl
from polar.integrations._packages import PackageMissingError
from polar.integrations._versions import VersionUnknownError, number, oldest
from polar.rows import MissingLogprobsError, collect
from tests.training import group, result, trace, trajectory


@dataclass
class Sample:
    """slime's, with its published fields."""

    group_index: Optional[int] = None
    index: Optional[int] = None
    rollout_id: Optional[int] = None
    prompt: Union[str, list[dict[str, str]]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: Union[float, dict[str, Any], None] = None
    loss_mask: Optional[list[int]] = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: Optional[list[float]] = None
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: Optional[str] = None

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING

    def get_reward_value(self, args: Any) -> Any:
        return self.reward


@dataclass
class TrainOutput:
    samples: list[list[Sample]]
    metrics: dict[str, Any]


@pytest.fixture
def as_slime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of slime's names, which PyPI does not have."""
    types, base = ModuleType("slime.utils.types"), ModuleType("slime.rollout.base_types")
    types.Sample = Sample  # type: ignore[attr-defined]
    base.RolloutFnTrainOutput = TrainOutput  # type: ignore[attr-defined]
    for module in (types, base):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("slime", "slime.utils", "slime.rollout"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.mark.usefixtures("as_slime")
def test_slime_gets_samples_by_group() -> None:
    [samples] = slime.samples(collect(group()))
    assert [sample.rollout_id for sample in samples] == [0, 0, 0, 1, 2, 3]
    assert [sample.index for sample in samples] == list(range(6))
    for sample in samples:
        assert len(sample.loss_mask) == sample.response_length == len(sample.rollout_log_probs)
        assert len(sample.tokens) > sample.response_length
        assert sample.group_index == 0
    first = samples[0]
    assert first.tokens == [1, 2, 3, 10, 11, 4, 5, 12, 13, 14]
    assert first.loss_mask == [1, 1, 0, 0, 1, 1, 1]
    assert first.rollout_log_probs == [-0.5, -0.75, 0.0, 0.0, -1.5, -1.75, -2.0]
    assert first.weight_versions == ["step-3"]
    assert first.response == "[10, 11]\n[12, 13, 14]"
    assert [sample.status.value for sample in samples] == ["completed"] * 4 + ["truncated"] * 2
    assert [sample.metadata["polar_role"] for sample in samples[:3]] == ["main"] * 2 + ["sub_agent"]


@pytest.mark.usefixtures("as_slime")
def test_slime_rewards_are_normalised_by_rollout() -> None:
    [samples] = slime.samples(collect(group()))
    args = SimpleNamespace(reward_key=None, grpo_std_normalization=False)
    raw, rewards = slime.post_process_rewards(args, samples)
    assert raw == [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    assert rewards == [0.25] * 5 + [-0.75]
    args.polar_estimator = "leave_one_out"
    assert slime.post_process_rewards(args, samples)[1][-1] == -1.0


@pytest.mark.usefixtures("as_slime")
def test_slime_runs_its_prompts_as_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(_client: Any, tasks: list[Any]) -> list[list[Result]]:
        asked.extend(tasks)
        return [group()]

    monkeypatch.setattr(slime, "run", run)
    prompts = [[Sample(prompt="Do it."), Sample(prompt="Do it.")]]
    data_source = SimpleNamespace(get_samples=lambda number: prompts[:number])
    args = SimpleNamespace(rollout_batch_size=1, polar_task="tests.test_bridges.make_task")
    output = slime.generate_rollout(args, 7, data_source)
    task = {"task_id": "slime-7-0", "harness": "pi", "instruction": "Do it.", "num_samples": 2}
    assert asked == [task]
    assert [len(samples) for samples in output.samples] == [6]
    assert output.metrics["polar/rollouts_left_out/no_reward"] == 2.0
    assert output.metrics["polar/reward_mean"] == 0.75


def make_task(sample: Sample) -> dict[str, Any]:
    return {"harness": "pi", "instruction": sample.prompt}


@pytest.mark.usefixtures("as_slime")
def test_no_format_gets_a_made_up_logprob() -> None:
    batch = collect(group(hole=True), missing_logprobs="keep")
    for bridge in (slime.samples, agent_lightning.events, skyrl_output):
        with pytest.raises(MissingLogprobsError):
            bridge(batch)
    with pytest.raises(MissingLogprobsError):
        prime_rl.sample_fields(batch.rows[2], "env")


def skyrl_output(batch: Any) -> Any:
    return skyrl.generator_output(batch, list("abcdef"))


def test_trl_gets_a_row_for_each_completion() -> None:
    answer = trl.completions([group()], forks="main", placeholder_id=99)
    rows = dict(answer)
    assert set(rows) == {"prompt_ids", "completion_ids", "logprobs", "env_mask", "polar_reward"}
    assert {len(values) for values in rows.values()} == {6}
    for ids, logprobs, mask in zip(rows["completion_ids"], rows["logprobs"], rows["env_mask"]):
        assert len(ids) == len(logprobs) == len(mask) > 0
    assert rows["completion_ids"][0] == [10, 11, 4, 5, 12, 13, 14]
    assert rows["env_mask"][0] == [1, 1, 0, 0, 1, 1, 1]
    assert rows["completion_ids"][4:] == [[99], [99]]
    assert rows["prompt_ids"][4] == [1, 2, 3]
    assert rows["env_mask"][4:] == [[0], [0]]
    assert answer.left_out == Counter(forked_row=2, no_reward=2)
    given = {"prompts": [], "completions": [""] * 6, "polar_reward": rows["polar_reward"]}
    assert trl.reward(**given) == [1.0, 1.0, 1.0, 0.0, None, None]


def test_trl_does_not_cut_a_forked_rollout_unasked() -> None:
    with pytest.raises(trl.ForkedRolloutError, match="r0 has 3 rows"):
        trl.completions([group()])


def test_trl_prompts_that_repeat_are_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(_client: Any, tasks: list[Any]) -> list[list[Result]]:
        asked.extend(tasks)
        return [[result(f"s{n}", 1.0, trajectory(f"s{n}", 1.0, trace([1], [2])))] for n in (0, 1)]

    monkeypatch.setattr(trl, "run", run)
    trainer = SimpleNamespace(processing_class=SimpleNamespace(pad_token_id=5))
    seen: list[trl.Rollouts] = []
    client: Any = None
    function = trl.rollout_func(client, lambda prompt: {"instruction": prompt}, seen=seen.append)
    answer = function(["a", "a", "b"], trainer)
    assert asked == [
        {"instruction": "a", "num_samples": 2},
        {"instruction": "b", "num_samples": 1},
    ]
    assert answer["completion_ids"] == [[2], [2]]
    assert seen == [answer]


def test_skyrl_gets_the_rows_of_a_rollout_as_steps() -> None:
    output = skyrl.generator_output(collect(group()), list("abcdef"), placeholder_id=9)
    assert output["trajectory_ids"] == list("aaabcdef")
    assert output["is_last_step"] == [False, False, True, True, True, True, True, True]
    for name in ("rewards", "loss_masks", "rollout_logprobs"):
        assert [len(row) for row in output[name]] == [len(ids) for ids in output["response_ids"]]
    outcomes = [sum(row) for row, last in zip(output["rewards"], output["is_last_step"]) if last]
    assert outcomes == [1.0, 1.0, 1.0, 0.0, 0.75, 0.75]
    assert sum(outcomes) / len(outcomes) == 0.75
    assert output["loss_masks"][-2:] == [[0], [0]]
    assert output["rollout_metrics"] == {"polar/left_out/no_reward": 2}
    with pytest.raises(skyrl.StepWiseNeededError):
        skyrl.generator_output(collect(group()), list("abcdef"), step_wise=False)
    with pytest.raises(ValueError, match="2 trajectory_ids for 6"):
        skyrl.generator_output(collect(group()), list("ab"))


@dataclass
class TrajectoryID:
    """SkyRL's."""

    instance_id: str
    repetition_id: int


class GeneratorInterface(ABC):
    """SkyRL's."""

    @abstractmethod
    async def generate(self, input_batch: Any) -> Any: ...


@pytest.fixture
def as_skyrl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The bridge's generator, over modules of SkyRL's names, which wants a younger Python."""
    base = ModuleType("skyrl.train.generators.base")
    base.GeneratorInterface = GeneratorInterface  # type: ignore[attr-defined]
    base.TrajectoryID = TrajectoryID  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, base.__name__, base)
    for name in ("skyrl", "skyrl.train", "skyrl.train.generators"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delitem(sys.modules, "polar.integrations.skyrl_generator", raising=False)
    return import_module("polar.integrations.skyrl_generator")


class Ended:
    """A client whose tasks have ended, with their results in no order."""

    def __init__(self, *groups: list[Result]) -> None:
        self.groups = groups
        self.asked: list[Any] = []
        self.cancelled: list[str] = []

    async def __aenter__(self) -> Ended:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def submit_batch(self, tasks: list[Any]) -> list[Any]:
        self.asked = tasks
        return [SimpleNamespace(task_id=str(at)) for at in range(len(tasks))]

    async def results(self, task_id: str) -> AsyncIterator[Result]:
        if int(task_id) >= len(self.groups):
            raise ConnectionError("gone")
        for ended in reversed(self.groups[int(task_id)]):
            yield ended

    async def cancel(self, task_id: str) -> None:
        self.cancelled.append(task_id)


def skyrl_input() -> dict[str, Any]:
    """Two prompts as SkyRL's trainer asks for them: six samples and one."""
    return {
        "prompts": [[{"role": "user", "content": "Do it."}]] * 6 + [[{"content": "And that."}]],
        "env_classes": ["any"] * 7,
        "env_extras": [{"answer": 1}] * 6 + [{"answer": 2}],
        "sampling_params": {"temperature": 0.7, "max_generate_length": 64, "logprobs": 0},
        "trajectory_ids": [TrajectoryID("a", at) for at in range(6)] + [TrajectoryID("b", 0)],
        "batch_metadata": None,
    }


def skyrl_task(prompt: Any, extras: Any) -> dict[str, Any]:
    return {"instruction": prompt[-1]["content"], "metadata": extras, "sampling": {"top_p": 0.9}}


def test_skyrls_generator_runs_its_prompts_as_groups(
    as_skyrl: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = result("x", 1.0, trajectory("x", 1.0, trace([1], [2])))
    alone.session.group_id = "h"
    client = Ended(group(), [alone])
    monkeypatch.setattr(as_skyrl, "AsyncPolarClient", lambda _server: client)
    generator = as_skyrl.PolarGenerator(skyrl_task, placeholder_id=9)
    assert isinstance(generator, GeneratorInterface)
    output = asyncio.run(generator.generate(skyrl_input()))
    pins = {"temperature": 0.7, "max_tokens": 64, "top_p": 0.9}
    assert client.asked == [
        {"instruction": text, "metadata": extras, "sampling": pins, "num_samples": number}
        for text, extras, number in (("Do it.", {"answer": 1}, 6), ("And that.", {"answer": 2}, 1))
    ]
    # In SkyRL's order, whatever ended first; the rows of the forked one are steps of one.
    samples = [(one.instance_id, one.repetition_id) for one in output["trajectory_ids"]]
    assert samples == [("a", at) for at in (0, 0, 0, 1, 2, 3, 4, 5)] + [("b", 0)]
    assert output["response_ids"][0] == [10, 11, 4, 5, 12, 13, 14]
    assert output["response_ids"][-1] == [2]
    last = [sum(row) for row, ends in zip(output["rewards"], output["is_last_step"]) if ends]
    assert last == [1.0, 1.0, 1.0, 0.0, 0.75, 0.75, 1.0]


def test_skyrls_generator_leaves_no_task_that_nobody_waits_for(
    as_skyrl: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Ended(group())
    monkeypatch.setattr(as_skyrl, "AsyncPolarClient", lambda _server: client)
    with pytest.raises(ConnectionError):
        asyncio.run(as_skyrl.PolarGenerator(skyrl_task).generate(skyrl_input()))
    assert client.cancelled == ["0", "1"]


def test_prime_rl_gets_whole_sequences() -> None:
    batch = collect(group(), scale=False)
    samples = prime_rl.training_samples(batch, "env", kind=dict)
    for sample, row in zip(samples, batch.rows):
        for name in ("mask", "logprobs", "temperatures", "advantages"):
            assert len(sample[name]) == len(sample["token_ids"])
        assert sum(sample["mask"]) == row.trained
    assert samples[0]["mask"][:5] == [False] * 3 + [True] * 2
    assert samples[0]["advantages"][3:7] == [0.25, 0.25, 0.0, 0.0]
    assert set(samples[0]["temperatures"]) == {0.7}
    weighed = prime_rl.training_samples(batch, "env", kind=dict, weigh_rows=True)
    assert weighed[0]["advantages"][3] == pytest.approx(0.25 / 3)


def test_agent_lightning_gets_a_request_for_each_reply() -> None:
    batch = collect(group())
    events = agent_lightning.events(batch)
    kinds = [event["event_type"] for event in events["r0"]]
    assert kinds == ["model_request"] * 4 + ["reward"]
    second = events["r0"][1]["data"]
    assert second["response"]["prompt_token_ids"] == [1, 2, 3, 10, 11, 4, 5]
    assert second["response"]["choices"][0]["token_ids"] == [12, 13, 14]
    content = second["response"]["choices"][0]["logprobs"]["content"]
    assert content == [{"logprob": -1.5}, {"logprob": -1.75}, {"logprob": -2.0}]
    assert second["model_version"] == 3
    assert events["r2"][-1]["data"]["reason"] == "agent_timeout"
    assert "r4" not in events


def test_agent_lightning_says_what_its_server_drops() -> None:
    again = trajectory("a", 1.0, trace([1, 2], [3]), trace([1, 2], [4]))
    assert agent_lightning.same_prompts(collect([again])) == 1
    assert agent_lightning.same_prompts(collect(group())) == 0


def test_versions_are_numbers_where_a_trainer_counts() -> None:
    assert [number(label, None) for label in ("7", "step-12", "v3")] == [7, 12, 3]
    assert oldest(["step-4", "step-3"], None) == 3
    for label in (None, "default"):
        with pytest.raises(VersionUnknownError, match="unknown_version="):
            number(label, None)
        assert number(label, -1) == -1


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PackageMissingError, match="install torch"):
        torch.padded(collect(group()))
