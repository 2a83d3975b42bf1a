"""Handoffs that keep the start of the prompt for the prompt cache, and the diagnosis of a missed cache, as middleware.

A provider renders tools, then instructions, then messages. A handoff changes the first two, so the whole history is evaluated
again. `keep_prefix` sends the same tools and the same first system message for all agents, and the instructions of an agent
at the place where the agent takes over. Requests change; the history of the run does not.

`diagnose_cache` asks the provider for its own diagnosis of a missed prompt cache.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from aswarm._values.agent import Agent
from aswarm._values.content import text_part
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import Message, call_name
from aswarm._values.wire_messages import has_substance
from aswarm.extensions import (
    AgentDirectory,
    CompletionRequest,
    Handlers,
    Middleware,
    Tool,
    is_openai,
    offered_tools,
    takes_breakpoints,
)

_OPTIONS = "prompt_cache_options"
_RESPONSE = "resp_"  # the start of the ids of the Responses API


def diagnose_cache() -> Middleware:
    """Return middleware that asks OpenAI why the prompt cache was missed. The answer decides `CompletionFinished.cache_miss`.

        AsyncSwarm(middleware=[diagnose_cache()])

    Each request names the last response of its run (`prompt_cache_options.comparison_response_id`), which costs nothing. Only the
    Responses API of OpenAI has this field, for models from GPT-5.6 on; other models refuse it. Requests without an earlier
    response, and requests of a `fallback` to another client, do not have it.
    """

    def wrap(handlers: Handlers) -> Handlers:
        last = ""

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            nonlocal last
            is_of_run = request.source is None and request.agent is handlers.run.agent
            if is_of_run and last:
                own = request.body.get(_OPTIONS)
                options = {**(own if is_object(own) else {}), "comparison_response_id": last}
                request = replace(request, body={**request.body, _OPTIONS: options})
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    new = chunk.get("id")
                    if is_of_run and isinstance(new, str) and new.startswith(_RESPONSE):
                        last = new
                    yield chunk

        return replace(handlers, complete=complete)

    return wrap


logger = logging.getLogger("aswarm")

LateRole: TypeAlias = Literal["auto", "developer", "system", "user", "tool"]
"""The role of the message with the instructions of an agent; "tool": its text is added to the result of the handoff."""

_BASE = (
    "Several assistants answer in this conversation, one at a time. A message names the assistant that you are now, with its "
    "instructions. Follow the newest of these messages; earlier ones no longer apply."
)
_EQUAL = ("model", "model_settings", "output", "parallel_tool_calls", "history")
_BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def keep_prefix(first_agent: Agent, *agents: Agent, base: str = _BASE, role: LateRole = "auto") -> Middleware:
    """Return middleware that keeps the start of the prompt across handoffs, so that the prompt cache still has the history.

        AsyncSwarm(middleware=[keep_prefix(triage, orders, refunds)])

    All requests of these agents start with the tools of all of them and with the system message `base`. The instructions of an
    agent are sent at the place where it takes over; when it takes over again, one line says so. A call of a tool that the
    active agent does not have is answered with an error, and never runs.

    It pays from about 2,500 tokens of history; a shorter conversation costs more than without it, because each request has all
    tools. Late instructions compete with earlier ones, so `base` must be neutral. See the guide "Prompt caching".

    The agents in the `functions` of the given agents belong to them. Name the agents that a function returns. Requests of other
    agents do not change, and a handoff to such an agent is logged. The start of the prompt also changes if an agent with a
    function for its instructions gets another text, if `history` leaves out more messages, with `Output(mode="prompt")`, and
    with an `output` if only some agents have functions; `Output(..., mode="tool")` prevents the last.

    At other servers than OpenAI's, the instructions are messages of the user, so a user can write a message that looks
    like them. Only the functions of an agent protect something there, because a function of another agent never runs.

    Place it after `fallback` in the list, because its form depends on the server: OpenAI's own hosts get developer messages with
    explicit cache breakpoints and `allowed_tools`. Other servers get the instructions as a message of the user, and a sentence
    that names the tools, because many refuse a second system message, and ignore or refuse `allowed_tools`.

    Args:
        first_agent: The agent with which conversations start.
        *agents: The other agents.
        base: The system message of all agents.
        role: The role of the messages with instructions. "tool" adds them to the result of the handoff, which has the lowest
            authority for models; use it for a server that refuses everything else. With `context_management`, it is always
            "developer", because other messages are not sent after a compaction.

    Raises:
        ConfigurationError: If the agents cannot have the same start: they differ in model, settings, output, `history` or
            `parallel_tool_calls`, two tools of one name differ, or a tool is private (`@tool(private=True)`). A run raises it too
            if the agents have changed.
    """
    listed = [first_agent, *agents]
    AgentUnion(listed)

    def wrap(handlers: Handlers) -> Handlers:
        union: AgentUnion | None = None
        sent: dict[str, str] = {}

        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            nonlocal union
            if request.agent is handlers.run.agent:  # not a request of another middleware for an agent of its own
                union = union or AgentUnion(listed)
                source = request.source or handlers.source
                marks = takes_breakpoints(source, request.body["model"])
                _Rewriting(request, union, sent, base, role, is_openai(source), marks).apply(handlers)
                request = replace(request, tool_search=False)  # the tools that were found are not in `allowed_tools`
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    return wrap


class AgentUnion:
    """Agents by name that may share the start of their prompts, and their tools in the order of the agents.

    Raises ConfigurationError for agents that cannot share it.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = {agent.name: agent for agent in AgentDirectory(agents).in_functions}
        self.tools: dict[str, Mapping[str, Any]] = {}
        first = agents[0]
        for agent in self.agents.values():
            for name in _EQUAL:
                if getattr(agent, name) != getattr(first, name):
                    raise ConfigurationError(
                        f"keep_prefix: the agents {first.name!r} and {agent.name!r} differ in {name}, so their requests cannot "
                        "start with the same text; give them the same, or leave one of the two out"
                    )
            for name, tool in offered_tools(agent).items():
                self._add(agent, name, tool)

    def _add(self, agent: Agent, name: str, tool: Tool[..., Any]) -> None:
        if tool.private:
            raise ConfigurationError(
                f"keep_prefix: the tool {name!r} of the agent {agent.name!r} is private, but each agent would get the texts of all "
                "tools; leave the agent out"
            )
        if self.tools.setdefault(name, tool.schema) != tool.schema:
            raise ConfigurationError(
                f"keep_prefix: two agents have different tools named {name!r} (the second is {agent.name!r}), and all requests "
                "have the tools of all agents; rename one of them"
            )


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """The change of one request.

    `sent`: the first instructions of each agent in this run, by its name. `to_openai`: whether OpenAI itself gets the request.
    `marks`: whether its model accepts breakpoints.
    """

    request: CompletionRequest
    union: AgentUnion
    sent: dict[str, str]
    base: str
    role: LateRole
    to_openai: bool
    marks: bool

    def apply(self, handlers: Handlers) -> None:
        """Change the request, if its agent is one of the agents."""
        agent = self.request.agent
        if self.union.agents.get(agent.name) is not agent:
            if any(block.sender in self.union.agents for block in handlers.run.blocks):
                logger.warning(
                    "keep_prefix does not know the agent %r, so the handoff changes the start of the prompt; name the agent in "
                    "keep_prefix(...)",
                    agent.name,
                    extra=handlers.run.log_fields,
                )
            return
        body, instructions = self.request.body, ""
        messages: list[Message] = body["messages"]
        if messages and messages[0]["role"] == "system" and agent.instructions is not None:
            instructions, messages = messages[0]["content"], messages[1:]
        others = [name for tool in body.get("tools") or () if (name := call_name(tool)) not in self.union.tools]
        heads = [block for block in handlers.run.blocks if block.role == "assistant" and has_substance(block.message)]
        self.sent.setdefault(agent.name, instructions)
        late = self._late(
            list(_places(messages, [head.sender for head in heads], agent.name, self.union.agents)),
            instructions,
            others,
        )
        body["messages"] = self._with_late(messages, late)
        self._offer_all_tools()

    @property
    def _late_role(self) -> LateRole:
        if self.request.body.get("context_management"):
            return "developer"  # the server compacts the conversation, and other messages are not sent after that
        return self.role if self.role != "auto" else "developer" if self.to_openai else "user"

    # --- messages ---

    def _late(
        self, places: Sequence[tuple[int, str]], instructions: str, others: Sequence[str]
    ) -> Iterator[tuple[int, str]]:
        """Yield the texts with instructions, and their indexes in the messages. `others`: tools that all agents have."""
        known: dict[str, str | None] = {}
        for number, (at, name) in enumerate(places):
            text, is_known = self._instructions_of(name), name in known
            if number == len(places) - 1 and known.get(name, text) != instructions:
                # of the active agent, whose function has returned another text
                text, is_known = instructions, False
            known[name] = text
            yield at, f"You are now the assistant {name}.{self._told(name, text, others, is_known=is_known)}"

    def _told(self, name: str, text: str | None, others: Sequence[str], *, is_known: bool) -> str:
        tools = "" if self.to_openai else self._sentence(name, others)
        told = "" if text is None else "\n\n".join(filter(None, (text, tools)))
        return "" if not told else " Follow its instructions above." if is_known else f" Its instructions:\n\n{told}"

    def _instructions_of(self, name: str) -> str | None:
        """Return the first instructions of an agent in this run, or its constant instructions; None for an unknown text."""
        constant = self.union.agents[name].instructions
        return self.sent.get(name, None if callable(constant) else constant or "")

    def _sentence(self, name: str, others: Sequence[str]) -> str:
        listed = [*offered_tools(self.union.agents[name]), *others]
        return f"Call only these functions: {', '.join(listed)}." if listed else "Call no function."

    def _with_late(self, messages: Sequence[Message], late: Iterator[tuple[int, str]]) -> list[Message]:
        start = 0
        changed: list[Message] = [self._late_message("developer", self.base)] if self.to_openai else []
        for at, text in late:
            changed += messages[start:at]
            start = at
            self._insert(changed, text)
        return [*changed, *messages[start:]]

    def _insert(self, messages: list[Message], text: str) -> None:
        role = self._late_role
        if not messages and not self.to_openai:
            messages.append({"role": "system", "content": f"{self.base}\n\n{text}"})
        elif role == "tool" and messages[-1]["role"] == "tool":
            content: Any = messages[-1]["content"]
            parts: Any = [*content, text_part(text)] if is_array(content) else f"{content}\n\n{text}"
            messages[-1] = {**messages[-1], "content": parts}
        else:
            messages.append(self._late_message("user" if role == "tool" else role, text))

    def _late_message(self, role: str, text: str) -> Message:
        return {"role": role, "content": [{**text_part(text), **_BREAKPOINT}] if self.marks else text}

    # --- tools ---

    def _offer_all_tools(self) -> None:
        """Send the tools of all agents, and restrict the choice to the tools of the active agent."""
        body = self.request.body
        own: dict[str, Any] = {call_name(tool): tool for tool in body.get("tools") or ()}
        offered = {**self.union.tools, **own}
        choice = body.get("tool_choice")
        is_restricted = len(offered) > len(own) and choice in (None, "auto", "required")
        if not offered or (is_restricted and choice == "required" and not self.to_openai):
            return  # without `allowed_tools`, only a shorter list of tools can force one of the agent's own
        body["tools"] = [*offered.values()]
        body.setdefault("parallel_tool_calls", self.request.agent.parallel_tool_calls)
        if not own:
            body["tool_choice"] = "none"
        elif is_restricted and self.to_openai:
            allowed = {
                "mode": "required" if choice == "required" else "auto",
                "tools": [*map(_reference, own.values())],
            }
            body["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}


def _places(
    messages: Sequence[Message], senders: Sequence[str | None], active: str, known: Mapping[str, object]
) -> Iterator[tuple[int, str]]:
    """Yield where agents take over: the index of the next message, and the name of the agent. The first index is 0.

    `senders`: the senders of the assistant messages of the whole history. `messages` may lack the oldest of them. An unknown
    sender counts as the agent before it.
    """
    heads = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    aligned = [*[None] * len(heads), *senders][-len(heads) :] if heads else []
    current, end = None, 0
    for at, sender in [*zip(heads, aligned, strict=True), (len(messages), active)]:
        if sender in known and sender != current:
            yield end if current is not None else 0, str(sender)
            current = sender
        end = next(
            (after for after in range(at + 1, len(messages)) if messages[after]["role"] != "tool"), len(messages)
        )


def _reference(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference to a tool in `allowed_tools`, in the form of Chat Completions."""
    kind = tool["type"]
    named = {key: tool[key] for key in ("name", "server_label") if key in tool}
    return {"type": kind, kind: {"name": tool[kind]["name"]}} if kind in tool else {"type": kind, **named}
