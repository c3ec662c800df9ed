"""The same group through the trainers' own classes."""

import numpy
import pytest
import torch
from polar.integrations import areal, nemo_rl, prime_rl, trl, verifiers, verl
from polar.rows import MissingLogprobsError, collect

from tests.training import group

PER_ROLLOUT = [0.25] * 5 + [-0.75]
"""Advantages of the group's six rows: of a baseline of 0.75, though one rollout has three rows."""


@pytest.fixture
def batch():
    return collect(group(), scale=False)


def test_trl_async_samples(batch):
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample, TrainingSequence

    samples = trl.rollout_samples(batch)
    assert [sample.advantage for sample in samples] == PER_ROLLOUT
    for sample, row in zip(samples, batch.rows, strict=True):
        assert isinstance(sample, RolloutSample)
        assert sample.input_ids.dtype == sample.completion_mask.dtype == numpy.int64
        assert sample.old_log_probs.dtype == numpy.float32
        assert len(sample.input_ids) == len(sample.completion_mask) == len(sample.old_log_probs)
        assert sample.completion_mask.sum() == row.trained
        assert not sample.old_log_probs[sample.completion_mask == 0].any()
    assert [sample.model_version for sample in samples] == [3, 4, 3, 3, 3, 3]
    sequences = trl.training_sequences(batch)
    assert all(isinstance(sequence, TrainingSequence) for sequence in sequences)
    assert [sequence.rollout_id for sequence in sequences] == ["r0"] * 3 + ["r1", "r2", "r3"]


def test_trl_rows_come_from_turns_as_its_own_worker_makes_them(batch):
    """TRL's reconciliation of the turns of the first row gives the sequence of the bridge."""
    from trl.experimental.async_grpo import async_rollout_worker as worker

    row = batch.rows[0]
    turns = []
    for sampled, start, end in row.runs():
        if sampled:
            prompt = row.prompt_ids + row.response_ids[:start]
            turns.append(
                worker.TurnRecord(prompt, row.response_ids[start:end], row.logprobs[start:end])
            )
    [theirs], _ = worker._chain_to_sequences(turns, row.rollout_id, fork_threshold=0)
    assert theirs == trl.training_sequences(batch)[0]


def test_verl_outputs(batch):
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    for output, row in zip(verl.agent_loop_outputs(batch), batch.rows, strict=True):
        assert isinstance(output, AgentLoopOutput)
        tensors = output.as_dict()
        assert tensors["prompts"].tolist() == row.prompt_ids
        assert tensors["responses"].tolist() == row.response_ids
        assert tensors["response_mask"].tolist() == row.loss_mask
        assert tensors["rollout_log_probs"].dtype == torch.float32
        assert output.reward_score == row.reward


def test_verl_batch_and_its_advantages(batch):
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    proto = verl.data_proto(batch, prompt_length=6, response_length=8, pad_token_id=0)
    assert isinstance(proto, DataProto)
    proto.check_consistency()
    tensors = proto.batch
    for name in ("prompts", "responses", "response_mask", "input_ids", "attention_mask"):
        assert tensors[name].dtype == torch.int64
    assert tensors["prompts"][0].tolist() == [0, 0, 0, 1, 2, 3]
    assert tensors["responses"][0].tolist() == [10, 11, 4, 5, 12, 13, 14, 0]
    assert tensors["attention_mask"][0].tolist() == [0, 0, 0] + [1] * 10 + [0]
    assert tensors["position_ids"][0].tolist() == [0, 0, 0, *range(10), 9]
    assert tensors["rm_scores"].sum(1).tolist() == [1.0] * 5 + [0.0]
    assert tensors["rm_scores"][0].nonzero().tolist() == [[6]]
    assert tensors["rollout_log_probs"].dtype == torch.float32
    assert proto.non_tensor_batch["uid"].tolist() == ["g"] * 6
    verl.register_advantages()
    verl.register_advantages()
    tensors["token_level_rewards"] = tensors["rm_scores"]
    done = compute_advantage(proto, adv_estimator=verl.ESTIMATOR, config={})
    advantages = done.batch["advantages"]
    assert [row.unique().tolist()[0 if row.min() < 0 else -1] for row in advantages] == PER_ROLLOUT
    assert not advantages[tensors["response_mask"] == 0].any()
    # What it is there for: by row, the rollout with three rows moves the baseline.
    theirs = compute_advantage(
        proto, adv_estimator="grpo", norm_adv_by_std_in_grpo=False, config={}
    ).batch["advantages"]
    assert theirs[5].min().item() == pytest.approx(-5 / 6)


def test_verl_does_not_cut(batch):
    with pytest.raises(verl.RowTooLongError, match="response of 7 tokens"):
        verl.data_proto(batch, prompt_length=6, response_length=6, pad_token_id=0)


