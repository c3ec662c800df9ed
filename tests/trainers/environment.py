#!/usr/bin/env python3
"""The Python environment with the trainers, made on top of that of vLLM.

    environment.py COMMAND …      runs `python COMMAND …` in it

Kept in the cache folder of `tests/engines/installs.py`, which says how.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "engines"))

import installs  # noqa: E402

REQUIREMENTS = HERE / "requirements.txt"


def trainers() -> Path:
    """The environment's interpreter."""
    vllm = installs.install("vllm")
    [packages] = (vllm / "lib").glob("python3*/site-packages")

    def build(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        [own] = (folder / "lib").glob("python3*/site-packages")
        # What is big (PyTorch, transformers) is read from there.
        (own / "zz_vllm.pth").write_text(f"{packages}\n")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        # Harbor asks for Python 3.12; what is imported of it reads in 3.11 too.
        pip += ["--ignore-requires-python"]
        subprocess.run([*pip, "--requirement", str(REQUIREMENTS)], check=True)

    return installs.once("trainers", REQUIREMENTS.read_text(), build) / "bin" / "python"


if __name__ == "__main__":
    sys.exit(subprocess.run([str(trainers()), *sys.argv[1:]], check=False).returncode)
