"""`PolarAgentLoop` as verl makes and calls it: by its configuration, in its own worker."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from omegaconf import OmegaConf
from polar import Result
from polar.integrations import verl_agent_loop
from polar.integrations._versions import VersionUnknownError
from polar.integrations.verl import RowTooLongError
from tensordict import TensorDict
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.experimental.agent_loop import agent_loop as loops

from tests.processes import served
from tests.training import group, result, trace, trajectory

AGENT = """python3 - <<'AGENT'
import json, os, urllib.request
messages = [{"role": "user", "content": "Say the word."}]
for _ in range(2):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "m", "messages": messages}).encode(),
        headers={
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as response:
        messages.append(json.load(response)["choices"][0]["message"])
    messages.append({"role": "user", "content": "Once more."})
AGENT"""


def baseline_of_version_1(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its package wants a transport of tensors, which nothing here uses."""
    transport = ModuleType("transfer_queue")
    transport.KVBatchMeta = object
    monkeypatch.setitem(sys.modules, "transfer_queue", transport)
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    return compute_advantage_for_multi_trajectories


def make_task(fields: dict[str, Any]) -> dict[str, Any]:
    [asked] = fields["raw_prompt"]
    return {
        "instruction": asked["content"],
        "harness": {"name": "shell", "command": AGENT},
        "evaluator": {"type": "command", "command": "true"},
        "metadata": {"uid": fields["uid"]},
    }


def worker(**settings: Any) -> Any:
    """verl's worker with what it needs of itself to run an agent loop, and no engine."""
    made = loops.AgentLoopWorker.__new__(loops.AgentLoopWorker)
    rollout = {
        "prompt_length": 256,
        "response_length": 256,
        "calculate_log_probs": True,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "val_kwargs": {"temperature": 0, "top_p": 1.0, "top_k": -1},
        "agent": {"default_agent_loop": "polar"},
    }
    made.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    made.rollout_config = made.config.actor_rollout_ref.rollout
    raw = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]")
    made.llm_client = made.processor = made.hf_model_type = None
    made.reward_loop_worker_handles = None
    made.dataset_cls, made.tools, made.mm_processor_kwargs = loops.RLHFDataset, [], {}
    made.distillation_enabled = False
    loops._agent_loop_registry["polar"] = OmegaConf.create(
        {
            "name": "polar",
            "_target_": "polar.integrations.verl_agent_loop.PolarAgentLoop",
            "make_task": f"{__name__}.make_task",
            **settings,
        }
    )
    return made


def prompts(*uids: str) -> DataProto:
    """As many samples as verl's trainer asks for, those of a prompt with one `uid`."""
    asked = [[{"role": "user", "content": "Say it."}] for _ in uids]
    column = numpy.empty(len(uids), dtype=object)
    column[:] = asked
    names = numpy.array(uids, dtype=object)
    tensors = TensorDict({"dummy_tensor": torch.zeros(len(uids))}, batch_size=len(uids))
    return DataProto(batch=tensors, non_tensor_batch={"raw_prompt": column, "uid": names})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("verl")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        for name in ("POLAR_TOKEN", "POLAR_SERVER", "POLAR_STATE"):
            environment.delenv(name, raising=False)
        with served(folder) as address:
            yield address


def test_verls_worker_gets_its_batch_of_real_sessions(server: str) -> None:
    asked = prompts("a", "a", "b")
    made = worker(server=server, forks="main", unknown_version=0)
    output = asyncio.run(made.generate_sequences(asked))
    output.check_consistency()
    tensors = output.batch
    assert len(output) == 3
    mask = tensors["response_mask"].bool()
    assert mask.sum(1).gt(0).all()
    assert tensors["rollout_log_probs"][mask].lt(0).all()
    assert not tensors["rollout_log_probs"][~mask].any()
    assert tensors["rm_scores"].sum(1).tolist() == [1.0] * 3
    # It is put beside what was asked for, which has to be the same where both say it.
    assert asked.union(output).non_tensor_batch["uid"].tolist() == ["a", "a", "b"]


class Ended:
    """A client whose tasks have ended with these results."""

    def __init__(self, *results: Result) -> None:
        self._results = list(results)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, _server: Any) -> contextlib.AbstractAsyncContextManager[Ended]:
        return contextlib.nullcontext(self)

    async def submit(self, task: dict[str, Any]) -> Any:
        self.asked.append(task)
        return SimpleNamespace(task_id=str(len(self.asked) - 1))

    async def results(self, task_id: str) -> AsyncIterator[Result]:
        yield self._results[int(task_id)]


