from __future__ import annotations

from typing import Any

import httpx
import pytest

from polar import PolarClient, WaitTimeoutError
from tests.conftest import ScriptedServer, ok


def update(status: str) -> dict[str, Any]:
    return {
        "version": "step-7",
        "source": {"disk": {"path": "/ckpt/7"}},
        "ordinal": 7,
        "status": status,
        "requested_at": "2026-01-01T00:00:00Z",
        "engines": [{"engine": "http://localhost:8000", "state": "updating"}],
    }


def test_a_checkpoint_is_handed_over(server: ScriptedServer, client: PolarClient) -> None:
    server.will(httpx.Response(202, json=update("rolling")))
    assert client.update_weights("step-7", path="/ckpt/7").status == "rolling"
    assert server.bodies() == [
        {
            "version": "step-7",
            "source": {"disk": {"path": "/ckpt/7"}},
            "mode": "pause",
            "deadline_seconds": 120.0,
        }
    ]


def test_other_sources_pass_as_they_are(server: ScriptedServer, client: PolarClient) -> None:
    server.will(httpx.Response(202, json=update("rolling")))
    source = {"lora": {"name": "policy", "path": "/lora/7"}}
    client.update_weights("step-7", source=source, mode="continue")
    assert server.bodies()[0]["source"] == source
    with pytest.raises(ValueError, match="either a path or a source"):
        client.update_weights("step-7")


def test_waiting_ends_when_no_engine_is_on_its_way(
    server: ScriptedServer, client: PolarClient
) -> None:
    server.will(ok(update("rolling")), ok(update("partial")))
    assert client.wait_for_weights("step-7").status == "partial"
    assert float(server.requests[0].url.params["wait_seconds"]) > 0
    server.will(ok(update("rolling")))
    with pytest.raises(WaitTimeoutError, match="step-7"):
        client.wait_for_weights("step-7", timeout=0.0)
