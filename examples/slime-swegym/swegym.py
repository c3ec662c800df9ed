"""Tasks of SWE-Gym for slime: the function that `polar_task` names.

A line of the data has `prompt` (the issue) and `metadata` with the instance's fields, as
`prepare.py` writes it.
"""

from __future__ import annotations

import os
from typing import Any

from polar import HarnessSpec, RuntimeSpec, TaskRequest
from polar.models import SwebenchEvaluator

HARNESS = os.environ.get("POLAR_HARNESS", "mini_swe_agent")
"""The agent that is trained, unchanged."""

RUN_SECONDS = 1800.0


def make_task(sample: Any) -> TaskRequest:
    """The task of a group, of its first `Sample`."""
    instance = sample.metadata
    return TaskRequest(
        instruction=sample.prompt,
        harness=HarnessSpec(name=HARNESS),
        runtime=RuntimeSpec(
            # Without root, as on most clusters; `docker` where there is a daemon.
            type=os.environ.get("POLAR_RUNTIME", "apptainer"),
            image=instance["image"],
            workdir="/testbed",
            cpus=2.0,
            memory_mb=8192,
        ),
        evaluator=SwebenchEvaluator(
            instance_id=instance["instance_id"],
            repo=instance["repo"],
            base_commit=instance["base_commit"],
            test_patch=instance["test_patch"],
            fail_to_pass=instance["FAIL_TO_PASS"],
            pass_to_pass=instance["PASS_TO_PASS"],
            test_command=instance["test_command"],
        ),
        timeout_seconds=RUN_SECONDS,
        metadata={"instance_id": instance["instance_id"]},
    )
