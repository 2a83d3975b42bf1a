"""An agent as a tool of another agent: the tool call runs the agent, as an inner run of the outer run.

The module decides the input of the inner run, and its result for the outer run. The inner run uses the swarm of the outer run,
in the task of the call. The run loop needs no code for inner runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any, Literal

from ._values.agent import Agent, Response, slug
from ._values.context import changes, copy_containers, merge_changes
from ._values.decisions import UNDECIDED, is_run_inside, storable_inside, without_old_entries
from ._values.errors import CallerMistake, ConfigurationError, Hold, ToolError, UndeclaredHold
from ._values.events import RunFinished
from ._values.json import is_json
from ._values.messages import STARTED_INSIDE, Message, has_started_inside, results_in_short
from ._values.output import Output, answer_text, as_output
from ._values.public_names import explained
from .extensions import (
    AgentDirectory,
    CurrentCall,
    InnerRun,
    RunInfo,
    Tool,
    ToolCall,
    current_call,
    function_tool,
    progress,
    tool,
)

_HANDED_OFF = "the run inside the call had handed off to the agent"
_LIMITS = {"budget": "the budget is used up", "max_turns": "its turns are used up"}
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


@explained
def agent_tool(
    agent: Agent,
    *,
    name: str | None = None,
    description: str | None = None,
    history: Literal["none", "all"] = "none",
    context: Literal["copy", "share"] = "copy",
    output: Any = None,
) -> Tool[..., Any]:
    """Return the agent as a tool for other agents. The tool gets a request, runs the agent, and returns the text of its answer.

        writer = Agent(name="Writer", functions=[agent_tool(researcher, description="Finds sources.")])

    The inner run uses the client, the limits, the middleware, `model_override`, `max_turns` and the budget of the outer run. If
    the outer run is cancelled, the inner run is cancelled too. Its events appear as `ToolProgress`. Several calls run together.
    The options of `@tool` can be added, for example `tool(approve=True)(agent_tool(...))`.

    If a call of the inner run waits for a decision, the call of this tool waits too, and its `data["waiting"]` contains the
    inner calls. To decide on them, pass `Reply({id: decision})`; True runs them all. Meanwhile the stored history contains the
    messages and the changed context variables of the inner run, so do not show it to users unchanged.

    Args:
        agent: The agent.
        name: The name of the function; by default the name of the agent.
        description: The description for the model; by default it names the agent.
        history: "all": the agent also gets the conversation so far.
        context: "share": changes of the context variables are merged into the outer run. Then each call runs alone, because
            concurrent calls could see these changes. "copy": the changes are lost.
        output: The type of the answer, or an `Output`. The result is then JSON, as the model wrote it.

    Raises:
        ConfigurationError: For an unknown value of `history` or `context`, or if the API rejects the name.
    """
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
        raise ConfigurationError(f"agent_tool takes an Agent, not {agent!r}")
    if history not in ("none", "all") or context not in ("copy", "share"):
        raise ConfigurationError(
            f"agent_tool takes history='none' or 'all' and context='copy' or 'share', not {history!r} and {context!r}"
        )
    ask = _AgentTool(agent, history == "all", as_output(output))
    return function_tool(
        ask.with_changes if context == "share" else ask.with_copy,
        name=name or slug(agent.name) or "agent",
        description=description or description_of(agent, "a text" if output is None else "as JSON"),
        parameters=PARAMETERS,
        may_wait=True,
        check_decision=ask.check_decision,
    )


def description_of(agent: Agent, answer: str = "a text") -> str:
    """Return the default description of an agent as a tool."""
    return f"Ask the agent {agent.name}. The result is its answer, {answer}."


@dataclasses.dataclass(frozen=True, slots=True)
class _AgentTool:
    agent: Agent
    has_history: bool
    output: Output[Any] | None

    # The model's arguments are checked here: with them as parameters, Python's error for the model would name this class.
    async def with_copy(self, *, context_variables: Mapping[str, Any], **arguments: Any) -> str:
        return answer_text((await self._ask(_request_of(arguments), dict(context_variables))).messages)

    async def with_changes(self, *, context_variables: dict[str, Any], **arguments: Any) -> str:
        request, before = _request_of(arguments), copy_containers(context_variables)
        response = await self._ask(request, before)
        merge_changes(context_variables, before, response.context_variables)
        return answer_text(response.messages)

    def check_decision(self, call: ToolCall) -> None:
        """Raise ConfigurationError if the decision does not suit the inner run. Checked before any call runs."""
        waited, decision = _waited(call), call.decision or UNDECIDED
        if waited is None:
            return
        try:
            if decision.is_changed:
                raise ConfigurationError("its run has started, so its arguments cannot be changed; decide on its calls")
            agent = self._agent_of(waited)
            InnerRun.check(agent, waited["messages"], resume=decision.inside, output=self.output)
        except ConfigurationError as error:
            raise ConfigurationError(f"the call {call.id!r} of {call.name}: {error}") from error

    async def _ask(self, request: str, context: Mapping[str, Any]) -> Response:
        call, outer = _call_and_run()
        before = outer.messages if self.has_history else []
        waited = _waited(call)
        messages = [{"role": "user", "content": request}] if waited is None else waited["messages"]
        inner: InnerRun | None = None
        try:
            agent = self.agent if waited is None else self._agent_of(waited)
            variables = context if waited is None else _changed(context, waited)
            decisions = False if waited is None else (call.decision or UNDECIDED).inside
            inner = outer.start(agent, [*before, *messages], variables, resume=decisions, output=self.output)
            await _report(inner)
        except ConfigurationError as error:
            kind = UndeclaredHold if isinstance(error, UndeclaredHold) else CallerMistake
            raise kind(
                f"the call {call.id!r} of {call.name}: {error}", has_started=_has_started(call, inner)
            ) from error
        response = inner.response
        if response.stop == "waiting":
            all_messages = [*messages, *response.messages]
            raise _hold_of(response, all_messages, context, has_started=_has_started(call, inner))
        # A typed run of this tool has no last completion, because only the owner of a budget requests one.
        if response.stop in _LIMITS and (self.output is not None or not response.text):
            done = results_in_short([*messages, *response.messages]) or "."
            raise ToolError(
                f"The agent {response.agent.name} stopped without an answer: {_LIMITS[response.stop]}{done}"
            )
        return response

    def _agent_of(self, waited: Mapping[str, Any]) -> Agent:
        """Return the active agent of the waiting inner run. Raises ConfigurationError if no agent has its name."""
        return AgentDirectory((self.agent,)).get(waited["agent"], _HANDED_OFF)


def _request_of(arguments: Mapping[str, Any]) -> str:
    """Return the request. Raises ToolArgumentsError as for any function with the parameter `request: str`."""
    request: str = _signature.validate(arguments)["request"]
    return request


@tool
def _signature(request: str) -> str: ...  # type: ignore[empty-body]  # never called: it only checks arguments


def _call_and_run() -> tuple[CurrentCall, RunInfo]:
    """Return the call of this tool and its run. Raises ConfigurationError outside of a run."""
    with suppress(ConfigurationError):
        call = current_call()
        return call, call.run
    raise ConfigurationError("an agent_tool works only as a function of an agent; put it into Agent(functions=[...])")


def _has_started(call: CurrentCall, inner: InnerRun | None) -> bool:
    return has_started_inside(call.data) or (inner is not None and inner.has_started)


async def _report(run: InnerRun) -> None:
    async with aclosing(run):
        async for event in run:
            if not isinstance(event, RunFinished):
                progress(event)


def _waited(call: ToolCall | CurrentCall) -> Mapping[str, Any] | None:
    """Return the data of the waiting inner run; None if no inner run has started for this call."""
    return call.data if is_run_inside(call.data) else None


def _changed(context: Mapping[str, Any], waited: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in context.items() if key not in waited["removed"]}
    return {**kept, **waited["context_variables"]}


def _hold_of(response: Response, messages: list[Message], context: Mapping[str, Any], *, has_started: bool) -> Hold:
    """Return the `Hold` of the outer call. Its data is enough to continue the inner run, even in another process."""
    reasons = [f"{call.agent}: {call.name} {call.reason}" for call in response.waiting]
    changed, removed = changes(context, response.context_variables)
    for key, value in changed.items():
        if not is_json(value):
            raise CallerMistake(
                f"the run inside the call waits, and its context variable {key!r} is not JSON, so the run could not continue in "
                "another process; keep such objects outside of the context, or set them in the outer run",
                has_started=has_started,
            )
    if (stored := storable_inside(without_old_entries(messages))) is None:
        raise CallerMistake(
            "the run inside the call waits, and its messages are nested too deeply to be stored; use fewer levels of agents as "
            "tools, or handoffs",
            has_started=has_started,
        )
    return Hold(
        "; ".join(reasons),
        data={
            "agent": response.agent.name,
            "messages": stored,
            "context_variables": changed,
            "removed": removed,
            STARTED_INSIDE: has_started,
        },
    )
