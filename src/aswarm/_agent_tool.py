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
from ._budget import Budget
from ._context import changes, copy_containers
from ._errors import CallerMistake, ConfigurationError, Hold, OutputError, ToolError
from ._events import Event, RunFinished
from ._json import is_json, is_object, jsonable, shown
from ._messages import Message
from ._output import Output, answer_text, as_output
from ._run.current_call import progress, running_call, running_run
from ._run.options import RunOptions
from ._run.plan import Decided, ToolCall
from ._run.state import RunState
from ._run.streams import typed
from ._tools.tool import Tool, function_tool
from .graph._find import reachable_agents

_SHOWN = 80
_LIMITS = {"budget": "the budget is used up", "max_turns": "its turns are used up"}
_DATA = {"agent", "messages", "context_variables", "removed"}  # what the data of a run that waits has
PARAMETERS = {
    "type": "object",
    "properties": {
        "request": {
            "type": "string",
            "description": "The request to the agent. It must contain everything that the agent needs to know.",
        }
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
    output: Any = None,
) -> Tool[..., Any]:
    """The agent as a function of other agents: it gets a request, runs until it answers, and its text is the result.

        writer = Agent(name="Writer", functions=[agent_tool(researcher, description="Finds sources.")])

    Its run uses the client, the limits, the middleware, `model_override`, `max_turns` and the budget of the run around it,
    and is cancelled with it. Its events come as `ToolProgress`. Several calls run together.

    `name`: by default that of the agent. `history="all"`: the agent also gets the conversation so far. `context="share"`:
    what it sets in the context variables is merged into those of the outer run; by default it works on a copy. With
    "share", calls run one after another, because each may change what the next one sees.
    `output`: the type of the answer, or an `Output`; the result is then JSON, as the model wrote it.
    `tool(approve=True)(agent_tool(...))` and the other options of `@tool` work too.

    If one of its own calls waits for a decision, the call of this tool waits; `Answer({id: decision})` decides on the
    calls inside, and True runs them all. The data of such a call has the messages and the changed
    context variables of the inner run: do not show it to users as it is.

    Raises ConfigurationError for a value that it does not know, and for a name that the API refuses.
    """
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - what a caller may pass
        raise ConfigurationError(f"agent_tool takes an Agent, not {agent!r}")
    if history not in ("none", "all") or context not in ("copy", "share"):
        raise ConfigurationError(
            f"agent_tool takes history='none' or 'all' and context='copy' or 'share', not {history!r} and {context!r}"
        )
    ask = _AgentTool(agent, history == "all", as_output(output))
    made = function_tool(
        ask.with_changes if context == "share" else ask.with_copy,
        name=name or slug(agent.name) or "agent",
        description=description or description_of(agent, "a text" if output is None else "as JSON"),
        parameters=PARAMETERS,
    )
    return dataclasses.replace(made, check_decision=ask.check_decision)


def description_of(agent: Agent, answer: str = "a text") -> str:
    """What a model is told of an agent as a tool."""
    return f"Ask the agent {agent.name}. The result is its answer, {answer}."


@dataclasses.dataclass(frozen=True, slots=True)
class _AgentTool:
    agent: Agent
    has_history: bool
    output: Output[Any] | None

    async def with_copy(self, request: str, context_variables: Mapping[str, Any]) -> str:
        return answer_text((await self._ask(request, dict(context_variables))).messages)

    async def with_changes(self, request: str, context_variables: Mapping[str, Any]) -> Result:
        before = copy_containers(dict(context_variables))
        response = await self._ask(request, before)
        changed, _ = changes(before, response.context_variables)
        return Result(value=answer_text(response.messages), context_variables=changed)

    def check_decision(self, call: ToolCall, earlier: Decided) -> None:
        """Raise ConfigurationError if the run inside the call cannot take the decision, so that nothing runs beside it."""
        waited, decided = _waited(call), call.decided or earlier
        if waited is None:
            return
        try:
            if decided.arguments is not earlier.arguments:
                raise ConfigurationError(
                    "its run has begun, so its arguments cannot be changed; decide on the calls inside"
                )
            agent = self._agent_named(waited["agent"])
            RunState(agent, waited["messages"], None, resume=_decisions(decided), output=self.output)
        except ConfigurationError as error:
            raise ConfigurationError(f"the call {call.id!r} of {call.name}: {error}") from error

    async def _ask(self, request: str, context: Mapping[str, Any]) -> Response:
        run, call = running_run.get(), running_call.get()
        if run is None or call is None:
            raise ConfigurationError(
                "an agent_tool works only as a function of an agent; put it into Agent(functions=[...])"
            )
        before = run.state.settled if self.has_history else []
        waited = _waited(call)
        messages = [{"role": "user", "content": request}] if waited is None else waited["messages"]
        try:
            agent, variables = self.agent, context
            decisions: bool | Mapping[str, Any] = False
            if waited is not None:
                agent, variables = self._agent_named(waited["agent"]), _changed(context, waited)
                decisions = _decisions(call.decided or Decided())
            outer = run.options
            options = RunOptions(
                agent,
                [*before, *messages],
                variables,
                model_override=outer.model_override,
                debug=outer.debug,
                max_turns=outer.max_turns,
                resume=decisions,
                # The budget of the outer run holds; a default of the swarm does not come beside it.
                budget=None if outer.budget is None else Budget(),
                output=self.output,
            )
            state, events = run.start(options)
            await _report(typed(events), is_live=run.call_soon is not None)
        except ConfigurationError as error:
            raise CallerMistake(f"the call {call.id!r} of {call.name}: {error}") from error
        if state.response.stop == "waiting":
            raise _hold_of(state.response, [*messages, *state.response.messages], context)
        if state.response.stop in _LIMITS and not self._has_answer(state.response):
            used_up = _LIMITS[state.response.stop]
            raise ToolError(f"The agent {state.response.agent.name} stopped without an answer: {used_up}.")
        return state.response

    def _has_answer(self, response: Response) -> bool:
        if self.output is None:
            return bool(response.text)
        try:
            _ = response.output
        except OutputError:
            return False
        return True

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


def _waited(call: ToolCall) -> Mapping[str, Any] | None:
    """The data of the inner run that waits; None if no inner run has begun for this call."""
    data = call.decided.data if call.decided else None
    return data if is_object(data) and data.keys() >= _DATA else None


def _decisions(decided: Decided) -> bool | Mapping[str, Any]:
    """The decisions on the calls inside. Raises ConfigurationError for an answer that decides nothing."""
    if decided.is_answered and not is_object(decided.answer):
        raise ConfigurationError(
            f"the answer {shown(decided.answer, _SHOWN)} decides nothing; pass decisions by the ids of the calls inside, such as "
            '{"call_1": True}, or True for all of them'
        )
    return decided.answer if decided.is_answered else True


def _changed(context: Mapping[str, Any], waited: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in context.items() if key not in waited["removed"]}
    return {**kept, **waited["context_variables"]}


def _hold_of(response: Response, messages: list[Message], context: Mapping[str, Any]) -> Hold:
    """What the outer call waits for: the calls inside, with all that the inner run needs to continue in another process."""
    reasons = [f"{call.agent}: {call.name} {call.reason}" for call in response.waiting if call.reason]
    changed, removed = changes(context, response.context_variables)
    for key, value in changed.items():
        if not is_json(value):
            raise CallerMistake(
                f"the run inside the call waits, and its context variable {key!r} is not JSON, so it could not continue in another "
                "process; keep such objects outside of the context, or set them in the outer run"
            )
    return Hold(
        "; ".join(reasons),
        data={
            "agent": response.agent.name,
            "waiting": jsonable([dataclasses.asdict(call) for call in response.waiting]),
            "messages": jsonable(messages),
            "context_variables": changed,
            "removed": removed,
        },
    )
