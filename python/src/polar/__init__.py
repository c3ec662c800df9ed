"""Polar: train any LLM agent by RL without changing it.

`PolarClient` and `AsyncPolarClient` talk to a rollout server: submit tasks, read the
sessions as they end, and get their trajectories, token by token as the engine sampled them.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from polar.arrays import TokenArrays
from polar.async_client import AsyncPolarClient
from polar.callback import CallbackBody, verify_callback
from polar.client import PolarClient
from polar.errors import (
    ApiError,
    AuthenticationError,
    BinaryNotFoundError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PolarError,
    ServerError,
    ServerUnreachableError,
    SignatureError,
    UnexpectedAnswerError,
    WaitTimeoutError,
)
from polar.models import (
    Batch,
    BatchAnswer,
    BatchGroup,
    BatchSession,
    Budgets,
    Callback,
    CallSummary,
    CommandEvaluator,
    EarlyStop,
    Event,
    EventPage,
    Exec,
    FieldProblem,
    HarnessSpec,
    McpServer,
    RuntimeSpec,
    SamplingPins,
    SessionInfo,
    Skill,
    TaskInfo,
    TaskRequest,
    TokenCounts,
    Trace,
    Trajectory,
    WeightUpdate,
    WriteFile,
)
from polar.results import AsyncResultStream, Result, ResultStream
from polar.retry import RetryPolicy

try:
    __version__ = version("polar-rl")
except PackageNotFoundError:  # Used from the source tree.
    __version__ = "0"

__all__ = [
    "ApiError",
    "AsyncPolarClient",
    "AsyncResultStream",
    "AuthenticationError",
    "Batch",
    "BatchAnswer",
    "BatchGroup",
    "BatchSession",
    "BinaryNotFoundError",
    "Budgets",
    "CallSummary",
    "Callback",
    "CallbackBody",
    "CommandEvaluator",
    "ConflictError",
    "EarlyStop",
    "Event",
    "EventPage",
    "Exec",
    "FieldProblem",
    "HarnessSpec",
    "InvalidRequestError",
    "McpServer",
    "NotFoundError",
    "PolarClient",
    "PolarError",
    "Result",
    "ResultStream",
    "RetryPolicy",
    "RuntimeSpec",
    "SamplingPins",
    "ServerError",
    "ServerUnreachableError",
    "SessionInfo",
    "SignatureError",
    "Skill",
    "TaskInfo",
    "TaskRequest",
    "TokenArrays",
    "TokenCounts",
    "Trace",
    "Trajectory",
    "UnexpectedAnswerError",
    "WaitTimeoutError",
    "WeightUpdate",
    "WriteFile",
    "verify_callback",
]
