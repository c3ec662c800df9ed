"""Reading streams of array files, however they are cut."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from polar import PolarClient, ServerUnreachableError, UnexpectedAnswerError
from polar.arrays import ArrayReader, TokenArrays
from tests.conftest import ScriptedServer

KINDS = {"<i4": "I32", "|u1": "U8", "<f4": "F32", "<i8": "I64"}


def file(session: str, layout: str = "traces", **arrays: Any) -> bytes:
    """One file as the server writes it."""
    header: dict[str, Any] = {}
    data = b""
    for name, values in arrays.items():
        start, data = len(data), data + values.tobytes()
        kind = KINDS[values.dtype.str]
        header[name] = {
            "dtype": kind,
            "shape": [len(values)],
            "data_offsets": [start, len(data)],
        }
    about = {
        "layout": layout,
        "session_id": session,
        "task_id": "t",
        "group_id": "t",
        "weight_versions": ["1"],
        "lineages": [],
    }
    header["__metadata__"] = {"polar": json.dumps(about)}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def of(session: str, tokens: int, layout: str = "traces", **more: Any) -> bytes:
    return file(
        session,
        layout,
        ids=np.arange(tokens, dtype="<i4"),
        loss_mask=np.ones(tokens, dtype="u1"),
        logprobs=np.full(tokens, -0.5, dtype="<f4"),
        versions=np.zeros(tokens, dtype="<i4"),
        offsets=more.pop("offsets", np.array([0, tokens], dtype="<i8")),
        prompt_tokens=more.pop("prompt_tokens", np.array([1], dtype="<i8")),
        **more,
    )


def read(stream: bytes, size: int) -> list[TokenArrays]:
    reader = ArrayReader()
    found: list[TokenArrays] = []
    for start in range(0, len(stream), size):
        found += reader.feed(stream[start : start + size])
    reader.finish()
    return found


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 10**6])
def test_files_are_read_however_the_stream_is_cut(size: int) -> None:
    found = read(of("a", 3) + of("empty", 0) + of("b", 50), size)
    assert [(arrays.session_id, arrays.ids.tolist()) for arrays in found] == [
        ("a", [0, 1, 2]),
        ("empty", []),
        ("b", list(range(50))),
    ]
    assert found[2].logprobs.dtype == np.float32
    assert found[2].loss_mask.sum() == 50


def test_sequences_of_a_tree_are_the_paths_to_their_last_nodes() -> None:
    [tree] = read(
        of(
            "a",
            6,
            "tree",
            offsets=np.array([0, 2, 3, 6], dtype="<i8"),
            prompt_tokens=np.array([2, 2], dtype="<i8"),
            parents=np.array([-1, 0, 0], dtype="<i8"),
            last_nodes=np.array([1, 2], dtype="<i8"),
        ),
        4096,
    )
    assert [tree.ids[tree.sequence(index)].tolist() for index in (0, 1)] == [
        [0, 1, 2],
        [0, 1, 3, 4, 5],
    ]


def test_a_stream_that_ends_within_a_file_is_an_error() -> None:
    whole = of("a", 3)
    for end in (4, 12, len(whole) - 1):
        with pytest.raises(UnexpectedAnswerError, match="ended within one"):
            read(whole + whole[:end], 4096)


def test_what_is_no_stream_of_arrays_is_told() -> None:
    with pytest.raises(UnexpectedAnswerError, match="is it a Polar server"):
        read(b"<!doctype html><html>", 4096)


class Broken(httpx.SyncByteStream):
    """A body that breaks off."""

    def __iter__(self) -> Any:
        yield of("a", 3)
        raise httpx.ReadError("cut")


def test_a_connection_that_breaks_off_is_told_with_what_was_asked(
    client: PolarClient, server: ScriptedServer
) -> None:
    server.will(httpx.Response(200, stream=Broken()))
    found = client.batch_arrays(1)
    assert next(found).session_id == "a"
    with pytest.raises(ServerUnreachableError, match="arrays of batch 1"):
        next(found)
