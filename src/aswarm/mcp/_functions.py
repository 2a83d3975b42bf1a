"""The tools of a server as functions of an agent: their names, their schemas, and how they may run.

Decides which tools are offered, which ask for an approval, and which run beside other calls. Never calls a tool.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mcp.types import Tool as ServerTool
from mcp.types import ToolAnnotations

from aswarm._errors import ConfigurationError
from aswarm._tools.tool import Approval

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST = 64  # characters of a name that the APIs take
_OF_THE_DOCUMENT = ("$schema", "$id")  # they say what kind of document a schema is, and some APIs refuse them
_NO_HINTS = ToolAnnotations()
DESTRUCTIVE = "destructive"


@dataclass(frozen=True, slots=True)
class FunctionOptions:
    """Which tools are offered, how they are called, and which of them wait for an approval; see `MCPServer`."""

    prefix: str
    only: Collection[str] | None
    approve: Approval | Collection[str]

    def offered(self, tools: list[ServerTool], server: str) -> dict[str, ServerTool]:
        """The tools to offer, by the name that the model sees.

        Raises ConfigurationError if two have the same name, and for a name in `only` or `approve` that no tool has.
        """
        self._check(tools, server)
        offered: dict[str, ServerTool] = {}
        for tool in tools:
            name = _REFUSED.sub("_", f"{self.prefix}{tool.name}")[:_LONGEST]
            if self.only is not None and not _matches(tool.name, self.only):
                continue
            if name in offered:
                raise ConfigurationError(
                    f"two tools of the MCP server {server}, {offered[name].name!r} and {tool.name!r}, have the same name {name!r} "
                    "for a model; leave one out with only={...}"
                )
            offered[name] = tool
        return offered

    def approval(self, tool: ServerTool) -> Approval:
        """The option `approve` of the function."""
        if isinstance(self.approve, bool) or callable(self.approve):
            return self.approve
        if self.approve == DESTRUCTIVE:
            return may_destroy(tool)
        return _matches(tool.name, self.approve)

    def _check(self, tools: Iterable[ServerTool], server: str) -> None:
        names = [tool.name for tool in tools]
        for option, patterns in (("only", self.only), ("approve", self.approve)):
            if isinstance(patterns, bool) or callable(patterns):
                continue
            for pattern in _patterns(patterns or ()):
                # A pattern may be there for tools that come later; a name may be misspelled.
                if pattern not in (*names, DESTRUCTIVE) and pattern.isidentifier():
                    raise ConfigurationError(
                        f"{option}: the MCP server {server} has no tool {pattern!r}; its tools: {', '.join(names)}"
                    )


def _patterns(given: Collection[str]) -> Collection[str]:
    return (given,) if isinstance(given, str) else given


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _patterns(patterns))


def parameters_of(tool: ServerTool) -> dict[str, Any]:
    """The server's schema as it is, with what OpenAI requires of every schema."""
    schema = {key: value for key, value in tool.input_schema.items() if key not in _OF_THE_DOCUMENT}
    return {"type": "object", "properties": {}, **schema}


def may_repeat(tool: ServerTool) -> bool:
    """Whether the server says that calling it twice does no harm."""
    hints = tool.annotations or _NO_HINTS
    return bool(hints.read_only_hint or hints.idempotent_hint)


def runs_alone(tool: ServerTool) -> bool:
    """Whether the server says that it destroys something; where it says nothing, calls run together."""
    hints = tool.annotations or _NO_HINTS
    return bool(hints.destructive_hint and not hints.read_only_hint)


def may_destroy(tool: ServerTool) -> bool:
    """Whether the server does not rule out that it destroys something: the protocol's default is that it may."""
    hints = tool.annotations or _NO_HINTS
    return hints.destructive_hint is not False and not hints.read_only_hint
