"""A group of real sessions through the bridges: a fork, a sub-agent, a timeout, a failure and a
reply without logprobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar import CommandEvaluator, HarnessSpec, PolarClient, Result, TaskRequest, WriteFile
from polar.integrations import agent_lightning, prime_rl, skyrl, trl
from polar.integrations.running import run
from polar.models import RuntimeSpec
from polar.rows import collect
from tests.processes import served

POLICY = """
name: bridges
rules:
  - name: delegate
    when: {last: "Delegate", tools: [task]}
    reply: {tool_calls: [{name: task, arguments: {prompt: "Count the files."}}]}
  - name: no logprobs
    when: {last: "Say it unmeasured"}
    reply: {text: "Nobody knows how likely this was."}
    fault: missing_logprobs
default:
  text: "You said: {{ last }}"
"""


def agent() -> None:
    """Its source runs in the sandbox. Which of the group it is, it learns from a shared folder."""
    import json
    import os
    import time
    import urllib.request

    def ask(*messages: dict[str, object]) -> dict[str, object]:
        tool = {"name": "task", "parameters": {"type": "object"}}
        body = {
            "model": "m",
            "messages": messages,
            "tools": [{"type": "function", "function": tool}],
        }
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
                "content-type": "application/json",
            },
        )
        with urllib.request.urlopen(request) as response:
            reply: dict[str, object] = json.load(response)["choices"][0]["message"]
            return reply

    def user(text: str) -> dict[str, object]:
        return {"role": "user", "content": text}

    number = 0
    while True:
        try:
            os.mkdir(os.path.join(os.environ["SHARED"], str(number)))
            break
        except FileExistsError:
            number += 1
    first = ask(user("Begin."))
    if number == 0:
        ask(user("Begin."), first, user("Go on."))
        ask(user("Begin, as I never said."), first, user("Go on."))
        ask(user("Begin."), first, user("Delegate"))
        ask(user("Count the files."))
    if number == 3:
        ask(user("Say it unmeasured"))
    with open("answer.txt", "w") as answer:
        answer.write("no" if number == 1 else "yes")
    if number == 2:
        time.sleep(3600)


AGENT = f"from __future__ import annotations\n{inspect.getsource(agent)}\nagent()\n"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Result]]:
    folder = tmp_path_factory.mktemp("polar")
    (folder / "policy.yaml").write_text(POLICY)
    policy = str(folder / "policy.yaml")
    with served(folder, policy) as address, PolarClient(address) as client:
        [found] = run(client, [task(folder)])
        yield found


def task(folder: Path) -> TaskRequest:
    shared = folder / "shared"
    shared.mkdir()
    return TaskRequest(
        harness=HarnessSpec(name="shell", command="python3 agent.py", env={"SHARED": str(shared)}),
        runtime=RuntimeSpec(type="local", prepare=[WriteFile(path="agent.py", content=AGENT)]),
        evaluator=CommandEvaluator(command="grep -q yes answer.txt"),
        num_samples=4,
        timeout_seconds=10.0,
    )


def test_the_baseline_is_that_of_rollouts(group: list[Result]) -> None:
    assert [result.session.sample_index for result in group] == [0, 1, 2, 3]
    batch = collect(group, scale=False)
    assert sorted(str(rollout.reward) for rollout in batch.rollouts) == ["0.0", "1.0", "1.0", "1.0"]
    assert {row.baseline for row in batch.rows} == {0.75}
    [forked] = [rows for rows in batch.by_rollout() if len(rows) > 1]
    roles = [row.role for row in forked]
    assert roles.count("main") > 1
    assert roles[-1] == "sub_agent"
    assert sum(row.loss_weight for row in forked) == pytest.approx(1.0)
    assert {row.reason for row in batch.rows} == {"completed", "agent_timeout"}
    assert batch.untrained_tokens["logprob_missing"] > 0
    trained = sum(result.trajectory.tokens.trained for result in group if result.trajectory)
    assert sum(row.trained for row in batch.rows) == trained


def test_every_format_has_every_trained_token_once(group: list[Result]) -> None:
    batch = collect(group)
    trained = sum(row.trained for row in batch.rows)
    output = skyrl.generator_output(batch, range(4))
    assert sum(map(sum, output["loss_masks"])) == trained
    samples = prime_rl.training_samples(batch, "env", kind=dict)
    assert sum(sum(sample["mask"]) for sample in samples) == trained
    events = [event for found in agent_lightning.events(batch).values() for event in found]
    replies = [event["data"]["response"] for event in events if "response" in event["data"]]
    assert sum(len(reply["choices"][0]["token_ids"]) for reply in replies) == trained
    answer = trl.completions([group], forks="main")
    assert len(answer["completion_ids"]) == 4
    assert answer.left_out["forked_row"] == len(batch.rows) - 4
