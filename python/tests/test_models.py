from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from polar import (
    Callback,
    CommandEvaluator,
    Exec,
    HarnessSpec,
    PolarClient,
    RuntimeSpec,
    SessionInfo,
    TaskInfo,
    TaskRequest,
    TokenCounts,
    WriteFile,
)
from polar._model import Unknown
from polar.models import Failed, Outcome, TokenTree
from tests.conftest import ScriptedServer, ok, session_info, task_info

OUTCOME: TypeAdapter[Any] = TypeAdapter(Outcome)


def test_a_request_says_only_what_was_set() -> None:
    task = TaskRequest(
        instruction="Fix it.",
        harness="pi",
        runtime=RuntimeSpec(
            type="local", prepare=[WriteFile(path="a.py", content="1"), Exec(command="true")]
        ),
        evaluator=CommandEvaluator(command="pytest -q"),
        task_id=None,
        metadata={"kept": None},
    )
    assert task.body() == {
        "instruction": "Fix it.",
        "harness": "pi",
        "runtime": {
            "type": "local",
            "prepare": [
                {"type": "write_file", "path": "a.py", "content": "1"},
                {"type": "exec", "command": "true"},
            ],
        },
        "evaluator": {"type": "command", "command": "pytest -q"},
        "metadata": {"kept": None},
    }


def test_models_inside_of_keyword_arguments_are_sent_as_json(
    server: ScriptedServer, client: PolarClient
) -> None:
    server.will(ok(task_info()), ok(task_info()))
    client.submit(
        {"task_id": "t1", "runtime": {"type": "local", "prepare": [Exec(command="true")]}},
        harness=HarnessSpec(name="pi"),
        callback=Callback(url="http://x"),
    )
    client.submit(TaskRequest(harness="pi", task_id="t1"), num_samples=4)
    assert server.bodies() == [
        {
            "task_id": "t1",
            "runtime": {"type": "local", "prepare": [{"type": "exec", "command": "true"}]},
            "harness": {"name": "pi"},
            "callback": {"url": "http://x"},
        },
        {"harness": "pi", "task_id": "t1", "num_samples": 4},
    ]


def test_what_a_newer_server_says_is_kept() -> None:
    task = TaskInfo.model_validate(task_info(status="paused", weather={"rain": 3}))
    assert task.status == "paused"
    assert not task.ended
    assert task.model_dump()["weather"] == {"rain": 3}
    outcome = OUTCOME.validate_python({"type": "evicted", "by": "n1"})
    assert isinstance(outcome, Unknown)
    assert outcome.model_dump() == {"type": "evicted", "by": "n1"}


def test_outcomes_are_told_apart() -> None:
    failed = {"type": "failed", "side": "engine", "class": "timeout", "message": "slow"}
    outcome = OUTCOME.validate_json(json.dumps(failed))
    assert isinstance(outcome, Failed)
    assert outcome.error_class == "timeout"
    assert outcome.model_dump(by_alias=True) == failed


def test_the_report_is_that_of_the_last_attempt_unless_it_was_lost() -> None:
    report = {
        "session_id": "s0",
        "epoch": 1,
        "node_id": "n",
        "outcome": {"type": "completed"},
        "calls": 1,
        "traces": 1,
        "tokens": {"sampled": 3, "trained": 3, "context": 0},
        "times": {},
    }
    attempt = {"attempt": 1, "epoch": 1, "node_id": "n", "started_at": "", "report": report}
    kept = SessionInfo.model_validate(session_info("s0", attempts=[attempt]))
    assert kept.report is not None
    assert kept.report.tokens.is_conserved
    lost = {**attempt, "lost": "lease_expired"}
    assert SessionInfo.model_validate(session_info("s0", attempts=[lost])).report is None


def test_conservation() -> None:
    counts = TokenCounts(sampled=5, trained=3, untrained={"undelivered": 1}, context=9)
    assert not counts.is_conserved


def test_a_tree_gives_the_nodes_of_a_sequence_in_order() -> None:
    def node(parent: int | None, ids: list[int]) -> dict[str, Any]:
        empty: dict[str, Any] = {"logprobs": [None] * len(ids), "weight_versions": [], "calls": []}
        return {"parent": parent, "ids": ids, "loss_mask": [0] * len(ids), "role": "main", **empty}

    fork = {"cause": "new_lineage", "shared_tokens": 0}
    lineage = {
        "last_node": 2,
        "prompt_tokens": 1,
        "prompt_messages": [],
        "response_messages": [],
        "lineage": {"role": "main", "fork": fork},
        "calls": ["c00000"],
        "sampling": {},
    }
    nodes = [node(None, [1]), node(0, [2]), node(0, [3, 4])]
    tree = TokenTree.model_validate({"nodes": nodes, "lineages": [lineage], "values": []})
    assert [node.ids for node in tree.path(0)] == [[1], [3, 4]]
