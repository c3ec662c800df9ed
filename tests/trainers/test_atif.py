"""What ``polar export --format atif`` writes, by the validator that Harbor publishes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
from polar import HarnessSpec, PolarClient, RuntimeSpec, TaskRequest, WriteFile

from tests.processes import binary, served

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("atif")
    out = folder / "atif.jsonl"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        for name in ("POLAR_TOKEN", "POLAR_SERVER", "POLAR_STATE"):
            environment.delenv(name, raising=False)
        with served(folder, policy=str(HERE / "policy.yaml")) as address:
            with PolarClient(address) as client:
                agent = WriteFile(path="agent.py", content=(HERE / "looking.py").read_text())
                client.submit(
                    TaskRequest(
                        task_id="t",
                        instruction="Is all as it should be?",
                        harness=HarnessSpec(name="shell", command="python3 agent.py"),
                        runtime=RuntimeSpec(type="local", prepare=[agent]),
                        num_samples=2,
                    )
                )
                assert client.wait("t", timeout=60).sessions == {"completed": 2}
            command = [binary(), "export", "t", f"--server={address}", f"--out={out}"]
            subprocess.run([*command, "--format=atif"], check=True)
            yield [json.loads(line) for line in out.read_text().splitlines()]


def test_every_document_is_valid(documents: list[dict[str, Any]]) -> None:
    assert len(documents) == 2
    for document in documents:
        validator = TrajectoryValidator()
        assert validator.validate(document), validator.get_errors()
        # Nothing of it is unknown to the format's own model.
        assert Trajectory.model_validate(document).to_json_dict() == without_nulls(document)


def test_the_validator_sees_what_is_wrong(documents: list[dict[str, Any]]) -> None:
    broken = json.loads(json.dumps(documents[0]))
    broken["steps"][-2]["tool_calls"][0]["tool_call_id"] = "another"
    assert not TrajectoryValidator().validate(broken)


def test_tools_results_and_reasoning_are_where_the_format_has_them(
    documents: list[dict[str, Any]],
) -> None:
    for document in documents:
        steps = Trajectory.model_validate(document).steps
        assert [step.source for step in steps] == ["system", "user", "agent", "agent"]
        looked, said = steps[2:]
        assert (looked.reasoning_content or "").strip() == "I should look before I say anything."
        assert [call.arguments for call in looked.tool_calls or []] == [
            {"at": 'the { "door" }'},
            {"at": "the window"},
        ]
        assert looked.observation is not None
        assert [result.content for result in looked.observation.results] == [
            'as it should be: the { "door" }',
            "as it should be: the window",
        ]
        assert str(said.message).strip() == "The door is open and the window is shut."
        for step in (looked, said):
            assert step.metrics is not None
            ids, logprobs = step.metrics.completion_token_ids, step.metrics.logprobs
            assert ids
            assert logprobs is not None
            assert len(ids) == len(logprobs) == step.metrics.completion_tokens


def without_nulls(value: Any) -> Any:
    """As the model writes itself: `extra` and arguments are no fields, and stay whole."""
    if isinstance(value, dict):
        return {
            name: one if name in ("extra", "arguments") else without_nulls(one)
            for name, one in value.items()
            if one is not None
        }
    return [without_nulls(one) for one in value] if isinstance(value, list) else value
