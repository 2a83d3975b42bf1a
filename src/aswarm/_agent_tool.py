"""An agent as a tool of another agent: its run begins and ends inside the call.

Decides what the inner run gets and what the outer one is told. It runs on the swarm of the outer run, in the task of the
call; the loop knows nothing of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Literal

from ._agent import Agent, Response, Result, slug
from ._context import changes, copy_containers
from ._errors import ConfigurationError, Hold, ToolError
from ._events import Event, RunFinished
from ._json import is_object, jsonable
from ._messages import Message
from ._run.current_call import CurrentCall, OuterRun, current_call, progress, running_run
from ._run.options import RunOptions
from ._run.streams import typed
from ._tools.tool import Tool, function_tool
from .graph._find import reachable_agents

_PARAMETERS = {
    "type": "object",
    "properties": {
        "request": {"type": "string", "description": "What the agent should do, with all that it must know."}
    },
    "required": ["request"],
}


def agent_tool(
    agent: Agent,
    *,
    name: str | None = None,
    description: str | None = None,
    history: Literal["none", "all"] = "none",
    context: Literal["copy", "share"] = "copy",
) -> Tool[..., Any]:
    """The agent as a function of other agents: it gets a request, runs until it answers, and its text is the result.

    Its run uses the client, the limits and the middleware of the run around it, is cancelled with it, and its events come
    as `ToolProgress`. Several calls run together. If one of its own calls waits for a decision, the call of this tool
    waits; `Answer({id: decision})`, or the mapping alone, decides on the calls inside, and True runs them all.

    `name`: by default that of the agent. `history="all"`: the agent also gets the conversation so far. `context="share"`:
    what it changes in the context variables is merged into those of the outer run; by default it works on a copy.
    `tool(approve=True)(agent_tool(...))` and the other options of `@tool` work too.

    Raises ConfigurationError for a value that it does not know, and for a name that the API refuses.
    """
    if history not in ("none", "all") or context not in ("copy", "share"):
        raise ConfigurationError(
            f"agent_tool takes history='none' or 'all' and context='copy' or 'share', not {history!r} and {context!r}"
        )
    ask = _AgentTool(agent, has_history=history == "all")
    return function_tool(
        ask.with_changes if context == "share" else ask.with_copy,
        name=name or slug(agent.name) or "agent",
        description=description or f"Ask the agent {agent.name}. It answers with a text.",
        parameters=_PARAMETERS,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _AgentTool:
    agent: Agent
    has_history: bool

    async def with_copy(self, request: str, context_variables: Mapping[str, Any]) -> str:
        return (await self._ask(request, dict(context_variables))).text

    async def with_changes(self, request: str, context_variables: Mapping[str, Any]) -> Result:
        before = copy_containers(dict(context_variables))
        response = await self._ask(request, before)
        changed, _ = changes(before, response.context_variables)
        return Result(value=response.text, context_variables=changed)

    async def _ask(self, request: str, context: Mapping[str, Any]) -> Response:
        run, call = running_run.get(), current_call()
        if run is None:
            raise ConfigurationError("an agent_tool works only as a function of an agent")
        options = self._resumed(call, context) or self._new(request, context, run)
        state, events = run.start(options)
        await _report(typed(events), is_live=run.is_live)
        if state.response.stop == "waiting":
            raise _hold_of(options, state.response, context)
        if state.response.stop == "budget" and not state.response.text:
            raise ToolError(f"The agent {state.response.agent.name} stopped without an answer: the budget is used up.")
        return state.response

    def _new(self, request: str, context: Mapping[str, Any], run: OuterRun) -> RunOptions:
        before = run.state.settled if self.has_history else []
        return RunOptions(self.agent, [*before, {"role": "user", "content": request}], context)

    def _resumed(self, call: CurrentCall, context: Mapping[str, Any]) -> RunOptions | None:
        """The run that has stopped because one of its calls waits; None if the call is a new one."""
        data = call.data
        if not (is_object(data) and "messages" in data):
            return None
        decisions = call.answer if is_object(call.answer) else True
        return RunOptions(
            self._agent_named(data["agent"]),
            data["messages"],
            {**context, **data["context_variables"]},
            resume=decisions,
        )

    def _agent_named(self, name: str) -> Agent:
        found = [agent for agent in reachable_agents(self.agent) if agent.name == name]
        if len(found) != 1:
            raise ConfigurationError(
                f"the run inside the call had handed off to the agent {name!r}, and {len(found)} agents of this name can be "
                f"found from {self.agent.name!r}; give each agent its own name, and let it be found (see aswarm.graph)"
            )
        return found[0]


async def _report(events: AsyncGenerator[Event, None], *, is_live: bool) -> None:
    async with aclosing(events):
        async for event in events:
            if is_live and not isinstance(event, RunFinished):
                progress(event)


def _hold_of(options: RunOptions, response: Response, context: Mapping[str, Any]) -> Hold:
    """What the outer call waits for: the calls inside, with all that the inner run needs to go on in another process."""
    before: list[Message] = list(options.messages)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    reasons = [f"{call.agent}: {call.name} {call.reason}" for call in response.waiting if call.reason]
    changed, _ = changes(context, response.context_variables)
    return Hold(
        "; ".join(reasons),
        data={
            "agent": response.agent.name,
            "waiting": jsonable([dataclasses.asdict(call) for call in response.waiting]),
            "messages": jsonable([*before, *response.messages]),
            "context_variables": changed,
        },
    )
