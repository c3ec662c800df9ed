"""Base of all models: what they have in common, and the few members that are not fields.

The fields are in ``models.py``, generated from the server's OpenAPI document. Members
that only read those fields are written by hand here, one mixin for each model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from polar import models

_TERMINAL = frozenset({"completed", "timed_out", "failed", "cancelled"})


class Model(BaseModel):
    """A JSON object of the API.

    Fields that this version does not know are kept, so that a newer server can be
    talked to and nothing it says is lost; read them as attributes.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())

    def body(self) -> dict[str, Any]:
        """As JSON for a request: only what was set, so that the server's defaults apply."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


class Tagged(Model):
    """A variant that is told from its siblings by ``type``."""

    def model_post_init(self, context: Any, /) -> None:
        """Counts the tag as set, so that it is always sent."""
        self.__pydantic_fields_set__.add("type")


class Unknown(Model):
    """A variant that this version of the package does not know; its fields are kept."""

    type: str
    """What the server calls it."""


class TaskMembers(Model):
    """Members of `TaskInfo` that are not fields."""

    @property
    def ended(self) -> bool:
        """Whether every session of the task has ended."""
        status: str = getattr(self, "status", "")
        return status in _TERMINAL


class SessionMembers(Model):
    """Members of `SessionInfo` that are not fields."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the session."""
        status: str = getattr(self, "status", "")
        return status in _TERMINAL

    @property
    def report(self) -> Optional[models.SessionReport]:
        """What the node reported of the last attempt, once it was accepted."""
        attempts: list[models.AttemptInfo] = getattr(self, "attempts", [])
        if not attempts or attempts[-1].lost is not None:
            return None
        return attempts[-1].report


class TokenMembers(Model):
    """Members of `TokenCounts` that are not fields."""

    @property
    def is_conserved(self) -> bool:
        """Whether every sampled token is trained once or counted under a reason."""
        counts: Any = self
        return bool(counts.sampled == counts.trained + sum(counts.untrained.values()))


class TraceMembers(Model):
    """Members of `Trace` that are not fields."""

    @property
    def token_ids(self) -> list[int]:
        """The whole sequence: prompt and response."""
        trace: Any = self
        return [*trace.prompt_ids, *trace.response_ids]


class TreeMembers(Model):
    """Members of `TokenTree` that are not fields."""

    def path(self, lineage: int) -> list[models.TreeNode]:
        """The nodes of one sequence, from where it begins to where it ends.

        Their `ids` one after the other are what `prefix_merging` makes a trace of.
        """
        tree: Any = self
        nodes: list[models.TreeNode] = []
        at: Optional[int] = tree.lineages[lineage].last_node
        while at is not None:
            nodes.append(tree.nodes[at])
            at = nodes[-1].parent
        return nodes[::-1]
