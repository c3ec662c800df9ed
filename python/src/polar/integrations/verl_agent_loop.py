"""verl: the agent loop that runs each sample as a session, to be named in verl's configuration.

    # polar.yaml
    - name: polar
      _target_: polar.integrations.verl_agent_loop.PolarAgentLoop
      make_task: my_tasks.make_task
      server: trainer:50051

    actor_rollout_ref.rollout.agent.agent_loop_config_path=polar.yaml
    actor_rollout_ref.rollout.agent.default_agent_loop=polar

``make_task`` is `module.function`: makes a task of the fields of a row of verl's dataset. verl
asks for each sample by itself and compares those of one `uid`, so every task is of one session;
verl's temperature, `top_p` and `top_k` are pinned where the task pins none. verl moves the weights
into its engines: push each version as a ``label`` with the number of its step, so that staleness
is known.

| key | is |
| --- | --- |
| `make_task` | `module.function` |
| `server` | address of the rollout server; `$POLAR_SERVER` when absent |
| `forks` | what a rollout of several rows is: an error (`raise`, when absent), its main row alone
(`main`), or all of them (`all`) |
| `too_long` | what a row beyond `prompt_length` or `response_length` is: an error (`raise`, when
absent), or not trained on, with its reward counting (`mask`) |
| `missing_logprobs` | `raise` (when absent) or `leave_out`: rows without them |
| `unrewarded` | the reward of rollouts that have none. When absent, verl's trainer of version 1
does without them, and for the other it is an error |
| `unknown_version` | the step of tokens whose weights are not known; an error when absent, where
verl counts them |

`all` needs verl's trainer of version 1 (`verl.trainer.ppo.v1`), which takes several outputs of a
sample and counts it once in GRPO's baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, Callable, Literal, Optional

from polar.async_client import AsyncPolarClient
from polar.errors import PolarError
from polar.integrations._packages import package
from polar.integrations._versions import number
from polar.integrations.verl import RowTooLongError, agent_loop_outputs
from polar.results import Result
from polar.rows import Batch, MissingLogprobs, Row, collect

_loop = package("verl.experimental.agent_loop.agent_loop", "verl")
_Base: Any = _loop.AgentLoopBase


class ForkedRolloutError(PolarError):
    """A rollout has several rows where one is taken."""


class UnrewardedRolloutError(PolarError):
    """A rollout has no reward, and verl takes none without."""


class PolarAgentLoop(_Base):  # type: ignore[misc]
    """Runs a sample as a task of one session."""

    def __init__(
        self,
        *arguments: Any,
        make_task: str,
        server: Optional[str] = None,
        forks: Literal["raise", "main", "all"] = "raise",
        too_long: Literal["raise", "mask"] = "raise",
        missing_logprobs: MissingLogprobs = "raise",
        unrewarded: Optional[float] = None,
        unknown_version: Optional[int] = None,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._make_task = _named(make_task)
        self._server = server
        self._forks = forks
        self._too_long = too_long
        self._missing_logprobs = missing_logprobs
        self._unrewarded = unrewarded
        self._unknown_version = unknown_version

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> Any:
        """The sample's outputs: one, or with `forks: all` a list of them."""
        made = self._make_task(fields)
        task = made.body() if hasattr(made, "body") else dict(made)
        pins = {**_pins(sampling_params), **(task.get("sampling") or {})}
        async with AsyncPolarClient(self._server) as client:
            submitted = await client.submit({**task, "num_samples": 1, "sampling": pins})
            try:
                ended = [result async for result in client.results(submitted.task_id)]
            except BaseException:
                # Nobody waits for it any more.
                with suppress(PolarError):
                    await client.cancel(submitted.task_id)
                raise
        # verl's trainer of version 1 says which sample of the prompt it is.
        outputs = self._outputs(ended[0], fields, of_many="session_id" in fields)
        return outputs if self._forks == "all" or not outputs else outputs[0]

    def _outputs(self, result: Result, fields: Mapping[str, Any], *, of_many: bool) -> list[Any]:
        session = result.session
        reward = self._unrewarded if session.reward is None else session.reward
        if reward is None and of_many:
            # A sample without outputs takes no part in the baseline.
            return []
        if reward is None:
            raise UnrewardedRolloutError(
                f"session {session.session_id} has no reward ({session.reason}); set `unrewarded` "
                "for what such samples are to count as"
            )
        batch = collect([result], estimator=None, missing_logprobs=self._missing_logprobs)
        rows = [row for row in self._one_or_all(batch.rows, of_many) if self._fits(row)]
        if not rows:
            return [self._masked(reward, fields)]
        kept = _with_rows(batch, rows)
        outputs = agent_loop_outputs(
            kept,
            logprobs=bool(self.rollout_config.calculate_log_probs),
            unknown_version=self._unknown_version,
        )
        for output in outputs:
            if of_many and output.extra_fields["min_global_steps"] is None:
                number(None, None)
        return outputs

    def _one_or_all(self, rows: list[Row], of_many: bool) -> list[Row]:
        if self._forks == "all" and not of_many:
            raise ForkedRolloutError(
                "`forks: all` needs verl's trainer of version 1; this one takes one output a sample"
            )
        if self._forks == "all" or len(rows) < 2:
            # The last one stands for the sample in verl's baseline.
            return sorted(rows, key=lambda row: row.role == "main")
        if self._forks == "raise":
            raise ForkedRolloutError(
                f"rollout {rows[0].rollout_id} has {len(rows)} rows: set `forks` to main to train "
                "on its main row alone, or to all with verl's trainer of version 1"
            )
        return [max(rows, key=lambda row: (row.role == "main", row.trained))]

    def _fits(self, row: Row) -> bool:
        for name, ids in (("prompt", row.prompt_ids), ("response", row.response_ids)):
            limit = self.rollout_config[f"{name}_length"]
            if len(ids) <= limit:
                continue
            if self._too_long == "mask":
                return False
            raise RowTooLongError(
                f"a row of {row.rollout_id} has a {name} of {len(ids)} tokens, and "
                f"rollout.{name}_length is {limit}: raise it, or set `too_long` to mask"
            )
        return True

    def _masked(self, reward: float, fields: Mapping[str, Any]) -> Any:
        """A sample with nothing to train on, of which the reward counts."""
        token = getattr(self.tokenizer, "pad_token_id", None) or 0
        step = fields.get("global_steps", self._unknown_version)
        step = None if step is None else int(step)
        return _loop.AgentLoopOutput(
            prompt_ids=[token],
            response_ids=[token],
            response_mask=[0],
            response_logprobs=[0.0] if self.rollout_config.calculate_log_probs else None,
            reward_score=reward,
            metrics=_loop.AgentLoopMetrics(),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": {},
                "min_global_steps": step,
                "max_global_steps": step,
            },
        )


def _pins(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of verl as tasks have them; a `top_k` of -1 keeps all in both."""
    names = ("temperature", "top_p", "top_k")
    return {name: asked[name] for name in names if asked.get(name) is not None}


def _with_rows(batch: Batch, rows: list[Row]) -> Batch:
    weight = 1.0 / len(rows)
    siblings = [replace(row, siblings=len(rows), loss_weight=weight) for row in rows]
    return replace(batch, rows=siblings)


def _named(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
