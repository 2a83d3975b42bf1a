"""The tools of a server as functions of an agent, and what the model reads of their results, of resources and of prompts.

The module decides which tools are offered, which tools need an approval, and which tools run alone. The model gets the
result of a call as texts, images and files. A person chooses a prompt, and sees it before it is sent.

Security: A tool that needs an approval is not called before the approval.

Security: A prompt becomes one message of the user: its messages of the assistant are quoted, it has no calls, and a mark stands
for characters that a person would not see. Only joiners and variation selectors of emoji and scripts stay, at most two together.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    GetPromptResult,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp.types import Tool as ServerTool

from aswarm._values.content import File, Image, text_part
from aswarm._values.errors import ConfigurationError, ToolError
from aswarm.extensions import Approval

Shown: TypeAlias = str | Image | File


def value_of(result: CallToolResult, tool: str) -> str | list[Shown]:
    """Return the result as the return value of the function. Raises ToolError if the server reports a failed call."""
    shown: list[Shown] = [shown_block(block) for block in result.content]
    if not shown and result.structured_content is not None:
        shown = [json.dumps(result.structured_content, ensure_ascii=False)]
    if result.is_error:
        raise ToolError(_texts(shown) or f"{tool} failed, and the server does not say why.")
    return shown if any(not isinstance(part, str) for part in shown) else _texts(shown)


def _texts(shown: list[Shown]) -> str:
    return "\n".join(part for part in shown if isinstance(part, str))


def shown_block(block: ContentBlock) -> Shown:
    """Return a block of a result or of a prompt for the model."""
    try:
        match block:
            case TextContent():
                return block.text
            case ImageContent():
                return Image(base64.b64decode(block.data), media_type=block.mime_type)
            case AudioContent():
                name = f"audio.{block.mime_type.rpartition('/')[2]}"
                return File(base64.b64decode(block.data), name=name, media_type=block.mime_type)
            case ResourceLink():
                return f"{block.title or block.name}: {block.uri}"
            case _:
                return resource_block(block.resource)
    except ValueError:  # not an error of the call: the model still gets the other blocks
        return f"[{block.type}: its data is not valid base64]"


def resource_block(resource: TextResourceContents | BlobResourceContents) -> Shown:
    """Return a resource for the model. Raises ValueError for data that is not base64."""
    if isinstance(resource, TextResourceContents):
        return resource.text
    data, media_type = base64.b64decode(resource.blob), resource.mime_type or "application/octet-stream"
    if media_type.startswith("image/"):
        return Image(data, media_type=media_type)
    return File(data, name=PurePosixPath(urlsplit(resource.uri).path).name or "resource", media_type=media_type)


# Characters that a person does not see, or that change the order of the others: controls, and what Unicode calls
# Default_Ignorable_Code_Point. An emoji has at most two joiners and variation selectors together; a longer run is a hidden text.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]|[\u034f\u200c\u200d\ufe00-\ufe0f]{3,}"
)


def content_of(prompt: GetPromptResult) -> str | list[dict[str, Any]]:
    """Return the content of a message of the user: a text, or content parts if the prompt has images or files."""
    parts: list[Any] = []
    for message in prompt.messages:
        block = shown_block(message.content)
        if isinstance(block, str):
            block = _UNSEEN.sub("\ufffd", block.replace("\r\n", "\n"))
        if isinstance(block, str) and message.role != "user":
            # `splitlines` knows all line breaks, so no line of a server stands outside of the quotation.
            block = "\n".join([f"({message.role}:)", *(f"> {line}" for line in block.splitlines())])
        parts.append(block)
    if all(isinstance(part, str) for part in parts):
        return "\n\n".join(parts)
    return [text_part(part) if isinstance(part, str) else part.part for part in parts]


# --- the functions ----------------------------------------------------------------------------------------------------

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST = 64  # the APIs accept names of up to 64 characters
_DOCUMENT_KEYS = ("$schema", "$id")  # some APIs reject them
_WILDCARDS = frozenset("*?[")
_NO_HINTS = ToolAnnotations()
DESTRUCTIVE = "destructive"


@dataclass(frozen=True, slots=True)
class FunctionOptions:
    """The options of `MCPServer` about its tools: the prefix of their names, the offered and deferred tools, and the approvals."""

    prefix: str
    only: Collection[str] | None
    approve: Approval | Collection[str]
    defer: bool

    def offered(self, tools: list[ServerTool], server: str) -> dict[str, ServerTool]:
        """Return the tools to offer, by their names for the model.

        Raises ConfigurationError if a tool has no name, if two tools have the same name, or if `only` or `approve` has an unknown name.
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
                    f"two tools of the MCP server {server}, {offered[name].name!r} and {tool.name!r}, get the same name {name!r} "
                    "for the model; leave one out with only={...}"
                )
            offered[name] = tool
        return offered

    def approval(self, tool: ServerTool) -> Approval:
        """Return the `approve` of the function for this tool."""
        if isinstance(self.approve, bool) or callable(self.approve):
            return self.approve
        is_named = _matches(tool.name, self.approve)
        return is_named or (DESTRUCTIVE in patterns_in(self.approve) and may_destroy(tool))

    def _check_names(self, names: list[str], server: str) -> None:
        approve = () if isinstance(self.approve, bool) or callable(self.approve) else patterns_in(self.approve)
        wanted = [("only", pattern) for pattern in patterns_in(self.only or ())]
        wanted += [("approve", pattern) for pattern in approve if pattern != DESTRUCTIVE]
        for option, pattern in wanted:
            # An unknown name is an error. A pattern without a match is no error: the server may add tools that match it.
            if pattern not in names and not _WILDCARDS.intersection(pattern):
                raise ConfigurationError(
                    f"{option}: the MCP server {server} has no tool {pattern!r}; its tools: {', '.join(names)}"
                )


def patterns_in(option: Collection[str]) -> Collection[str]:
    """Return the texts of an option that may also be a single text."""
    return (option,) if isinstance(option, str) else option


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns_in(patterns))


def parameters_of(tool: ServerTool) -> dict[str, Any]:
    """Return the schema of the tool. It always has the keys that OpenAI requires."""
    schema = {key: value for key, value in tool.input_schema.items() if key not in _DOCUMENT_KEYS}
    return {"type": "object", "properties": {}, **schema}


def may_repeat(tool: ServerTool) -> bool:
    """Return whether the server marks the tool as safe to repeat."""
    hints = tool.annotations or _NO_HINTS
    return bool(hints.read_only_hint or hints.idempotent_hint)


def runs_alone(tool: ServerTool) -> bool:
    """Return whether the server marks the tool as destructive. Without a hint, its calls may run together with other calls."""
    hints = tool.annotations or _NO_HINTS
    return bool(hints.destructive_hint and not hints.read_only_hint)


def may_destroy(tool: ServerTool) -> bool:
    """Return whether the tool may destroy something. In the protocol, this is the default: only a hint excludes it."""
    hints = tool.annotations or _NO_HINTS
    return hints.destructive_hint is not False and not hints.read_only_hint
