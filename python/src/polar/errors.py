"""What can go wrong, as exceptions. All derive from `PolarError`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from pydantic import ValidationError

from polar.models import FieldProblem


class PolarError(Exception):
    """Base of every exception this package raises."""


class ApiError(PolarError):
    """The server answered with an error."""

    status: int
    """HTTP status."""

    code: Optional[str]
    """A word for programs, such as ``invalid`` or ``overloaded``."""

    problems: list[FieldProblem]
    """What is wrong with submitted input, field by field; empty for other errors."""

    body: Any
    """The answer's body: JSON where it is JSON, else text."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: Optional[str] = None,
        problems: Sequence[FieldProblem] = (),
        body: Any = None,
    ) -> None:
        self.message = message
        self.status = status
        self.code = code
        self.problems = list(problems)
        self.body = body
        super().__init__(message)

    def __str__(self) -> str:
        lines = [f"{self.message} (HTTP {self.status})"]
        for problem in self.problems:
            lines.append(f"  {problem.field}: {problem.problem}")
            lines.append(f"    for example: {problem.example}")
        return "\n".join(lines)


class InvalidRequestError(ApiError):
    """The request was refused for what it says; `problems` names each field (400, 413, 422)."""


class AuthenticationError(ApiError):
    """The server wants another token (401, 403)."""


class NotFoundError(ApiError):
    """There is no such task, session or file (404)."""


class ConflictError(ApiError):
    """The request contradicts what is stored, such as a task id used for another task (409)."""


class ServerError(ApiError):
    """The server is overloaded or failed, and trying again did not help (429, 5xx)."""


class ServerUnreachableError(PolarError):
    """The server could not be reached, and trying again did not help."""


class UnexpectedAnswerError(PolarError):
    """The answer is not what this version of the package understands."""


class WaitTimeoutError(PolarError, TimeoutError):
    """The task had not ended when the time given to `wait` was over."""


class SignatureError(PolarError):
    """A callback's signature is missing, wrong or too old."""


class BinaryNotFoundError(PolarError):
    """The ``polar`` binary is not installed where this package looks for it."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidRequestError,
    422: InvalidRequestError,
    429: ServerError,
}


def api_error(status: int, body: Any, what: str) -> ApiError:
    """The exception for an error answer. ``what`` names the request, for people."""
    error = body.get("error", body) if isinstance(body, dict) else body
    details: dict[str, Any] = error if isinstance(error, dict) else {}
    message = details.get("message") or (error if isinstance(error, str) else "")
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    return kind(
        f"{what}: {str(message).strip()[:2000] or 'the server gave no reason'}",
        status=status,
        code=details.get("code"),
        problems=_problems(details.get("problems")),
        body=body,
    )


def _problems(value: Any) -> list[FieldProblem]:
    try:
        return [FieldProblem.model_validate(item) for item in value or []]
    except (TypeError, ValidationError):
        return []
