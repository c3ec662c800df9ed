"""The requests of tiny-grpo through TRL's own GRPOTrainer.

TRL computes the advantages and the loss; Polar runs the agent for each prompt, and its
evaluator gives the reward. The engine gets TRL's weights before each generation, through
Polar, so that TRL needs no vLLM of its own. One request is a session here, since TRL takes a
row for each completion.

    examples/trl/run [--steps 10]
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tiny-grpo"))

import torch
from datasets import Dataset
from polar import (
    HarnessSpec,
    PolarClient,
    RuntimeSpec,
    SamplingPins,
    TaskRequest,
    WriteFile,
)
from polar.integrations import trl as bridge
from polar.models import HttpEvaluator
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import deployment
import model
import problems

AGENT = Path(model.__file__).with_name("agent.py")
RIGHT = dict(problems.every(problems.CITIES))


class Pusher:
    """Gives the engine the trainer's weights, once for each step."""

    def __init__(self, client: PolarClient, folder: Path) -> None:
        self._client, self._folder = client, folder
        self._pushed = -1
        self.current = 0

    def push(self, trainer: Any) -> None:
        step = trainer.state.global_step
        if step == self._pushed:
            return
        version, folder = f"trl-step-{step}", self._folder / f"step-{step}"
        model.save(trainer.accelerator.unwrap_model(trainer.model), folder)
        self._client.update_weights(version, path=str(folder))
        self.current += self._client.wait_for_weights(version).status == "current"
        self._pushed = step


def task(prompt: list[dict[str, str]], evaluator: str) -> TaskRequest:
    words = prompt[-1]["content"]
    return TaskRequest(
        instruction=json.dumps([words]),
        harness=HarnessSpec(name="shell", command=f"{sys.executable} agent.py"),
        runtime=RuntimeSpec(
            type="local", prepare=[WriteFile(path="agent.py", content=AGENT.read_text())]
        ),
        evaluator=HttpEvaluator(url=evaluator),
        sampling=SamplingPins(temperature=1.0, max_tokens=40),
        timeout_seconds=300.0,
        metadata={"right": [RIGHT[words]]},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("trl-out"))
    parser.add_argument("--cache", type=Path, default=Path("tiny-grpo-cache"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    base = model.make(arguments.cache.resolve() / "base")
    out = deployment.fresh(arguments.out.resolve())
    source = random.Random(0)
    asked = [words for words, _ in problems.requests(source, 40)]
    prompts = Dataset.from_list([{"prompt": [{"role": "user", "content": w}]} for w in asked])
    left_out: Counter[str] = Counter()
    with deployment.running(base, out) as client, problems.evaluator() as evaluator:
        pusher = Pusher(client, out / "weights")
        run_tasks = bridge.rollout_func(
            client,
            functools.partial(task, evaluator=evaluator),
            seen=lambda answer: left_out.update(answer.left_out),
        )

        def roll_out(prompts: list[Any], trainer: Any) -> Any:
            pusher.push(trainer)
            # TRL gives each prompt as often as its group has members.
            return run_tasks(prompts, trainer)

        trainer = GRPOTrainer(
            model=model.load(base),
            reward_funcs=bridge.reward,
            train_dataset=prompts,
            processing_class=AutoTokenizer.from_pretrained(base),
            rollout_func=roll_out,
            args=GRPOConfig(
                output_dir=str(out / "trainer"),
                max_steps=arguments.steps,
                per_device_train_batch_size=16,
                num_generations=8,
                learning_rate=4e-4,
                temperature=1.0,
                beta=0.0,
                max_completion_length=40,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                bf16=False,
            ),
        )
        trainer.train()
    for entry in trainer.state.log_history:
        if "reward" in entry:
            print(f"step {entry['step']}: reward {entry['reward']:.2f}")
    print(f"{pusher.current} weight updates current; left out: {dict(left_out) or 'nothing'}")


if __name__ == "__main__":
    main()
