"""What the examples submit is what a server takes, and their scripts can be read."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from polar.models import SwebenchEvaluator
from tests.processes import ROOT

SWEGYM = ROOT / "examples" / "slime-swegym"

INSTANCE = {
    "instance_id": "getmoto__moto-5752",
    "repo": "getmoto/moto",
    "base_commit": "b2300f1eae1323e3e8bc45f97e530ce129dff12e",
    "test_patch": "diff --git a/tests/test_ssm.py b/tests/test_ssm.py\n",
    "FAIL_TO_PASS": '["tests/test_ssm.py::test_describe"]',
    "PASS_TO_PASS": ["tests/test_ssm.py::test_delete"],
    "problem_statement": "describe_parameters returns too much.",
}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SWEGYM / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_swe_gym_instances_become_tasks(tmp_path: Path) -> None:
    source, target = tmp_path / "instances.jsonl", tmp_path / "train.jsonl"
    source.write_text(json.dumps(INSTANCE) + "\n")
    command = [sys.executable, str(SWEGYM / "prepare.py"), str(source), str(target)]
    subprocess.run(command, check=True, capture_output=True)
    [line] = [json.loads(text) for text in target.read_text().splitlines()]
    task = script("swegym").make_task(SimpleNamespace(**line))
    assert task.instruction == INSTANCE["problem_statement"]
    assert isinstance(task.evaluator, SwebenchEvaluator)
    assert task.evaluator.fail_to_pass == ["tests/test_ssm.py::test_describe"]
    assert task.runtime.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5752"


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/*.sbatch")))
def test_job_scripts_can_be_read(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
