"""`ContextEdit`: a change of the context variables of a conversation by its operator, recorded with a run. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._log.texts import checked_context
from aswarm._values.errors import ConfigurationError

from ._errors import AnswersRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEdit:
    """A change of the context variables before a run. The first entry of the run has the names of the changed variables.

    Args:
        changes: The new values, which must be JSON.
        removed: The names of the variables to remove.
        revision: The revision of the conversation that the operator has seen; empty for a new conversation. If the conversation
            has changed since, the run is refused with AnswersRefused.

    Raises:
        ConfigurationError: If a value of `changes` is not JSON.
    """

    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    removed: Sequence[str] = ()
    revision: str

    def __post_init__(self) -> None:
        checked_context(self.changes)
        try:
            json.dumps(dict(self.changes), allow_nan=False)
        except ValueError as error:
            raise ConfigurationError(f"the changes of the context must be JSON: {error}") from error

    @property
    def names(self) -> list[str]:
        """The names of all changed and removed variables."""
        return sorted({*self.changes, *self.removed})

    def applied_to(self, context: Mapping[str, Any], revision: str) -> dict[str, Any]:
        """Return the context variables after the change. Raises AnswersRefused if the conversation has another revision."""
        if revision != self.revision:
            text = "the conversation has changed since its context was loaded; load it again, and repeat the change"
            raise AnswersRefused(text, code="conflict")
        gone = {*self.removed}  # the list may be long
        kept = {key: value for key, value in context.items() if key not in gone}
        return {**kept, **checked_context(self.changes)}
