"""`RunFactory` makes a `PreparedRun` from a request, or from the first entry of a recorded run.

These two classes decide which agent starts, which messages are new, and whether the answers fit the open calls. They do no I/O:
the caller has already loaded the conversation.

Security: A client starts only the agents in `agents=`; other agents only take over a run, and continue its conversation.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast
from urllib.parse import quote

from aswarm._log.texts import checked_context, checked_id, faults
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker, ErrorText, general_error
from aswarm._record.recorder import Recorder
from aswarm._run.handlers import Handlers
from aswarm._run.options import RunOptions
from aswarm._run.state import RunState
from aswarm._run.streams import deliver_live
from aswarm._swarm import AsyncSwarm, prepare
from aswarm._tools.directory import AgentDirectory, listed_by_name
from aswarm._values.agent import Agent, Response
from aswarm._values.decisions import Decision, as_json, waiting_entries
from aswarm._values.errors import ConfigurationError, RunRefused
from aswarm._values.events import LoopEvent
from aswarm._values.json import from_fields, is_object
from aswarm._values.messages import Message, normalize
from aswarm.conversations import Change, Stored
from aswarm.conversations._recorded_run import with_new, with_sendable_text
from aswarm.conversations._recorder import common_messages, storable

from ._extras import with_client, with_request_log
from ._requests import ClientTool, InvalidRequest, decisions
from ._runs import AgentNotFound, AnswersRefused, ConversationNotFound, Limits, NewRun
from ._trace import trace_headers

_MAX_ID_LENGTH = 200
TASK_MODEL = "helper"  # the name under which clients find the agent for titles and similar tasks


def conversation_key(user: str, conversation: str) -> str:
    """Return the id of a user's conversation in the store. Two users never get the same id.

    Raises InvalidRequest if `conversation` is invalid, because it comes from the client. Raises ConfigurationError if `user` is
    invalid, because it comes from `auth`.
    """
    if not 0 < len(user) <= _MAX_ID_LENGTH:
        raise ConfigurationError(f"the id of a user must have 1 to {_MAX_ID_LENGTH} characters, not {len(user)}")
    if not 0 < len(conversation) <= _MAX_ID_LENGTH:
        raise _invalid_id(
            f"the id of a conversation must have 1 to {_MAX_ID_LENGTH} characters, not {len(conversation)}"
        )
    if "/" in conversation:
        raise _invalid_id("the id of a conversation is a part of a path and cannot have a slash; use another id")
    try:
        return checked_id(f"{user_prefix(user)}{conversation}")
    except ConfigurationError as error:
        raise _invalid_id("the id of a conversation must be text that a database accepts") from error


def _invalid_id(text: str) -> InvalidRequest:
    return InvalidRequest(text, code="invalid_request", status_code=422, param="conversation")


def user_prefix(user: str) -> str:
    """Return the prefix of the ids of all conversations of a user in the store."""
    return f"{quote(user, safe='@')}/"


def conversation_id(key: str) -> str:
    """Return the client's id of a conversation: its id in the store without the prefix of the user."""
    return key.partition("/")[2]


def _clients_agents(agents: Agent | Iterable[Agent] | Mapping[str, Agent]) -> dict[str, Agent]:
    """Return the agents that clients may name, by name.

    Raises ConfigurationError if there are no agents, if two agents have the same name, or if a key is not the name of its
    agent.
    """
    if isinstance(agents, Mapping):
        named = cast("Mapping[str, Agent]", agents)
        for key, agent in named.items():
            if key != agent.name:
                raise ConfigurationError(
                    f"agents has the key {key!r} for the agent {agent.name!r}. Clients and stored conversations refer to an agent "
                    "by its name; use the name as the key, or pass a list"
                )
        agents = named.values()
    by_name = listed_by_name([agents] if isinstance(agents, Agent) else agents)
    if not by_name:
        raise ConfigurationError("agents must be a list of at least one Agent, and each needs its own name")
    return by_name


def _known_agents(agents: Mapping[str, Agent], task_agent: Agent | None) -> dict[str, Agent]:
    """Return these agents and all agents that they can hand off to, so that no run has to search for them.

    Raises ConfigurationError if `task_agent` has the name of another agent.
    """
    if task_agent is not None and agents.get(task_agent.name, task_agent) is not task_agent:
        raise ConfigurationError(f"task_agent needs its own name; there is another agent {task_agent.name!r}")
    first = {**agents, **({} if task_agent is None else {task_agent.name: task_agent})}
    return dict(AgentDirectory(first.values()).known)


