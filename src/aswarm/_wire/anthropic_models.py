"""What a model of the Messages API accepts, by its name. The facts are of 2026-11-27.

Source: the pages of Anthropic about models, thinking, prefix checks, tool choice and structured outputs. An unknown Claude counts
as a new model. Models of other vendors, behind the same API, have none of the newer features.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

# "claude-sonnet-4-5-20250929", "anthropic/claude-haiku-4.5", "us.anthropic.claude-opus-5-5", "claude-3-5-haiku@20241022"
_NAME = re.compile(r"claude-(?:([a-z]+)-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_UNKNOWN_CLAUDE, _OTHER_VENDOR = (99, 0), (0, 0)
_NEVER_UNTHINKING = ("fable", "mythos")


class Model(NamedTuple):
    """A model: its family, such as "sonnet", and its version."""

    family: str
    version: tuple[int, int]

    @property
    def is_claude(self) -> bool:
        return self.version != _OTHER_VENDOR

    @property
    def max_tokens(self) -> int:
        """The default limit of output tokens, which include the thinking: the maximum of the model.

        The models before 4.5 refuse a prompt that does not leave room for the limit, so their default is lower.
        """
        if self.version >= (4, 6):
            return 128_000
        if self.version >= (4, 5):
            return 64_000
        return 4_096 if (1, 0) <= self.version < (3, 5) else 8_192

    @property
    def is_adaptive(self) -> bool:
        """Whether the model decides how much it thinks. An older model has a budget of tokens."""
        return self.version >= (4, 6)

    @property
    def has_effort(self) -> bool:
        return self.is_adaptive or (self.family, self.version) == ("opus", (4, 5))

    @property
    def always_thinks(self) -> bool:
        return self.family in _NEVER_UNTHINKING or (self.family == "opus" and self.version >= (5, 5))

    @property
    def least_thinking(self) -> str | None:
        """The type of the smallest thinking; None if a request cannot set it."""
        if self.always_thinks:
            return None
        return "between_tools" if self.family == "sonnet" and self.version >= (5, 5) else "disabled"

    @property
    def has_schemas(self) -> bool:
        """Whether the model has strict tools and an output format."""
        return self.version >= (4, 5) or (self.family, self.version) == ("opus", (4, 1))

    @property
    def continues_text(self) -> bool:
        """Whether the model accepts a history that ends with a text of the assistant, and continues this text."""
        return self.version < (4, 6)

    @property
    def has_system_role(self) -> bool:
        """Whether the model follows a message with the role `system` in the conversation.

        Sonnet 5 accepts such a message and ignores it. Haiku 5.5 takes it for a part of the result of a tool.
        """
        if self.family == "haiku" or (self.family, self.version) == ("sonnet", (5, 0)):
            return False
        return self.version >= (4, 8)

    @property
    def can_be_forced(self) -> bool:
        """Whether the model accepts a forced call. With a budget of thinking, no model accepts it."""
        return self.version < (5, 1) or self.family == "haiku"

    @property
    def binds_thinking(self) -> bool:
        """Whether the API checks the prefix of each thinking block that is sent back."""
        return self.version >= (5, 1)


@lru_cache(maxsize=256)
def model_named(name: str) -> Model:
    """Return the model with this name. The name may have the prefixes and suffixes of a cloud."""
    if (match := _NAME.search(name)) is None:
        family = name.partition("claude-")[2].partition("-")[0]
        return Model(family, _UNKNOWN_CLAUDE if family else _OTHER_VENDOR)
    family, major, minor = match.groups()
    return Model(family or "", (int(major), int(minor or 0)))
