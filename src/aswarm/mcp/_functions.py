"""The tools of a server as functions of an agent, and what the model reads of their results, of resources and of prompts.

The module decides which tools are offered, which tools need an approval, and which tools run alone. The model gets the
result of a call as texts, images and files. A person chooses a prompt, and sees it before it is sent.

Security: A tool that needs an approval is not called before the approval.

Security: A prompt becomes one message of the user: its messages of the assistant are quoted, it has no calls, and a mark stands
for characters that a person would not see. Only joiners and variation selectors of emoji and scripts stay, at most two together.

An agent follows the current tools of a server: a run keeps the tools of its start, the next run has the new ones.

Security: An agent that offers only some tools of a server never gets others by `latest_tools`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

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

from aswarm._values.agent import Agent
from aswarm._values.content import File, Image, text_part
from aswarm._values.errors import ConfigurationError, ToolError
from aswarm._values.messages import call_name
from aswarm._values.text import NO_RUN
from aswarm.extensions import (
    AgentDirectory,
    Approval,
    CompletionRequest,
    Handlers,
    Started,
    Tool,
    ToolCall,
    ToolOutcome,
    tools_of,
)

logger = logging.getLogger("aswarm")

Schema = Mapping[str, Any]
_SHOWN = {"name", "title", "description", "input_schema", "annotations"}


def version_of(tool: ServerTool) -> str:
    """Return a hash of all that a model or a user can know about the tool."""
    text = json.dumps(tool.model_dump(mode="json", include=_SHOWN), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(slots=True)
class ToolList:
    """The functions of a server now, and the versions of its tools by their names on the server."""

    server: str
    functions: list[Tool[..., Any]] = field(default_factory=list[Tool[..., Any]])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    # For each function of this server, the names of the list in which it was.
    _lists: WeakKeyDictionary[Any, frozenset[str]] = field(default_factory=WeakKeyDictionary[Any, frozenset[str]])
    _all_names: set[str] = field(default_factory=set[str])

    def take(self, offered: Mapping[str, ServerTool], make: Callable[[str, ServerTool], Tool[..., Any]]) -> None:
        """Set the tools, by their names for the model. If none has changed, the functions stay the same objects."""
        versions = {tool.name: version_of(tool) for tool in offered.values()}
        names = frozenset(offered)
        if self.functions and versions == self.versions and names == self._lists[self.functions[0]]:
            return
        self.functions = [make(name, tool) for name, tool in offered.items()]
        self.versions = versions
        self._all_names |= names
        self._lists.update(dict.fromkeys(self.functions, names))

    def of(self, agent: Agent) -> list[Tool[..., Any]]:
        """Return the functions of the agent that are, or were, functions of this server."""
        return [function for function in agent.functions if isinstance(function, Tool) and function in self._lists]

    def update(self, agent: Agent) -> None:
        """Replace the functions of the agent by the current ones. Only an agent with all functions of a list gets new ones."""
        own = self.of(agent)
        if {*map(id, own)} <= {*map(id, self.functions)}:
            return
        names = frozenset(map(_name, own))
        is_whole, foreign = names == self._lists[own[0]], self._foreign(agent)
        wanted = [function for function in self.functions if is_whole or _name(function) in names]
        if clashes := [_name(function) for function in wanted if _name(function) in foreign]:
            logger.warning(
                "the agent %r does not get new tools of the MCP server %s, because it has functions of these names: %s",
                agent.name, self.server, ", ".join(clashes), extra=NO_RUN,
            )  # fmt: skip
        new = [function for function in wanted if _name(function) not in foreign]
        replaced = {*map(id, own)}
        at = next(at for at, function in enumerate(agent.functions) if id(function) in replaced)
        others = [function for function in agent.functions if id(function) not in replaced]
        agent.functions[:] = [*others[:at], *new, *others[at:]]

    def _foreign(self, agent: Agent) -> set[str]:
        """Return the names of the other tools of the agent."""
        return {name for name, tool in tools_of(agent).items() if tool not in self._lists}

    def schemas(self, agent: Agent) -> list[Schema]:
        """Return the tools of this server that the agent offers."""
        return [function.schema for function in self.of(agent)]

    def put(self, sent: list[Schema], request: CompletionRequest) -> None:
        """Give the request these tools of this server, in place of those that it has."""
        body = request.body
        tools: list[Schema] = body.get("tools", [])
        # The history decides which deferred tools are in a request.
        if (
            any(function.defer for function in self.functions)
            or [tool for tool in tools if call_name(tool) in self._all_names] == sent
        ):
            return
        own = self._all_names - self._foreign(request.agent)
        at = next((at for at, tool in enumerate(tools) if call_name(tool) in own), len(tools))
        others = [tool for tool in tools if call_name(tool) not in own]
        if tools := [*others[:at], *sent, *others[at:]]:
            body["tools"] = tools
            body.setdefault("parallel_tool_calls", request.agent.parallel_tool_calls)
        else:
            for key in ("tools", "tool_choice", "parallel_tool_calls"):
                body.pop(key, None)


def _name(function: Tool[..., Any]) -> str:
    return call_name(function.schema)


class RunTools:
    """The tools of a server in one run. `read`: reads the list of tools again."""

    def __init__(self, handlers: Handlers, tools: ToolList, read: Callable[[], Awaitable[None]]) -> None:
        self._inner = handlers
        self._tools = tools
        self._read = read
        self._is_read = False
        self._sent: dict[int, tuple[Agent, list[Schema]]] = {}  # by the id of the agent, which stays alive here

    @property
    def handlers(self) -> Handlers:
        """The handlers of the run with these tools."""
        return replace(self._inner, complete=self._complete, call_tool=self._call_tool)

    async def _complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        await self._update(request.agent)
        if (sent := self._sent.get(id(request.agent))) is not None:
            self._tools.put(sent[1], request)
        async with aclosing(self._inner.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        await self._update(call.agent)  # a decision on a call of an earlier run comes before the first completion
        return await self._inner.call_tool(call, context, started)

    async def _update(self, agent: Agent) -> None:
        if id(agent) in self._sent or not self._tools.of(agent):
            return
        if not self._is_read:
            await self._read()
            self._is_read = True
        # All agents of the run together, because `keep_prefix` compares their tools, and a later handoff is in the same run.
        for reached in AgentDirectory((agent,)).reached:
            self._tools.update(reached)
            self._sent.setdefault(id(reached), (reached, self._tools.schemas(reached)))


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
