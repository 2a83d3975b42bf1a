"""Which calls of a turn may run together.

Decides the groups; never runs them. The rule: context, active agent and history must be what running the calls one
after another, in the order the model gave, would have left.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aswarm._agent import Agent, Result, UnknownCall
from aswarm._errors import Hold
from aswarm._events import ToolProgress
from aswarm._messages import Message, call_arguments, call_name
from aswarm._tools.tool import Tool, may_return_result, reads_context, runs_together, writes_context


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a call led to.

    `content`: what the model is told, a text or a list of content parts. `result`: the handoff and the changes of the
    context variables, or None for neither. `error`: what went wrong, or None. `still_running`: the function could not be
    stopped. `unknown`: the function has begun, in this process or an earlier one, and how it ended is not known; `content`
    should say so.

    A call with `still_running` or `unknown` is in `Response.unknown_calls`.
    """

    content: str | list[dict[str, Any]]
    result: Result | None = None
    error: Exception | None = None
    still_running: bool = field(default=False, kw_only=True)
    unknown: bool = field(default=False, kw_only=True)

    @property
    def agent(self) -> Agent | None:
        """The agent that takes over, or None."""
        return self.result.agent if self.result else None


@dataclass(frozen=True, slots=True)
class Decided:
    """What users have decided on a call, in this run and earlier ones. `arguments`: those that replace the model's.

    `answer`: that of `Answer`, if it `is_answered`. `data`: what the call had asked with. `is_approval`: the decision of this
    run lets the function run; an answer alone does not, where the tool has `approve`.
    """

    arguments: Mapping[str, Any] | None = None
    answer: Any = None
    is_answered: bool = False
    data: Any = None
    is_approval: bool = False


@dataclass(eq=False, slots=True)
class ToolCall:
    """One call of one assistant message. It is this object, never its id, that tells calls apart.

    `message`: the call as it stands in the assistant message; it must not be changed. `position`: its place in that
    message, from 0. `arguments`: JSON text as the model sent it (empty for no arguments). A middleware may set it before
    the call runs; the history keeps what the model sent. `agent`: the agent that made the call. `tool`: what is called;
    None where the agent has no such function. `started`: whether its function has begun. `outcome`: what it led to, once it
    has ended.

    The run sets the other attributes, and a middleware should not. `decided`: what a user has decided, unless the call
    stays open or is refused. `hold`: why it stays open, once it is known that it waits for a decision. `emit`: takes the
    events of its progress, on the event loop. `merged`: whether the run has taken its handoff and its changes of the
    context.
    """

    message: Message
    position: int
    agent: Agent
    tool: Tool[..., Any] | None
    started: bool = False
    outcome: ToolOutcome | None = None
    merged: bool = False
    decided: Decided | None = None
    hold: Hold | None = None
    emit: Callable[[ToolProgress], None] | None = None
    arguments: str = field(init=False)

    def __post_init__(self) -> None:
        self.arguments = call_arguments(self.message)

    @property
    def id(self) -> str:
        """The id from the provider, or one that was made because it gave none."""
        return str(self.message["id"])

    @property
    def name(self) -> str:
        """The name that the model called."""
        return call_name(self.message)

    @property
    def is_approved(self) -> bool:
        """Whether the user of this run has approved the call."""
        return self.decided is not None and self.decided.is_approval

    @property
    def is_repeatable(self) -> bool:
        """Whether the function may run again after it was cut; see `@tool`."""
        return self.tool is not None and self.tool.repeatable

    @property
    def as_unknown(self) -> UnknownCall:
        """The call as `Response.unknown_calls` has it."""
        return UnknownCall(self.id, self.name, call_arguments(self.message), self.agent.name)


def calls_of(messages: Iterable[Message], agent: Agent, tools: Mapping[str, Tool[..., Any]]) -> list[ToolCall]:
    """The calls of an assistant message, bound to the tools of the agent that made them."""
    return [
        # A call of another type ("custom") never runs a function, whatever its name.
        ToolCall(message, position, agent, tools.get(call_name(message)) if message.get("function") else None)
        for position, message in enumerate(messages)
    ]


def plan(calls: Iterable[ToolCall], *, concurrent: bool = True) -> list[list[ToolCall]]:
    """The calls in groups. Groups run in order; the calls of one group run together."""
    groups: list[list[ToolCall]] = []
    tools: dict[int, Tool[..., Any]] = {}  # those of the last group, each once: a turn may have thousands of calls
    for call in calls:
        if not groups or not concurrent or not _fits(call.tool, tools.values()):
            groups.append([])
            tools.clear()
        groups[-1].append(call)
        if call.tool is not None:
            tools[id(call.tool)] = call.tool
    return groups


def _fits(tool: Tool[..., Any] | None, tools: Iterable[Tool[..., Any]]) -> bool:
    """Whether a call of the tool may run together with calls of these tools, which come before it."""
    if tool is None:  # no function runs
        return all(map(runs_together, tools))
    if not runs_together(tool) or not all(map(runs_together, tools)):
        return False
    if must_see_order(tool):
        return not any(may_return_result(other) or writes_context(other) for other in tools)
    return not (writes_context(tool) and any(map(must_see_order, tools)))


def must_see_order(tool: Tool[..., Any]) -> bool:
    """Whether a call of this tool must see what the calls before it have changed in the context."""
    # With @tool(concurrent=True) the user says that the function need not see changes of the calls beside it.
    return tool.concurrent is None and reads_context(tool)
