"""`Playground`: the rights of the users of the page, and its first questions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aswarm._values.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Playground:
    """The page of a service for developers, for `Service(page=Playground(...))`. By default its users may only talk to the agents.

    The rights also apply to requests without the page.

    Args:
        models: The models that a user may choose for a run, in place of the models of its agents; or "any".
        context_edits: Whether a user may change all context variables of their conversations.
        questions: First messages that the page offers in a new conversation.
        prompts: Open `MCPServer`s. A user may put their prompts into the message box, and see them before they are sent.

    Raises:
        ConfigurationError: If `models` is a text other than "any", or `questions` is a text.
    """

    models: Collection[str] | Literal["any"] = ()
    context_edits: bool = False
    questions: Sequence[str] = ()
    prompts: Sequence[Any] = ()  # the package of MCPServer is an extra

    def __post_init__(self) -> None:
        if isinstance(self.models, str) and self.models != "any":
            raise ConfigurationError(f'models must be a list of models, or "any", not {self.models!r}')
        if isinstance(self.questions, str):
            raise ConfigurationError("questions must be a list of texts, not a text")

    def allows(self, model: str) -> bool:
        """Return whether a user may choose this model."""
        return self.models == "any" or model in self.models


def playground_of(page: object) -> Playground | None:
    """Return the playground of the argument `page` of a service, or None for False."""
    if isinstance(page, Playground):
        return page
    if isinstance(page, bool):
        return Playground() if page else None
    raise ConfigurationError(f"page must be True, False or a Playground(...), not {page!r}")
