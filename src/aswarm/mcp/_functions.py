"""The tools of a server as functions of an agent: their names, their schemas, and how they may run.

The module chooses the tools to offer, the tools that need an approval, and the tools that run alone.

Security: A tool that needs an approval is not called before the approval.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mcp.types import Tool as ServerTool
from mcp.types import ToolAnnotations

from aswarm._tools.tool import Approval
from aswarm._values.errors import ConfigurationError

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST = 64  # characters of a name that the APIs accept
_DOCUMENT_KEYS = ("$schema", "$id")  # some APIs reject them
_WILDCARDS = frozenset("*?[")
_NO_HINTS = ToolAnnotations()
DESTRUCTIVE = "destructive"


@dataclass(frozen=True, slots=True)
class FunctionOptions:
    """Which tools are offered, how they are called, and which of them wait for an approval; see `MCPServer`."""

    prefix: str
    only: Collection[str] | None
    approve: Approval | Collection[str]

    def offered(self, tools: list[ServerTool], server: str) -> dict[str, ServerTool]:
        """Return the tools to offer, by their names for the model.

        Raises ConfigurationError for a tool without a name, for two tools with one name, and for an unknown name in `only` or `approve`.
        """
        self._check_names([tool.name for tool in tools], server)
        offered: dict[str, ServerTool] = {}
        for tool in tools:
            name = _REFUSED.sub("_", f"{self.prefix}{tool.name}")[:_LONGEST]
            if self.only is not None and not _matches(tool.name, self.only):
                continue
            if not name:
                raise ConfigurationError(
                    f"a tool of the MCP server {server} has no name; leave it out with only={{'?*'}}, or give a prefix"
                )
            if name in offered:
                raise ConfigurationError(
                    f"two tools of the MCP server {server}, {offered[name].name!r} and {tool.name!r}, have the same name {name!r} "
                    "for a model; leave one out with only={...}"
                )
            offered[name] = tool
        return offered

    def approval(self, tool: ServerTool) -> Approval:
        """Return the option `approve` of the function."""
        if isinstance(self.approve, bool) or callable(self.approve):
            return self.approve
        is_named = _matches(tool.name, self.approve)
        return is_named or (DESTRUCTIVE in _patterns(self.approve) and may_destroy(tool))

    def _check_names(self, names: list[str], server: str) -> None:
        approve = () if isinstance(self.approve, bool) or callable(self.approve) else _patterns(self.approve)
        wanted = [("only", pattern) for pattern in _patterns(self.only or ())]
        wanted += [("approve", pattern) for pattern in approve if pattern != DESTRUCTIVE]
        for option, pattern in wanted:
            # A pattern may match tools that the server adds later, but an unknown name is an error.
            if pattern not in names and not _WILDCARDS.intersection(pattern):
                raise ConfigurationError(
                    f"{option}: the MCP server {server} has no tool {pattern!r}; its tools: {', '.join(names)}"
                )


def _patterns(option: Collection[str]) -> Collection[str]:
    return (option,) if isinstance(option, str) else option


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _patterns(patterns))


def parameters_of(tool: ServerTool) -> dict[str, Any]:
    """Return the schema of the server, with the keys that OpenAI requires in every schema."""
    schema = {key: value for key, value in tool.input_schema.items() if key not in _DOCUMENT_KEYS}
    return {"type": "object", "properties": {}, **schema}


def may_repeat(tool: ServerTool) -> bool:
    """Return whether the server marks the tool as safe to repeat."""
    hints = tool.annotations or _NO_HINTS
    return bool(hints.read_only_hint or hints.idempotent_hint)


def runs_alone(tool: ServerTool) -> bool:
    """Return whether the server marks the tool as destructive. Without a hint, its calls run together with others."""
    hints = tool.annotations or _NO_HINTS
    return bool(hints.destructive_hint and not hints.read_only_hint)


def may_destroy(tool: ServerTool) -> bool:
    """Return whether the tool may destroy something. By the protocol any tool may, unless a hint excludes it."""
    hints = tool.annotations or _NO_HINTS
    return hints.destructive_hint is not False and not hints.read_only_hint
