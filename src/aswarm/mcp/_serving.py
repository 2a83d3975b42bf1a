"""Agents as a server of the Model Context Protocol: one tool for each agent, and a run for each call.

A client gets the answer or an error, the progress of the run, and the questions to its user. If the client cancels a call, its
run is cancelled too. The server keeps nothing for the next call. The SDK has the transports.

Security: The state of a waiting run that a client keeps is encrypted, and a state that this process did not make is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, Unpack

from mcp.server import Server, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequests,
    InputRequiredResult,
    InputResponses,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from aswarm import __version__
from aswarm._agent_tool import PARAMETERS, description_of
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent, Response, slug
from aswarm._values.budget import UNWATCHED
from aswarm._values.decisions import (
    RUNS_ELSEWHERE,
    Decision,
    Deny,
    OpenCall,
    Reply,
    open_calls,
    waiting_calls,
    waiting_entries,
)
from aswarm._values.errors import AswarmError, ConfigurationError, named
from aswarm._values.events import Event, HandedOff, ToolCallStarted, TurnStarted
from aswarm._values.json import is_json
from aswarm._values.messages import Message
from aswarm._values.output import answer_text
from aswarm._values.run_keywords import ItemKeywords, checked_keywords
from aswarm._values.text import one_line
from aswarm.extensions import AgentDirectory, EventStream, failing_exits

Questions: TypeAlias = Mapping[str, ElicitRequestFormParams]
_Result: TypeAlias = CallToolResult | InputRequiredResult
_ASKS_SECONDS = 86_400.0  # a client must answer within this time
_SHOWN = 2000  # characters of a call in a question
_APPROVE = {"type": "boolean", "title": "Run it", "description": "Whether the call may run."}
_REASON = {"type": "string", "title": "Why not", "description": "What the agent is told if the call may not run."}
_ANSWER = {"type": "string", "title": "Answer", "description": "The answer to the question."}
_LIMITS = {"budget": "the budget is used up", "max_turns": "its turns are used up"}


def serve_agents(
    swarm: AsyncSwarm,
    *,
    agents: Agent | Iterable[Agent],
    name: str = "aswarm",
    **keywords: Unpack[ItemKeywords],
) -> Server[Any]:
    """Return a server of the SDK with one tool for each agent. A tool gets a request, runs the agent, and returns its answer.

    The server object has `run(...)` for stdio, and `streamable_http_app()`, which returns an ASGI application for HTTP. It
    supports the protocol of 2026-07-28 and earlier versions. A client gets the steps of the run as progress, and can cancel the
    run. If a call of the run waits for a decision, the client asks its user. If the client cannot ask, the result is an error.

    Args:
        swarm: The swarm that runs the agents.
        agents: The agents to serve. A single agent is served with the agents in its `functions`, and in theirs.
        name: The name of the server for its clients.
        **keywords: `model_override`, `max_turns` (by default 100), `budget` and `resources` of each call; see `RunKeywords`.

    Raises:
        ConfigurationError: If two agents have the same name, or the name of an agent cannot be the name of a tool.
    """
    checked_keywords("serve_agents", keywords, ItemKeywords)
    stream = partial(swarm.stream, deltas=False, **{"max_turns": UNWATCHED, **keywords})
    served = _by_name(AgentDirectory([agents]).in_functions if isinstance(agents, Agent) else agents)
    tools = [
        Tool(name=key, description=description_of(agent), input_schema=dict(PARAMETERS))
        for key, agent in served.items()
    ]

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> _Result:
        agent, request = served.get(params.name), (params.arguments or {}).get("request")
        if agent is None or not isinstance(request, str):
            return _error(f"Call one of {', '.join(served)}, with the argument `request`, a text.")
        call = _ServedCall(context, agent, stream)
        try:
            with failing_exits():
                return await call.carry_out(request, params)
        except (AswarmError, SystemExit) as error:
            return _error(named(error))

    server = Server(name, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)
    # The client keeps a waiting run. The server seals it and accepts only its own seal, so a client cannot invent a history.
    seal = RequestStateSecurity.ephemeral(ttl=_ASKS_SECONDS)
    server.middleware.append(RequestStateBoundary(seal, default_audience=name))
    return server


class _ServedCall:
    """One call of a tool: it starts a run, and another run after each decision of the user."""

    def __init__(self, context: ServerRequestContext[Any], agent: Agent, stream: Callable[..., EventStream]) -> None:
        self._context = context
        self._agents = AgentDirectory((agent,)).known
        self._agent = agent
        self._stream = stream
        self._done = 0

    async def carry_out(self, request: str, params: CallToolRequestParams) -> _Result:
        """Run until the agent answers, or until the client has to ask its user."""
        paused = _PausedRun(self._agent.name, [{"role": "user", "content": request}], {})
        decisions: dict[str, Decision] | None = None
        if params.request_state is not None:
            paused = _PausedRun(*json.loads(params.request_state))
            if not params.input_responses:
                return _asking(paused)
            decisions = _decisions_of(paused.questions, params.input_responses)
        while decisions != {}:
            response = await self._run(paused, decisions)
            history = [*paused.messages, *response.messages]
            paused = _PausedRun(response.agent.name, history, response.context_variables)
            if response.stop != "waiting" or not self._may_ask(paused, response.agent):
                return _result(response)
            if not self._has_session:
                return _asking(paused)
            decisions = await self._asked(paused.questions)
        return _error("The agent has not continued, because the user has made no decision.")

    async def _run(self, paused: _PausedRun, decisions: dict[str, Decision] | None) -> Response:
        agent = self._agents[paused.agent]
        resume = False if decisions is None else decisions
        async with self._stream(agent, paused.messages, paused.context_variables, resume=resume) as run:
            async for event in run:
                if text := _progress(event):
                    self._done += 1
                    await self._context.session.report_progress(self._done, message=text)
        return run.response

    # --- the user ---

    @property
    def _has_session(self) -> bool:
        return self._context.protocol_version not in MODERN_PROTOCOL_VERSIONS

    def _may_ask(self, paused: _PausedRun, agent: Agent) -> bool:
        """Return whether the client can show the forms and, without a session, whether a later call can continue the run."""
        session = self._context.session
        capabilities = session.client_capabilities
        forms = None if capabilities is None else capabilities.elicitation
        if forms is None or (forms.url is not None and forms.form is None) or not paused.questions:
            return False
        if self._has_session:
            self._agents[agent.name] = agent
            return session.can_send_request
        return self._agents.get(agent.name) is agent and paused.as_text() is not None

    async def _asked(self, questions: Questions) -> dict[str, Decision]:
        """Ask during the call, because a client with a session cannot continue the run in a later call."""
        session, request = self._context.session, self._context.request_id
        answers: InputResponses = {}
        for key, form in questions.items():
            answers[key] = await session.elicit_form(form.message, form.requested_schema, related_request_id=request)
        return _decisions_of(questions, answers)


def _asking(paused: _PausedRun) -> InputRequiredResult:
    requests: InputRequests = {key: ElicitRequest(params=form) for key, form in paused.questions.items()}
    return InputRequiredResult(input_requests=requests, request_state=paused.as_text())


def _by_name(agents: Iterable[Agent]) -> dict[str, Agent]:
    served: dict[str, Agent] = {}
    for agent in agents:
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
            raise ConfigurationError(f"agents must be Agents; one item is {type(agent).__name__}")
        name = slug(agent.name)
        if not name or name in served:
            raise ConfigurationError(
                f"the agent {agent.name!r} cannot be a tool: its name is empty, or another agent has the same name; give each agent "
                "its own name"
            )
        served[name] = agent
    return served


def _progress(event: Event) -> str | None:
    match event:
        case TurnStarted():
            return f"{event.agent.name}: asks the model"
        case ToolCallStarted():
            return f"calls {event.name}"
        case HandedOff():
            return f"hands off to {event.target.name}"
        case _:
            return None


def _result(response: Response) -> CallToolResult:
    text = answer_text(response.messages)
    if response.stop == "answer":
        return CallToolResult(content=[TextContent(text=text)])
    if response.stop == "waiting":
        waits = "; ".join(f"{call.name}: {call.reason}" for call in response.waiting)
        return _error(
            f"The agent {response.agent.name} cannot continue here, because a call waits for a decision. {waits}"
        )
    return _error(
        f"The agent {response.agent.name} stopped: {_LIMITS.get(response.stop, response.stop)}. {text}".strip()
    )


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


# --- the questions to the user: whether a call may run, and the question of a function ---


@dataclass(frozen=True, slots=True)
class _PausedRun:
    """The state of a run that waits for decisions. `agent`: the name of the active agent."""

    agent: str
    messages: list[Message]
    context_variables: dict[str, Any]

    @property
    def questions(self) -> Questions:
        """A form for each waiting call, by its index. Empty if a form cannot answer one of the calls."""
        entries = waiting_entries(self.messages) or {}
        calls = waiting_calls(open_calls(self.messages))
        is_approval = {call.index: bool(entries[call.index].get("approval")) for call in calls}
        # No form can answer a question with data: for an agent as a tool, for example, the data are a whole run.
        if not all(is_approval[call.index] or (call.data is None and call.reason != RUNS_ELSEWHERE) for call in calls):
            return {}
        return {str(call.index): _form(call, is_approval=is_approval[call.index]) for call in calls}

    def as_text(self) -> str | None:
        """Return the run as JSON text, or None if its context variables are not JSON."""
        kept = [self.agent, self.messages, self.context_variables]
        return json.dumps(kept) if is_json(kept) else None


def _form(call: OpenCall, *, is_approval: bool) -> ElicitRequestFormParams:
    properties = {"approve": _APPROVE, **({"reason": _REASON} if is_approval else {"answer": _ANSWER})}
    shown = one_line(f"{call.name}({call.arguments})", _SHOWN)
    return ElicitRequestFormParams(
        message=f"{call.agent}: {call.reason}: {shown}",
        requested_schema={"type": "object", "properties": properties, "required": ["approve"]},
    )


def _decisions_of(questions: Questions, answers: InputResponses | None) -> dict[str, Decision]:
    """Return the decisions of the user, by the index of the call. A cancelled form has no decision."""
    forms = {key: form for key, form in (answers or {}).items() if key in questions and isinstance(form, ElicitResult)}
    return {key: _decision(form) for key, form in forms.items() if form.action != "cancel"}


def _decision(answer: ElicitResult) -> Decision:
    fields: Mapping[str, str | int | float | bool | Sequence[str] | None] = answer.content or {}
    if answer.action == "decline" or fields.get("approve") is not True:
        return Deny(str(fields.get("reason") or ""))
    return Reply(fields["answer"]) if fields.get("answer") else True
