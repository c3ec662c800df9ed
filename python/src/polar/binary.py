"""Finding the ``polar`` binary, and becoming it."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, Optional

from polar.errors import BinaryNotFoundError

VARIABLE = "POLAR_BINARY"
NAME = "polar.exe" if os.name == "nt" else "polar"


def find_binary() -> Path:
    """The binary: ``$POLAR_BINARY``, else the one installed with this package, else ``PATH``.

    Raises `BinaryNotFoundError`, which says where it looked and what to do.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        path = Path(chosen)
        if not _runs(path):
            raise BinaryNotFoundError(f"${VARIABLE} is {chosen!r}, which is not an executable file")
        return path.resolve()
    looked = list(_beside_interpreter())
    for path in looked:
        if _runs(path):
            return path
    found = shutil.which(NAME)
    if found:
        return Path(found)
    raise BinaryNotFoundError(
        "the polar binary was not found in "
        + ", ".join(str(path.parent) for path in looked)
        + " or on PATH.\n"
        "Install it with `pip install ./python` in the Polar repository (needs Rust: "
        "https://rustup.rs), or build it with `cargo build --release` and set "
        f"{VARIABLE}=/path/to/polar."
    )


def run_binary(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by the binary, so that signals and the exit code are its own."""
    try:
        binary = find_binary()
    except BinaryNotFoundError as error:
        sys.exit(f"error: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(binary, [str(binary), *arguments])


def _beside_interpreter() -> Iterator[Path]:
    """Where pip puts scripts: of this environment, of the user, and next to the interpreter."""
    folders: list[Optional[str]] = [sysconfig.get_path("scripts")]
    user = f"{os.name}_user"
    if user in sysconfig.get_scheme_names():
        folders.append(sysconfig.get_path("scripts", user))
    folders.append(os.path.dirname(sys.executable))
    for folder in dict.fromkeys(folders):
        if folder:
            yield Path(folder, NAME)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