def test_areal_tensors(batch):
    from areal.api.io_struct import ModelResponse
    from areal.experimental.openai.types import InteractionWithTokenLogpReward

    tensors = areal.tensors(batch)
    assert tensors["versions"].dtype == tensors["input_ids"].dtype == torch.int64
    assert tensors["turn_ids"].dtype == torch.int32
    assert tensors["turn_ids"][0].tolist() == [-1, -1, -1, 0, 0, -1, -1, 1, 1, 1]
    assert tensors["versions"][0].tolist() == [-1, -1, -1, 3, 3, -1, -1, 3, 3, 3]
    assert tensors["rewards"].tolist() == [1.0] * 5 + [0.0]
    assert areal.tensors(batch, advantages=True)["rewards"].tolist() == PER_ROLLOUT
    # A row of one turn is what AReaL makes of that turn itself.
    row = batch.rows[3]
    response = ModelResponse(row.prompt_ids, row.response_ids, row.logprobs, [3, 3])
    theirs = InteractionWithTokenLogpReward(model_response=response, reward=1.0).to_tensor_dict()
    length = len(row.token_ids)
    for name in ("input_ids", "loss_mask", "logprobs", "versions", "attention_mask"):
        assert torch.equal(tensors[name][3, :length].to(theirs[name].dtype), theirs[name][0]), name
        assert tensors[name].dtype == theirs[name].dtype


def test_verifiers_traces(batch):
    from verifiers.v1.trace import Trace

    traces = verifiers.traces(batch)
    assert [trace.id for trace in traces] == ["r0", "r1", "r2", "r3"]
    rows = iter(batch.rows)
    for trace in traces:
        assert isinstance(trace, Trace)
        for branch in trace.branches:
            row = next(rows)
            context = [False] * len(row.prompt_ids)
            assert branch.token_ids == row.token_ids
            assert branch.sampled_mask == context + [on == 1 for on in row.loss_mask]
            logprobs = branch.spread(lambda node: node.logprobs)
            assert logprobs == [0.0] * len(row.prompt_ids) + row.filled()
    assert next(rows, None) is None
    assert [trace.reward for trace in traces] == [1.0, 1.0, 1.0, 0.0]
    assert [trace.is_timeout for trace in traces] == [False, False, True, False]
    assert [message.role for message in traces[0].branches[0].messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]


def test_nemo_rl_logs_go_on_from_what_was_seen(batch):
    for row in batch.rows:
        log = nemo_rl.message_log(row)
        assert torch.cat([turn["token_ids"] for turn in log]).tolist() == row.token_ids
        for turn in log:
            assert turn["token_ids"].dtype == torch.int64
            if turn["role"] == "assistant":
                assert turn["generation_logprobs"].dtype == torch.float32
                assert len(turn["generation_logprobs"]) == len(turn["token_ids"])
        trained = [len(t["token_ids"]) for t in log if "generation_logprobs" in t]
        assert sum(trained) == row.trained


def test_nemo_rl_batch(batch):
    tensors = nemo_rl.train_batch(batch, pad_token_id=0)
    rows, width = tensors["input_ids"].shape
    for name in ("token_mask", "generation_logprobs", "advantages"):
        assert tensors[name].shape == (rows, width)
        assert tensors[name].dtype == torch.float32
    assert tensors["sample_mask"].sum().item() == pytest.approx(4.0)
    assert tensors["input_lengths"].tolist() == [len(row.token_ids) for row in batch.rows]
    assert tensors["token_mask"].sum().item() == sum(row.trained for row in batch.rows)
    assert tensors["weight_version"] == [3, 4, 3, 3, 3, 3]


def test_prime_rl_samples_survive_its_wire(batch):
    """A struct with the published fields, sent as prime-rl sends it."""
    import msgspec

    class TrainingSample(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
        token_ids: list[int]
        mask: list[bool]
        logprobs: list[float]
        temperatures: list[float]
        env_name: str
        advantages: list[float] | None = None

    samples = prime_rl.training_samples(batch, "env", kind=TrainingSample)
    wire = msgspec.msgpack.encode(samples)
    assert msgspec.msgpack.decode(wire, type=list[TrainingSample]) == samples


@pytest.mark.parametrize(
    "bridge",
    [
        trl.rollout_samples,
        verl.agent_loop_outputs,
        areal.tensors,
        verifiers.traces,
        lambda batch: nemo_rl.train_batch(batch, pad_token_id=0),
    ],
)
def test_no_format_gets_a_made_up_logprob(bridge):
    with pytest.raises(MissingLogprobsError):
        bridge(collect(group(hole=True), missing_logprobs="keep"))
