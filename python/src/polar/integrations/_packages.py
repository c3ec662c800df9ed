"""Imports what a bridge needs when it is called, and says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from polar.errors import PolarError


class PackageMissingError(PolarError, ImportError):
    """A bridge needs a package that is not installed."""


def package(module: str, install: str) -> Any:
    """The module, or an error that names what gives it."""
    try:
        return import_module(module)
    except ImportError as error:
        message = f"this bridge needs {module}: install {install} ({error})"
        raise PackageMissingError(message) from error
