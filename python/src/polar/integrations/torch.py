"""Plain PyTorch tensors: padded, packed, and trees in which shared context is stored once.

For training loops of one's own. `logprobs` are NaN where there is none, so that what was
never measured cannot be used by accident: multiply by `loss_mask` with `torch.where`, not
with `*`. Weights are `loss_weight` on each trained token.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any, Optional

from polar.errors import PolarError
from polar.integrations._packages import package
from polar.models import TokenTree, Trajectory
from polar.rows import Batch, Row


class NoTreeError(PolarError, ValueError):
    """A trajectory was not built as a tree."""


def padded(batch: Batch, *, pad_token_id: int = 0) -> dict[str, Any]:
    """A row each, padded on the right. All [rows, tokens]: `input_ids`, `position_ids` int64,
    `attention_mask`, `loss_mask` bool, `logprobs`, `advantages`, `weights` float32.

    Values at a place belong to the token there, which the logits of the place before predict.
    """
    torch = package("torch", "torch")
    rows = [_columns(row) for row in batch.rows]
    width = max((len(row["input_ids"]) for row in rows), default=0)
    fillings = {**_FILLINGS, "input_ids": pad_token_id}
    return {
        name: torch.tensor(
            [row[name] + [fillings[name]] * (width - len(row[name])) for row in rows],
            dtype=getattr(torch, kind),
        )
        for name, kind in _KINDS.items()
    }


def packed(batch: Batch, *, max_tokens: Optional[int] = None) -> list[dict[str, Any]]:
    """Rows behind one another without padding, as variable-length attention takes them: as
    `padded` with [tokens] each, `cu_seqlens` int32 [rows + 1] and `max_seqlen`.

    With ``max_tokens`` they are spread over packs of at most so many, a longer row being a
    pack of its own.
    """
    torch = package("torch", "torch")
    packs: list[list[dict[str, list[Any]]]] = []
    held = 0
    for row in map(_columns, batch.rows):
        length = len(row["input_ids"])
        if not packs or (max_tokens is not None and held + length > max_tokens):
            packs.append([])
            held = 0
        packs[-1].append(row)
        held += length
    return [_pack(torch, pack) for pack in packs]


def _pack(torch: Any, rows: Sequence[dict[str, list[Any]]]) -> dict[str, Any]:
    lengths = [len(row["input_ids"]) for row in rows]
    ends = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    tensors: dict[str, Any] = {
        name: torch.tensor([v for row in rows for v in row[name]], dtype=getattr(torch, kind))
        for name, kind in _KINDS.items()
    }
    tensors["cu_seqlens"] = torch.tensor(ends, dtype=torch.int32)
    tensors["max_seqlen"] = max(lengths)
    return tensors


_KINDS = {
    "input_ids": "int64",
    "position_ids": "int64",
    "attention_mask": "bool",
    "loss_mask": "bool",
    "logprobs": "float32",
    "advantages": "float32",
    "weights": "float32",
}
_FILLINGS: dict[str, Any] = {
    "input_ids": 0,
    "position_ids": 0,
    "attention_mask": False,
    "loss_mask": False,
    "logprobs": nan,
    "advantages": 0.0,
    "weights": 0.0,
}


def _columns(row: Row) -> dict[str, list[Any]]:
    context, length = len(row.prompt_ids), len(row.token_ids)
    mask = [False] * context + [on == 1 for on in row.loss_mask]
    return {
        "input_ids": row.token_ids,
        "position_ids": list(range(length)),
        "attention_mask": [True] * length,
        "loss_mask": mask,
        "logprobs": [nan] * context + [nan if v is None else v for v in row.logprobs],
        "advantages": [row.advantage if on else 0.0 for on in mask],
        "weights": [row.loss_weight if on else 0.0 for on in mask],
    }


def tree(trajectory: Trajectory, *, advantage: float = 0.0) -> dict[str, Any]:
    """A session built by `prefix_tree` as one sequence, in which shared context is once.

    All [tokens]: `input_ids`, `position_ids` int64 (depth in the tree), `parents` int64 (the
    place of the token before in its sequence, -1 where one begins), `nodes` int64, `loss_mask`
    bool, `logprobs`, `advantages`, `weights` float32 (as of `padded`, with `1 / lineages`).
    The logits at `parents[i]` predict the token at `i`. `tree_attention` makes the mask.
    """
    torch = package("torch", "torch")
    if trajectory.tree is None:
        raise NoTreeError(
            f"{trajectory.session_id} was built by {trajectory.strategy}: ask for "
            "trajectory_strategy='prefix_tree'"
        )
    columns = _tree_columns(trajectory.tree, advantage)
    kinds = {**_KINDS, "parents": "int64", "nodes": "int64"}
    return {
        name: torch.tensor(values, dtype=getattr(torch, kinds[name]))
        for name, values in columns.items()
    }


def _tree_columns(tree: TokenTree, advantage: float) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        name: [] for name in (*(k for k in _KINDS if k != "attention_mask"), "parents", "nodes")
    }
    last: list[int] = []
    for number, node in enumerate(tree.nodes):
        parent = -1 if node.parent is None else last[node.parent]
        depth = 0 if parent < 0 else columns["position_ids"][parent] + 1
        begin, length = len(columns["input_ids"]), len(node.ids)
        mask = [on == 1 for on in node.loss_mask]
        columns["input_ids"] += node.ids
        columns["position_ids"] += range(depth, depth + length)
        columns["parents"] += [parent, *range(begin, begin + length - 1)]
        columns["nodes"] += [number] * length
        columns["loss_mask"] += mask
        columns["logprobs"] += [nan if value is None else value for value in node.logprobs]
        columns["advantages"] += [advantage if on else 0.0 for on in mask]
        columns["weights"] += [1.0 / len(tree.lineages) if on else 0.0 for on in mask]
        last.append(begin + length - 1)
    return columns


def tree_attention(parents: Any) -> Any:
    """What each token of a `tree` may attend to: bool [tokens, tokens], its own path."""
    torch = package("torch", "torch")
    length = len(parents)
    allowed = torch.zeros(length, length, dtype=torch.bool)
    for at, parent in enumerate(parents.tolist()):
        if parent >= 0:
            allowed[at] = allowed[parent]
        allowed[at, at] = True
    return allowed
