"""What ``polar export`` writes, read by those whom it is for: pyarrow, datasets and TRL."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from datasets import load_dataset
from polar import HarnessSpec, PolarClient, TaskRequest
from trl import SFTConfig, SFTTrainer

from tests.processes import binary, served


def agent() -> None:
    """Two turns with a tool. Its source is the task's command."""
    import json
    import os
    import urllib.request

    tool = {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    }
    messages = [{"role": "user", "content": "Say the word."}]
    for _ in range(2):
        body = {"model": "m", "messages": messages, "tools": [tool]}
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
                "content-type": "application/json",
            },
        )
        with urllib.request.urlopen(request) as response:
            messages.append(json.load(response)["choices"][0]["message"])
        messages.append({"role": "user", "content": "Once more."})


COMMAND = f"python3 - <<'AGENT'\n{inspect.getsource(agent)}\nagent()\nAGENT"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a task `t` that has ended."""
    folder = tmp_path_factory.mktemp("export")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        for name in ("POLAR_TOKEN", "POLAR_SERVER", "POLAR_STATE"):
            environment.delenv(name, raising=False)
        with served(folder) as address:
            harness = HarnessSpec(name="shell", command=COMMAND)
            with PolarClient(address) as client:
                task = TaskRequest(
                    task_id="t", instruction="Say it.", harness=harness, num_samples=3
                )
                client.submit(task)
                client.wait("t", timeout=60)
            yield address


def export(server: str, out: Path, *arguments: str) -> str:
    command = [binary(), "export", "t", f"--server={server}", f"--out={out}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def trajectories(server: str) -> list[Any]:
    with PolarClient(server) as client:
        return client.get_trajectories("t")


def test_promise_1_parquet_has_what_the_server_counts(server: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    said = export(server, out, "--format=parquet")
    kept = trajectories(server)
    trained = sum(trajectory.tokens.trained for trajectory in kept)
    rows = parquet.read_table(out).to_pylist()
    assert said.startswith(f"{len(rows)} rows of 3 sessions written, with {trained} of {trained}")
    assert sum(sum(row["loss_mask"]) for row in rows) == trained > 0
    traces = [(t.session_id, trace) for t in kept for trace in t.traces]
    assert len(traces) == len(rows)
    for (session, trace), row in zip(traces, rows, strict=True):
        assert row["rollout_id"] == session
        assert row["prompt_ids"] == trace.prompt_ids
        assert row["response_ids"] == trace.response_ids
        assert row["loss_mask"] == trace.loss_mask
        assert row["response_logprobs"] == pytest.approx(trace.response_logprobs)
        assert json.loads(row["prompt_messages"]) == trace.prompt_messages
    loaded = load_dataset(
        "parquet", data_files=str(out), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.num_rows == len(rows)
    assert loaded[0]["response_ids"] == rows[0]["response_ids"]
    assert loaded[0]["response_logprobs"] == rows[0]["response_logprobs"]


def test_messages_train_in_trl_as_they_are(server: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    out = tmp_path / "sft.jsonl"
    export(server, out, "--format=jsonl")
    rows = load_dataset(
        "json", data_files=str(out), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rows.num_rows >= 3
    words = {"[UNK]": 0, "[EOS]": 1, "assistant": 2, "user": 3, "Say": 4, "word": 5}
    raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="[UNK]", eos_token="[EOS]", pad_token="[EOS]"
    )
    tokenizer.chat_template = (
        "{% if tools %}tools {{ tools | length }} {% endif %}"
        "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    arguments = SFTConfig(
        output_dir=str(tmp_path / "model"),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
    )
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
    )
    assert trainer.train().training_loss > 0.0


def test_a_task_that_is_named_twice_is_written_once(server: str, tmp_path: Path) -> None:
    once = export(server, tmp_path / "once.jsonl", "--format=jsonl")
    twice = export(server, tmp_path / "twice.jsonl", "--format=jsonl", "t")
    assert once.partition(" written")[0] == twice.partition(" written")[0]
    assert (tmp_path / "once.jsonl").read_text() == (tmp_path / "twice.jsonl").read_text()


def test_files_are_there_whole_or_not_at_all(server: str, tmp_path: Path) -> None:
    folder = tmp_path / "split"
    export(server, folder, "--format=atif", "--held-out=0.5")
    assert sorted(os.listdir(folder)) == ["test.jsonl", "train.jsonl"]
    written = [(folder / name).read_text() for name in ("test.jsonl", "train.jsonl")]
    # One group, whole, on one side.
    assert written.count("") == 1
    document = json.loads("".join(written).splitlines()[0])
    assert document["schema_version"] == "ATIF-v1.4"
    out = tmp_path / "gone.parquet"
    command = [binary(), "export", "no-such-task", f"--server={server}", f"--out={out}"]
    refused = subprocess.run([*command, "--format=parquet"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "no-such-task" in refused.stderr
    assert os.listdir(tmp_path) == ["split"]
