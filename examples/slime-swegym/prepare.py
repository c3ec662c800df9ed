"""Writes SWE-Gym instances as lines for slime: `prepare.py instances.jsonl train.jsonl`.

Instances are as in the dataset `SWE-Gym/SWE-Gym-Lite`, with `image` and `test_command` of
your images added where it has none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FIELDS = ("instance_id", "repo", "base_commit", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
TEST_COMMAND = "python -m pytest -rA --tb=no -p no:cacheprovider"


def line(instance: dict) -> dict:
    """An instance as slime reads it; lists may come as JSON in text."""
    kept = {name: instance[name] for name in FIELDS}
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        if isinstance(kept[name], str):
            kept[name] = json.loads(kept[name])
    name = instance["instance_id"].replace("__", "_s_").lower()
    kept["image"] = instance.get("image") or f"xingyaoww/sweb.eval.x86_64.{name}"
    kept["test_command"] = instance.get("test_command") or TEST_COMMAND
    return {"prompt": instance["problem_statement"], "metadata": kept}


def main(source: Path, target: Path) -> None:
    lines = [json.loads(text) for text in source.read_text().splitlines() if text.strip()]
    target.write_text("".join(json.dumps(line(instance)) + "\n" for instance in lines))
    print(f"{len(lines)} instances in {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
