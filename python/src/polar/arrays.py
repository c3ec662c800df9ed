"""The tokens of trajectories as NumPy arrays, read without parsing a number.

The server keeps each trajectory as a file of arrays too (safetensors), and streams those of a
batch one behind the other; `PolarClient.batch_arrays` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from polar.errors import PolarError, UnexpectedAnswerError

_LONGEST_HEADER = 100_000_000
"""The most that the format allows."""

_KINDS = {"I32": "<i4", "U8": "u1", "F32": "<f4", "I64": "<i8"}


@dataclass(frozen=True)
class TokenArrays:
    """The tokens of one session, all rows one behind the other.

    A row is a trace: its prompt and its response. With ``layout`` ``"tree"`` it is a node of the
    prefix tree, and ``parents`` says behind which node it lies. The arrays are views of what was
    received and cannot be written to; ``torch.tensor`` copies them.
    """

    session_id: str
    """``rollout_id`` of its rows."""

    task_id: str
    group_id: str
    layout: str
    """``"traces"`` or ``"tree"``."""

    ids: Any
    """Tokens, int32."""

    loss_mask: Any
    """1 where the token is to be trained on, uint8; 0 in prompts."""

    logprobs: Any
    """As the engine gave them, float32; NaN where there is none."""

    versions: Any
    """Index into ``weight_versions`` of what sampled the token, int32; -1 where none is known."""

    offsets: Any
    """Where each row begins, and where the last one ends, int64."""

    prompt_tokens: Any
    """For each sequence, its tokens before the first sampled one, int64."""

    parents: Optional[Any]
    """Of a tree, the node before each node, int64; -1 where sequences begin."""

    last_nodes: Optional[Any]
    """Of a tree, the node that each sequence ends with, int64."""

    weight_versions: list[str]
    lineages: list[dict[str, Any]]
    """For each sequence ``role``, ``parent``, ``cause``, ``finish_reason`` and ``calls``."""

    def sequence(self, index: int) -> slice | Any:
        """Where the tokens of a sequence are in the arrays: ``arrays.ids[arrays.sequence(0)]``."""
        if self.parents is None or self.last_nodes is None:
            return slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        import numpy as np

        nodes: list[int] = []
        node = int(self.last_nodes[index])
        while node >= 0:
            nodes.append(node)
            node = int(self.parents[node])
        spans = [np.arange(self.offsets[at], self.offsets[at + 1]) for at in reversed(nodes)]
        return np.concatenate(spans)


class ArrayReader:
    """Cuts a stream into array files. Does no IO; holds one file at a time."""

    def __init__(self) -> None:
        try:
            import numpy
        except ImportError as error:
            raise PolarError(
                "arrays need NumPy, which is not installed: pip install 'polar-rl[arrays]'"
            ) from error
        self._numpy = numpy
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted: Optional[int] = None
        """Bytes of the file that comes, once its header is there."""
        self._needed = 8
        """Bytes without which there is nothing to do."""

    def feed(self, piece: bytes) -> Iterator[TokenArrays]:
        """Takes the next bytes, and gives the files that end in them."""
        self._pieces.append(piece)
        self._held += len(piece)
        while self._held >= self._needed:
            held = b"".join(self._pieces)
            self._pieces = [held]
            if self._wanted is None:
                self._needed, self._wanted = _length(held)
                continue
            whole, rest = held[: self._wanted], held[self._wanted :]
            self._pieces, self._held = [rest], len(rest)
            self._needed, self._wanted = 8, None
            yield self._read(whole)

    def finish(self) -> None:
        """Raises where the stream ended within a file."""
        if self._held:
            raise UnexpectedAnswerError(
                f"the stream of arrays ended within one, after {self._held} bytes of it; ask again"
            )

    def _read(self, whole: bytes) -> TokenArrays:
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + size])
        about = json.loads(header.pop("__metadata__")["polar"])
        arrays: dict[str, Any] = {}
        for name, found in header.items():
            start, end = found["data_offsets"]
            kind = self._numpy.dtype(_KINDS[found["dtype"]])
            count = (end - start) // kind.itemsize
            arrays[name] = self._numpy.frombuffer(whole, kind, count, 8 + size + start)
        return TokenArrays(
            parents=arrays.pop("parents", None),
            last_nodes=arrays.pop("last_nodes", None),
            **arrays,
            **about,
        )


def _length(held: bytes) -> tuple[int, Optional[int]]:
    """The bytes needed to go on, and those of the whole file once its header is all there."""
    size = int.from_bytes(held[:8], "little")
    if size > _LONGEST_HEADER:
        raise UnexpectedAnswerError("the answer is no stream of arrays; is it a Polar server?")
    if len(held) < 8 + size:
        return 8 + size, None
    header = json.loads(held[8 : 8 + size])
    ends = [found["data_offsets"][1] for name, found in header.items() if name != "__metadata__"]
    whole = 8 + size + max(ends, default=0)
    return whole, whole
