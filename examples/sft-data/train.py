"""Fine-tunes a model on the files of `collect.py`, by TRL, as they are.

train.py sft [--model Qwen/Qwen3-0.6B] [--steps 100]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with train.jsonl and test.jsonl")
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
    parser.add_argument("--out", default="sft-model")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    # A file may be empty where few groups were held out.
    files = {
        name: str(path)
        for name in ("train", "test")
        if (path := arguments.data / f"{name}.jsonl").stat().st_size
    }
    rows = load_dataset("json", data_files=files)
    trainer = SFTTrainer(
        model=arguments.model,
        train_dataset=rows["train"],
        eval_dataset=rows.get("test"),
        args=SFTConfig(
            output_dir=arguments.out,
            max_steps=arguments.steps,
            per_device_train_batch_size=arguments.batch,
            report_to=[],
            use_cpu=arguments.cpu,
            bf16=not arguments.cpu,
        ),
    )
    print(f"{len(rows['train'])} rows to train on")
    print(f"loss {trainer.train().training_loss:.3f}")
    if "test" in rows:
        print(f"held out {trainer.evaluate()['eval_loss']:.3f}")
    trainer.save_model(arguments.out)


if __name__ == "__main__":
    main()
