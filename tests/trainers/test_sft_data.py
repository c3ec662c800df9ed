"""`examples/sft-data` as it is: tasks in, what agents did well out, and TRL trains on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from polar import PolarClient

from tests.processes import ROOT, binary, served

HERE = Path(__file__).parent
EXAMPLE = ROOT / "examples" / "sft-data"
LONG = "long " * 9000


def task(asked: str, answer: str) -> dict[str, Any]:
    agent = {"type": "write_file", "path": "agent.py", "content": (HERE / "looking.py").read_text()}
    return {
        "instruction": asked,
        "harness": {"name": "shell", "command": "python3 agent.py"},
        "runtime": {"type": "local", "prepare": [agent]},
        "evaluator": {"type": "command", "command": f"grep -q '{answer}' answer.txt"},
        "num_samples": 2,
    }


GOOD = [task(f"Is all as it should be in house {number}?", "open") for number in range(8)]
TASKS = [*GOOD, task("Is the cellar dry?", "cellar"), task(LONG, "open")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sft")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        for name in ("POLAR_TOKEN", "POLAR_SERVER", "POLAR_STATE"):
            environment.delenv(name, raising=False)
        with served(folder, policy=str(HERE / "policy.yaml")) as address:
            yield address


@pytest.fixture(scope="module")
def collected(server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the files, and what was said."""
    folder = tmp_path_factory.mktemp("collected")
    return folder / "sft", collect(server, folder, TASKS)


def collect(server: str, folder: Path, tasks: list[dict[str, Any]]) -> str:
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    command = [sys.executable, str(EXAMPLE / "collect.py"), str(folder / "tasks.jsonl")]
    command += ["--server", server, "--out", str(folder / "sft"), "--held-out", "0.3"]
    run = subprocess.run(command, env=with_sdk(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def with_sdk() -> dict[str, str]:
    path = str(ROOT / "python" / "src")
    return {**os.environ, "PYTHONPATH": path, "POLAR_BINARY": binary()}


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_what_agents_did_well_is_there_once(collected: tuple[Path, str]) -> None:
    folder, said = collected
    written = [*rows(folder, "train"), *rows(folder, "test")]
    # Of two samples that are the same, one.
    assert sorted(row["messages"][1]["content"].strip() for row in written) == sorted(
        task["instruction"] for task in GOOD
    )
    for row in written:
        assert row["role"] == "main"
        assert row["reward"] == 1.0
        assert [message["role"] for message in row["messages"]] == [
            *("system", "user", "assistant", "tool", "tool", "assistant")
        ]
        assert json.loads(row["tools"])[0]["function"]["name"] == "look"
    # The wrong answer, the long conversation, and one of two samples each.
    told = said.splitlines()[-1].split("left out: ")[1].split(", ")
    assert sorted(told) == ["2 by reward", "2 too long", "8 duplicate"]


def test_a_group_is_on_one_side(collected: tuple[Path, str]) -> None:
    folder, _ = collected
    train, test = ({row["group_id"] for row in rows(folder, name)} for name in ("train", "test"))
    assert train
    assert test
    assert not train & test


def test_started_again_it_runs_nothing_twice(
    server: str, collected: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = collected
    with PolarClient(server) as client:
        before = [task.task_id for task in client.tasks()]
    collect(server, tmp_path, TASKS)
    with PolarClient(server) as client:
        assert [task.task_id for task in client.tasks()] == before
    for name in ("train", "test"):
        assert rows(tmp_path / "sft", name) == rows(folder, name)


def test_trl_trains_on_the_files_as_they_are(collected: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = collected
    tiny_model(tmp_path / "model")
    command = [sys.executable, str(EXAMPLE / "train.py"), str(folder), "--cpu", "--steps=2"]
    command += ["--batch=2", f"--model={tmp_path / 'model'}", f"--out={tmp_path / 'tuned'}"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    said = run.stdout.splitlines()
    loss = [float(line.split()[1]) for line in said if line.startswith("loss ")]
    held_out = [float(line.split()[2]) for line in said if line.startswith("held out ")]
    assert len(loss) == len(held_out) == 1
    assert min(*loss, *held_out) > 0.0
    assert f"{len(rows(folder, 'train'))} rows to train on" in said
    assert (tmp_path / "tuned" / "model.safetensors").exists()


def tiny_model(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"[UNK]": 0, "[EOS]": 1, "assistant": 2, "user": 3, "look": 4, "door": 5}
    raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="[UNK]", eos_token="[EOS]", pad_token="[EOS]"
    )
    tokenizer.chat_template = (
        "{% if tools %}tools {{ tools | length }} {% endif %}"
        "{% for message in messages %}{{ message.role }} {{ message.content }} "
        "{% for call in message.tool_calls or [] %}{{ call.function.name }} "
        "{{ call.function.arguments }} {% endfor %}{% endfor %}"
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
