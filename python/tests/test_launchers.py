from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polar.binary import find_binary
from polar.errors import BinaryNotFoundError
from polar.flags import dashed

# Stands for the binary: prints its arguments, one a line.
ECHO = '#!/bin/sh\nprintf "%s\\n" "$@"\nexit 7\n'


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "polar"
    path.write_text(ECHO)
    path.chmod(0o755)
    monkeypatch.setenv("POLAR_BINARY", str(path))
    return path


@pytest.mark.usefixtures("binary")
@pytest.mark.parametrize(
    ("module", "given", "passed"),
    [
        ("polar.rollout_server", ["--port", "50051"], ["rollout-server", "--port", "50051"]),
        (
            "polar.gateway",
            ["--rollout_server", "localhost:50051", "--inference_server=localhost:8000"],
            ["gateway", "--rollout-server", "localhost:50051", "--inference-server=localhost:8000"],
        ),
        ("polar", ["harness", "check", "claude_code"], ["harness", "check", "claude_code"]),
    ],
)
def test_launchers_become_the_binary(module: str, given: list[str], passed: list[str]) -> None:
    run = subprocess.run([sys.executable, "-m", module, *given], capture_output=True, text=True)
    assert run.stdout.splitlines() == passed
    assert run.returncode == 7


def test_values_keep_their_underscores() -> None:
    given = ["--state_dir", "my_dir", "--name=a_b", "-x_y", "--", "--kept_as_it_is"]
    passed = ["--state-dir", "my_dir", "--name=a_b", "-x_y", "--", "--kept_as_it_is"]
    assert dashed(given) == passed


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLAR_BINARY", str(tmp_path / "nothing"))
    with pytest.raises(BinaryNotFoundError, match="POLAR_BINARY"):
        find_binary()


def test_without_a_binary_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("POLAR_BINARY", raising=False)
    monkeypatch.setattr("polar.binary._beside_interpreter", lambda: iter([tmp_path / "polar"]))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinaryNotFoundError, match=r"pip install \./python"):
        find_binary()


def test_the_installed_binary_comes_before_the_path(
    monkeypatch: pytest.MonkeyPatch, binary: Path, tmp_path: Path
) -> None:
    monkeypatch.delenv("POLAR_BINARY")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("polar.binary._beside_interpreter", lambda: iter([tmp_path / "no"]))
    assert find_binary() == binary
    installed = tmp_path / "scripts" / "polar"
    installed.parent.mkdir()
    installed.write_text(ECHO)
    installed.chmod(0o755)
    monkeypatch.setattr("polar.binary._beside_interpreter", lambda: iter([installed]))
    assert find_binary() == installed
