from __future__ import annotations

from typing import Any

from polar import PolarClient
from tests.conftest import ScriptedServer, ok


def node() -> dict[str, Any]:
    engine = {
        "engine": "http://localhost:8000",
        "kind": "vllm",
        "state": "ready",
        "weight": 2.0,
        "sessions": 3,
        "in_flight": 4,
        "calls": 50,
        "errors": 0,
        "moved_away": 0,
    }
    return {"node_id": "a", "alive": True, "engines": [engine]}


def test_engines_are_listed_by_node(server: ScriptedServer, client: PolarClient) -> None:
    server.will(ok({"nodes": [node()]}))
    [only] = client.engines()
    assert (only.node_id, only.engines[0].state, only.engines[0].weight) == ("a", "ready", 2.0)


def test_a_change_says_what_was_said(server: ScriptedServer, client: PolarClient) -> None:
    server.will(ok(node()), ok(node()))
    client.change_engine("add", "localhost:8000", weight=2, node_id="a")
    client.change_engine("drain", "localhost:8000")
    assert server.bodies() == [
        {"action": "add", "engine": "localhost:8000", "weight": 2, "node_id": "a"},
        {"action": "drain", "engine": "localhost:8000"},
    ]
