"""The two clients offer the same, so that code moves from one to the other by adding await."""

from __future__ import annotations

import inspect

import pytest

from polar import AsyncPolarClient, PolarClient

PUBLIC = sorted(name for name in vars(PolarClient) if not name.startswith("_"))


def test_same_members() -> None:
    assert sorted(name for name in vars(AsyncPolarClient) if not name.startswith("_")) == PUBLIC


@pytest.mark.parametrize("name", [*PUBLIC, "__init__"])
def test_same_parameters_and_words(name: str) -> None:
    one, other = getattr(PolarClient, name), getattr(AsyncPolarClient, name)
    assert inspect.getdoc(one) == inspect.getdoc(other)
    ours, theirs = (inspect.signature(member).parameters for member in (one, other))
    assert list(ours) == list(theirs)
    for key in set(ours) - {"transport"}:
        assert ours[key].default == theirs[key].default
        assert ours[key].annotation == theirs[key].annotation
