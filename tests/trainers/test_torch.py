"""Plain tensors, and a tree that a model reads as it reads the sequences one by one."""

import pytest
import torch
from polar.integrations import torch as bridge
from polar.rows import collect

from tests.test_rows import tree
from tests.training import group, trajectory


def test_padded_rows_keep_what_is_missing_missing():
    batch = collect(group(), scale=False)
    tensors = bridge.padded(batch, pad_token_id=9)
    shape = (len(batch.rows), max(len(row.token_ids) for row in batch.rows))
    assert {tuple(tensor.shape) for tensor in tensors.values()} == {shape}
    mask, logprobs = tensors["loss_mask"], tensors["logprobs"]
    assert mask.dtype == torch.bool
    assert logprobs.dtype == torch.float32
    assert int(mask.sum()) == sum(row.trained for row in batch.rows)
    assert torch.isfinite(logprobs[mask]).all()
    assert torch.isnan(logprobs[~mask]).all()
    assert (tensors["input_ids"][~tensors["attention_mask"]] == 9).all()
    # Each rollout counts once, also in its tokens' weights.
    assert tensors["advantages"][0][mask[0]].unique().tolist() == [0.25]
    assert tensors["weights"][0][mask[0]].unique().tolist() == pytest.approx([1 / 3])


def test_a_hole_is_not_a_number():
    batch = collect(group(hole=True), missing_logprobs="keep")
    tensors = bridge.padded(batch)
    assert int(torch.isnan(tensors["logprobs"][tensors["loss_mask"]]).sum()) == 1


def test_packs_hold_whole_rows():
    batch = collect(group())
    [pack] = bridge.packed(batch)
    ends = pack["cu_seqlens"].tolist()
    assert pack["cu_seqlens"].dtype == torch.int32
    assert pack["max_seqlen"] == max(len(row.token_ids) for row in batch.rows)
    for row, start, end in zip(batch.rows, ends, ends[1:], strict=False):
        assert pack["input_ids"][start:end].tolist() == row.token_ids
        assert pack["position_ids"][start:end].tolist() == list(range(end - start))
    packs = bridge.packed(batch, max_tokens=10)
    assert [row for pack in packs for row in pack["input_ids"].tolist()] == [
        token for row in batch.rows for token in row.token_ids
    ]
    assert all(len(pack["input_ids"]) <= 10 for pack in packs)


def test_a_model_reads_a_tree_as_it_reads_its_sequences():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    found = trajectory("a", 1.0, tree=tree())
    tensors = bridge.tree(found, advantage=0.5)
    assert tensors["parents"].tolist() == [-1, 0, 1, 2, 3, 4, 3, 6]
    assert tensors["position_ids"].tolist() == [0, 1, 2, 3, 4, 5, 4, 5]
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 32, "head_dim": 16}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()
    allowed = bridge.tree_attention(tensors["parents"])
    with torch.no_grad():
        logits = model(
            input_ids=tensors["input_ids"][None],
            position_ids=tensors["position_ids"][None],
            attention_mask=torch.where(allowed, 0.0, torch.finfo(torch.float32).min)[None, None],
        ).logits[0]
        logprobs = logits.log_softmax(-1)
        on_tree = [
            logprobs[tensors["parents"][at], tensors["input_ids"][at]].item()
            for at in tensors["loss_mask"].nonzero().flatten().tolist()
        ]
        by_row = []
        for row in collect([found]).rows:
            whole = model(input_ids=torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
            first = len(row.prompt_ids)
            by_row += [
                whole[first + at - 1, row.response_ids[at]].item()
                for at, on in enumerate(row.loss_mask)
                if on
            ]
    assert on_tree == pytest.approx(by_row, abs=1e-5)
    with pytest.raises(bridge.NoTreeError, match="prefix_tree"):
        bridge.tree(group()[0].trajectory)