def run(monkeypatch: pytest.MonkeyPatch, ended: Result, settings: Any, **fields: Any) -> Any:
    client = Ended(ended)
    monkeypatch.setattr(verl_agent_loop, "AsyncPolarClient", client)
    made = worker(**settings)
    outputs: list[Any] = []

    async def kept(output: Any, _validate: bool, **_: Any) -> None:
        outputs.append(output)

    made._agent_loop_postprocess = kept
    given = {"raw_prompt": [{"role": "user", "content": "Say it."}], "uid": "g", **fields}
    info = {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": False}
    sampling = {"temperature": 0.5, "top_p": 1.0, "top_k": -1, "logprobs": True}
    asyncio.run(made._run_agent_loop(sampling, info, agent_name="polar", trace=False, **given))
    [task] = client.asked
    assert task["num_samples"] == 1
    assert task["sampling"] == {"temperature": 0.5, "top_p": 1.0, "top_k": -1}
    return outputs[0]


def test_a_rollout_that_forked_is_not_cut_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    forked = group()[0]
    with pytest.raises(verl_agent_loop.ForkedRolloutError, match="r0 has 3 rows"):
        run(monkeypatch, forked, {})
    with pytest.raises(verl_agent_loop.ForkedRolloutError, match="version 1"):
        run(monkeypatch, forked, {"forks": "all"})
    output = run(monkeypatch, forked, {"forks": "main"})
    assert output.response_ids == [10, 11, 4, 5, 12, 13, 14]
    assert output.response_mask == [1, 1, 0, 0, 1, 1, 1]
    assert (output.reward_score, output.extra_fields["min_global_steps"]) == (1.0, 3)
    assert not {"uid", "raw_prompt"} & set(output.extra_fields)


def test_what_cannot_be_trained_on_is_said_or_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    long = result("long", 1.0, trajectory("long", 1.0, trace([1], list(range(2, 300)))))
    with pytest.raises(RowTooLongError, match="response of 298 tokens"):
        run(monkeypatch, long, {})
    masked = run(monkeypatch, long, {"too_long": "mask"}, global_steps=7)
    assert (masked.response_mask, masked.reward_score) == ([0], 1.0)
    assert masked.extra_fields["min_global_steps"] == 7
    with pytest.raises(verl_agent_loop.UnrewardedRolloutError, match="unrewarded"):
        run(monkeypatch, group()[4], {})
    assert run(monkeypatch, group()[4], {}, session_id=0) == []
    unrewarded = run(monkeypatch, group()[4], {"unrewarded": 0.0})
    assert (unrewarded.response_mask, unrewarded.reward_score) == ([0], 0.0)
    unnamed = result("u", 1.0, trajectory("u", 1.0, trace([1], [2], version=None)))
    with pytest.raises(VersionUnknownError):
        run(monkeypatch, unnamed, {}, session_id=0)


def test_whole_rollouts_count_once_in_the_baseline_of_verls_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rewards 1, 1, 1, 0 have the baseline 0.75, though the first rollout has three rows."""
    keys, rows = [], []
    for sample, ended in enumerate(group()[:4]):
        outputs = run(monkeypatch, ended, {"forks": "all"}, session_id=sample)
        for index, output in enumerate(outputs):
            keys.append(f"g_{sample}_{index}")
            rows.append((output.as_dict(), output.reward_score))
    assert len(rows) == 6
    width = max(len(row["responses"]) for row, _ in rows)
    mask = torch.zeros(len(rows), width)
    rewards = torch.zeros(len(rows), width)
    for at, (row, reward) in enumerate(rows):
        mask[at, : len(row["response_mask"])] = row["response_mask"]
        rewards[at, len(row["response_mask"]) - 1] = reward
    batch = TensorDict(
        {"response_mask": mask, "token_level_rewards": rewards}, batch_size=len(rows)
    )
    data = DataProto(batch=batch, non_tensor_batch={"uid": numpy.array(["g"] * 6, dtype=object)})
    done = baseline_of_version_1(monkeypatch)(
        data, keys, adv_estimator="grpo", norm_adv_by_std_in_grpo=False
    )
    advantages = done.batch["advantages"]
    by_row = [row[mask[at] == 1].unique().tolist() for at, row in enumerate(advantages)]
    assert by_row == [[0.25]] * 5 + [[-0.75]]
