"""Which calls of a turn may run together.

Decides the groups; never runs them. The rule: context, active agent and history must be what running the calls one
after another, in the order the model gave, would have left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._agent import Agent, Result
from ._messages import Message, call_name
from ._tools import Tool, may_return_result, reads_context, runs_together


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a call led to. `content` is the text for the model; `result` holds handoff and context, if any.

    `error` is what went wrong, or None. `still_running`: the function could not be stopped.
    """

    content: str
    result: Result | None = None
    error: Exception | None = None
    still_running: bool = False

    @property
    def agent(self) -> Agent | None:
        """The agent that takes over, or None."""
        return self.result.agent if self.result else None


@dataclass(eq=False, slots=True)
class ToolCall:
    """One call of one assistant message; it is this object, never its id, that tells it apart.

    `position` counts within the message; `arguments` is the text as sent; `tool` is None where the agent has no such
    function. `started` and `outcome` are set as it runs.
    """

    message: Message
    position: int
    agent: Agent
    tool: Tool[..., Any] | None
    started: bool = False
    outcome: ToolOutcome | None = None
    merged: bool = field(default=False)

    @property
    def id(self) -> str:
        """The id that the provider gave, or that was made for it."""
        return str(self.message["id"])

    @property
    def name(self) -> str:
        """The name that the model called."""
        return call_name(self.message)

    @property
    def arguments(self) -> str:
        """The arguments as the model sent them; empty text is no arguments."""
        function: Mapping[str, Any] = self.message.get("function") or {}
        return str(function.get("arguments") or "")


def calls_of(messages: Iterable[Message], agent: Agent, tools: Mapping[str, Tool[..., Any]]) -> list[ToolCall]:
    """The calls of an assistant message, bound to the tools of the agent that made them."""
    return [
        # A call of another type ("custom") never runs a function, whatever its name.
        ToolCall(message, position, agent, tools.get(call_name(message)) if message.get("function") else None)
        for position, message in enumerate(messages)
    ]


def plan(calls: Iterable[ToolCall], *, concurrent: bool = True) -> list[list[ToolCall]]:
    """The calls in groups: groups run in order, the calls of a group together."""
    groups: list[list[ToolCall]] = []
    alone = True  # whether the last group takes no other call
    may_change = False  # whether a call of the last group may change the context when the group ends
    for call in calls:
        together = concurrent and (call.tool is None or runs_together(call.tool))
        if alone or not together or (may_change and _must_see_changes(call.tool)):
            groups.append([])
            may_change = False
        groups[-1].append(call)
        alone = not together
        may_change = may_change or (call.tool is not None and may_return_result(call.tool))
    return groups


def _must_see_changes(tool: Tool[..., Any] | None) -> bool:
    # @tool(concurrent=True) is the user's word that it need not see them.
    return tool is not None and tool.concurrent is None and reads_context(tool)