class RunFactory:
    """Prepares runs, with the swarm, the agents and the settings of one `Runs`.

    `agents`: the agents that clients may name. `task_agent`: an agent for titles and similar tasks; its name for clients
    is "helper". `known`: all these agents, and the agents that they can hand off to.
    """

    def __init__(
        self,
        swarm: AsyncSwarm,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        limits: Limits,
        error_text: ErrorText | None = None,
        task_agent: Agent | None = None,
    ) -> None:
        for name, value, kind in (("swarm", swarm, AsyncSwarm), ("limits", limits, Limits)):
            if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
                raise ConfigurationError(f"{name} must be an instance of {kind.__name__}, not {type(value).__name__}")
        self.swarm = swarm
        self.agents = _clients_agents(agents)
        self.known = _known_agents(self.agents, task_agent)
        self.limits = limits
        self.error_text = error_text or general_error
        self.task_agent = task_agent

    def agent(self, name: str | None) -> Agent:
        """Return the agent with this name, or the first agent for None. Raises AgentNotFound."""
        if name is None:
            return next(iter(self.agents.values()))
        if name in self.agents:
            return self.agents[name]
        if name == TASK_MODEL and self.task_agent is not None:
            return self.task_agent
        raise AgentNotFound(name)

    def prepare(
        self, run_id: str, new: NewRun, stored: Stored, last_run: str | None, asked: Mapping[str, Any]
    ) -> PreparedRun:
        """Prepare a new run. `stored`: its conversation; `last_run`: the id of the previous run.

        `asked`: the fields of the first entry of the run whose calls the new run answers. The new run continues with its
        settings and notes, unless it has its own.

        Raises ConversationNotFound and AnswersRefused.
        """
        stored = with_sendable_text(stored)
        messages = _new_messages(new, stored)
        resume = False if messages else _resumed(new, stored, last_run)
        history, added = _split(stored, messages)
        context: Mapping[str, Any] = {**stored.context_variables, **checked_context(new.client_context)}
        if new.conversation is None:
            context = new.context_variables or {}
        start = RunStart(
            run_id, stored.id, new.conversation, stored.agent or self.agent(new.agent).name, history, added, resume, context,
            new.tools, settings=new.settings or asked.get("_settings", {}), notes=new.notes or asked.get("_notes", ()),
        )  # fmt: skip
        return PreparedRun(self, start)

    def continued(self, run_id: str, first: Entry, stored: Stored) -> PreparedRun:
        """Prepare another attempt of a run. `first`: its first entry; `stored`: the current state of its conversation."""
        fields, stored = first.fields, with_sendable_text(stored)
        before, added = fields["before"], list(fields["messages"])
        tools = [from_fields(ClientTool, tool) for tool in fields.get("_tools", ())]
        start = RunStart(
            run_id, stored.id, fields["conversation"] or None, fields["agent"], stored.messages[:before], added,
            _resume_of(fields), fields["context_variables"], tools, fields.get("_trace", {}),
            fields.get("_settings", {}), fields.get("_notes", ()),
        )  # fmt: skip
        return PreparedRun(self, start, first)


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start of a run, as its first entry records it.

    `key`: the id of its conversation in the store; empty for a run without a conversation. `history`: the messages of the
    conversation before the run. `added`: the messages that the run adds to the history at its start. `resume`: the decisions
    about open calls; False if no call is open, or if new messages close them. `tools`: the tools of the client.
    `trace`: see `in_trace`; empty in the process that started the run. `settings`, `notes`: see `NewRun`.
    """

    run_id: str
    key: str
    conversation: str | None
    agent: str
    history: list[Message]
    added: list[Message]
    resume: Mapping[int, Decision] | Literal[False]
    context: Mapping[str, Any]
    tools: Sequence[ClientTool]
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: Sequence[Message] = ()

    @property
    def messages(self) -> list[Message]:
        """The history that the run starts with."""
        return [*self.history, *self.added]


class PreparedRun:
    """One attempt of a run, from its start to its last entries. `key`: see `RunStart`. `first`: the first entry of the run.

    First call `open` and read its events. Then call `endings`.
    """

    maker: EntryMaker
    recorder: Recorder | None
    _state: RunState | None

    def __init__(self, factory: RunFactory, start: RunStart, first: Entry | None = None) -> None:
        self.start = start
        self.run_id, self.key = start.run_id, start.key
        self._factory = factory
        first_entry = self.restart()
        self.first = first or first_entry

    def restart(self) -> Entry:
        """Reset the attempt to its state before `open`. Returns a new first entry of the run."""
        start = self.start
        self.maker = EntryMaker(start.history, error_text=self._factory.error_text)
        self.recorder = self._state = None
        agent = self._factory.known.get(start.agent) or Agent(name=start.agent)
        private = {
            "_resume": start.resume and as_json(start.resume),
            "_tools": [tool.to_dict() for tool in start.tools],
            "_settings": dict(start.settings),
            "_notes": list(start.notes),
            # A run whose context is not JSON cannot be continued in another process.
            "_is_inexact": any(True for _ in faults(start.context)),
            "_trace": trace_headers(),
        }
        return self.maker.started(
            start.run_id,
            start.conversation or "",
            agent,
            start.added,
            resume=start.resume,
            context_variables=start.context,
            private={key: value for key, value in private.items() if value},
        )

    # --- execution ---

    @property
    def agent(self) -> Agent:
        """The agent that starts the run. Raises ConfigurationError if this process does not have it."""
        name = self.start.agent
        if (agent := self._factory.known.get(name)) is None:
            raise ConfigurationError(
                f"the run needs the agent {name!r}, which this process does not have; add it to agents="
            )
        return agent

    @cached_property
    def agents(self) -> AgentDirectory:
        """The agents to which the run may hand off, by name."""
        return AgentDirectory((self.agent, *self._factory.known.values()))

    def open(self, recorder: Recorder, *, logs_requests: bool = False) -> AsyncGenerator[LoopEvent, None]:
        """Prepare the events of the run, and return them. The run executes and is recorded while the events are read.

        `logs_requests`: whether to add an entry for each request to the model.
        """
        start, factory = self.start, self._factory
        options = RunOptions(
            self.agent, start.messages, start.context, max_turns=factory.limits.max_turns, resume=start.resume,
            run_id=start.run_id,
        )  # fmt: skip
        swarm, self.recorder = factory.swarm, recorder
        if logs_requests:  # for pages that show everything
            swarm = with_request_log(swarm, lambda request: recorder.add(self.maker.request(request)))

        def wrap(handlers: Handlers) -> Handlers:
            return recorder.wrap(with_client(handlers, start.tools, start.settings, start.notes))

        self._state, events = prepare(swarm, options, deliver_live, recorder.delivery, stream=True, recorder=wrap)
        recorder.use(self._state)
        return recorder.events(events)

    @property
    def has_finished(self) -> bool:
        """Whether the run has finished: it neither failed nor was stopped."""
        return self.recorder is not None and self.recorder.finished is not None

    def response_after(self, error: BaseException | None) -> Response | None:
        """Return the response so far, or None if the run has not started. `error`: the error of a failed run."""
        of_error = getattr(error, "response", None)
        return of_error or (None if self._state is None else self._state.response)

    def endings(self, reason: str | None, error: BaseException | None) -> list[Entry]:
        """Return the last entries of the run. The run finished, failed with this error, or was stopped for this reason."""
        response, state = self.response_after(error), self._state
        turn = None if state is None else state.turn
        if error is not None:
            return self.maker.failed(error, response, turn)
        if state is not None and self.recorder is not None and (finished := self.recorder.finished) is not None:
            return self.maker.event(finished, state)
        return self.maker.stopped(reason or "cancelled", response, turn)

    # --- the conversation ---

    def first_change(self, stored: Stored) -> Change:
        """Return the change of the conversation at the start of the run."""
        start = self.start
        agent, context = start.agent, dict(start.context)
        return Change(stored.revision, revision_of(self.run_id, 0), len(start.history), start.added, agent, context)

    def last_change(self, response: Response, error: BaseException | None) -> Change:
        """Return the change of the conversation at the end of the run. `error`: the error of a failed run."""
        before = self.start.messages
        messages = [*before, *response.messages]
        while isinstance(error, RunRefused) and messages and messages[-1]["role"] == "user":
            del messages[-1]  # a guard has refused this message; the next run must not send it
        keep = common_messages(before, messages)
        context, _ = storable(response.context_variables, dict(self.start.context))
        name = response.agent.name if self.agents.find(response.agent.name) is response.agent else self.start.agent
        return Change(
            revision_of(self.run_id, 0), revision_of(self.run_id, 1), keep, messages[keep:], name, context, response.stop,
            response.unknown_calls,
        )  # fmt: skip


def revision_of(run_id: str, number: int) -> str:
    """Return the revision of a conversation after the start (0) or the end (1) of a run."""
    return hashlib.blake2b(f"{run_id}/{number}".encode(), digest_size=8).hexdigest()


def revisions_of(run_id: str) -> tuple[str, str]:
    """Return the revisions of a conversation after the start and after the end of a run."""
    return revision_of(run_id, 0), revision_of(run_id, 1)


def asker(stored: Stored, last_run: str | None) -> str | None:
    """Return the id of the run that has left the open calls of the conversation.

    None if no run has left them: another program has changed the conversation since, or it is a copy of another conversation.
    `last_run`: the id of the last run of the conversation, or None.
    """
    return last_run if last_run is not None and stored.revision in revisions_of(last_run) else None


def _resume_of(fields: Mapping[str, Any]) -> Mapping[int, Decision] | Literal[False]:
    recorded: Any = fields.get("_resume", False)  # True in the records of older versions: no call was open
    return {int(index): decision for index, decision in recorded.items()} if is_object(recorded) else False


def _resumed(new: NewRun, stored: Stored, last_run: str | None) -> Mapping[int, Decision] | Literal[False]:
    """Return the decisions about open calls; False if no call is open, and the end of the history has no answer yet."""
    if new.answers and not stored.revision:
        raise ConversationNotFound(str(new.conversation))
    try:
        run_id, complete = asker(stored, last_run), bool(new.answers)
        decided = decisions(new.answers, stored.messages, strict=new.strict, complete=complete, last_run=run_id)
    except InvalidRequest as error:
        raise AnswersRefused(error.message, code=error.code, status_code=error.status_code) from error
    if decided:
        return decided
    last = stored.messages[-1]["role"] if stored.messages else None
    if last == "user" or (new.continues and last == "tool" and not stored.waiting):
        return False
    text = "the request adds nothing to the conversation; send a new message or an answer"
    raise AnswersRefused(text, code="nothing_new", status_code=409)


def _split(stored: Stored, messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """Return the unchanged history and the messages that the run adds. Answers that close open calls come before `messages`."""
    whole = with_new(stored, messages) if messages else stored.messages
    pairs = zip(stored.messages, whole, strict=False)
    same = next((at for at, (before, now) in enumerate(pairs) if before != now), len(stored.messages))
    return whole[:same], whole[same:]


def _new_messages(new: NewRun, stored: Stored) -> list[Message]:
    """Return the new messages of a request. Raises AnswersRefused if `open_calls_first` does not allow them."""
    if new.open_calls_first and new.messages:
        if new.answers and new.strict:
            # A client may send the messages of its history again, but without the message of the assistant.
            contents = [message["content"] for message in stored.messages if message["role"] == "user"]
            if all(message["content"] in contents for message in new._messages):
                return []
            text = "a request with answers cannot have a new message; send the message after the end of the resumed run"
            raise AnswersRefused(text, code="interrupt_open", status_code=409)
        if stored.waiting and waiting_entries(stored.messages):
            text = "the conversation has a call that waits for an answer; answer this interrupt first"
            raise AnswersRefused(text, code="interrupt_open", status_code=409)
    messages = new._messages if new.strict else not_stored(new._messages, stored.messages)
    return normalize(messages)


def not_stored(messages: Sequence[Message], stored: Sequence[Message]) -> list[Message]:
    """Return the messages that are not yet at the end of the history.

    After a run without an answer, a client sends old messages again.
    """
    count = len(messages)
    while count and [*stored[-count:]] != [*messages[:count]]:
        count -= 1
    return list(messages[count:])
