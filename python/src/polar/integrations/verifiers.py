"""verifiers: rollouts as the traces that its environments return.

A `Trace` of verifiers is a graph of messages; each row of a rollout is a branch of it, from
its own root. A message has the tokens that it adds to the sequence, so that a branch's nodes
give exactly the row, and logprobs for sampled tokens alone. prime-rl makes its samples of
these and computes advantages by trace, which is by rollout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polar.integrations._packages import package
from polar.rows import Batch, Row


def traces(batch: Batch, *, reward_name: str = "polar") -> list[Any]:
    """A `Trace` for each rollout that has rows."""
    module = package("verifiers.v1.trace", "verifiers")
    config = package("verifiers.v1.agent", "verifiers").AgentConfig()
    data = package("verifiers.v1.task", "verifiers").TaskData
    found = []
    for rows in batch.by_rollout():
        first = rows[0]
        found.append(
            module.Trace(
                id=first.rollout_id,
                task=module.TraceTask(type="PolarTask", data=data(id=first.group_id)),
                agent=module.AgentInfo(config=config),
                nodes=list(nodes(rows)),
                rewards={reward_name: module.Reward(score=first.reward)},
                info={"group_id": first.group_id, "polar_reason": first.reason},
                is_completed=True,
                ok=first.reason == "completed",
                is_timeout=first.reason == "agent_timeout",
                stop_condition=first.reason,
            )
        )
    return found


def nodes(rows: list[Row]) -> Iterator[Any]:
    """The `MessageNode`s of a rollout, each row's behind one another."""
    kind = package("verifiers.v1.graph", "verifiers").MessageNode
    number = 0
    for row in rows:
        parent = None
        for fields in _pieces(row):
            yield kind(parent=parent, **fields)
            parent, number = number, number + 1


def _pieces(row: Row) -> Iterator[dict[str, Any]]:
    """The row as messages: the last of those before a reply has all tokens of its context."""
    logprobs = row.filled(0.0)
    yield from _context(row.prompt_messages, row.prompt_ids)
    waiting = [*row.response_messages]
    for sampled, start, end in row.runs():
        ids = row.response_ids[start:end]
        replies = [at for at, said in enumerate(waiting) if said.get("role") == "assistant"]
        reply = replies[0] if replies else len(waiting)
        if not sampled:
            yield from _context(waiting[:reply], ids)
            waiting = waiting[reply:]
            continue
        # Context without tokens of its own: no template writes anything between two replies.
        yield from _context(waiting[:reply], []) if reply else ()
        said = waiting[reply] if replies else {"role": "assistant"}
        waiting = waiting[reply + 1 :]
        yield {
            "message": _message(said),
            "sampled": True,
            "token_ids": ids,
            "mask": [True] * len(ids),
            "logprobs": logprobs[start:end],
        }


def _context(messages: list[Any], ids: list[int]) -> Iterator[dict[str, Any]]:
    messages = messages or [{"role": "user", "content": ""}]
    for message in messages[:-1]:
        yield {"message": _message(message)}
    yield {"message": _message(messages[-1]), "token_ids": ids, "mask": [False] * len(ids)}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """An OpenAI chat message in verifiers' form, which has calls flat."""
    role = message.get("role")
    if role == "assistant":
        calls = [
            {"id": call.get("id") or "", **_function(call)}
            for call in message.get("tool_calls") or []
        ]
        content = message.get("content")
        return {
            "role": role,
            "content": content if isinstance(content, str) else None,
            "reasoning_content": message.get("reasoning_content") or message.get("reasoning"),
            "tool_calls": calls or None,
        }
    content = message.get("content")
    plain = {"content": "" if content is None else content}
    if role == "tool":
        return {"role": role, "tool_call_id": message.get("tool_call_id") or "", **plain}
    return {"role": "system" if role in ("system", "developer") else "user", **plain}


def _function(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {"name": function.get("name", ""), "arguments": function.get("arguments") or ""}
