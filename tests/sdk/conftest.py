"""One deployment for all tests, a fresh session for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deployment import Deployment, Session


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("polar")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        environment.delenv("POLAR_TOKEN", raising=False)
        running = Deployment(folder)
    yield running
    running.stop()


@pytest.fixture
def session(deployment: Deployment) -> Iterator[Session]:
    """Every session's tokens must add up, whatever the test did in it."""
    opened = deployment.open_session()
    yield opened
    counts = opened.close()["tokens"]
    assert counts["sampled"] == counts["trained"] + sum(counts["untrained"].values())
