"""`PreparedRun`: a run that can be executed, made from a request, or from the first entry of a recorded run.

It decides which agent starts, which messages are new, and whether the answers fit the open calls. It does no I/O: the caller
has already loaded the conversation.

Security: A client starts only the agents in `agents=`; other agents only take over a run, and continue its conversation.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, cast
from urllib.parse import quote

from aswarm._log.stored import asker, checked_context, checked_id, revision_of
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker, ErrorText, general_error
from aswarm._record.entry_recorder import EntryRecorder
from aswarm._record.fold import fold, recorded_response
from aswarm._run.handlers import Handlers
from aswarm._run.options import ResultStore, RunOptions, RunOwner
from aswarm._run.state import RunState
from aswarm._run.streams import deliver_live
from aswarm._swarm import AsyncSwarm, prepare
from aswarm._tools.directory import AgentDirectory, listed_by_name
from aswarm._values.agent import Agent, Response
from aswarm._values.context import context_faults
from aswarm._values.decisions import Decision, as_json, waiting_entries
from aswarm._values.errors import ConfigurationError, RunRefused
from aswarm._values.events import LoopEvent
from aswarm._values.json import from_fields, is_object
from aswarm._values.messages import Message, normalize
from aswarm._values.run_keywords import Messages
from aswarm.conversations import Change, Stored
from aswarm.conversations._sink import (
    common_messages,
    storable,
    with_new,
    with_sendable_text,
    without_last_question,
)

from ._answers import decisions
from ._extras import with_client, with_request_log
from ._requests import (
    AgentNotFound,
    AnswersRefused,
    ClientTool,
    ConversationNotFound,
    InvalidRequest,
    Limits,
    NewRun,
    messages_of,
    trace_headers,
)

_MAX_ID_LENGTH = 200
TASK_MODEL = "helper"  # the name under which clients find the agent for titles and similar tasks


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


class Setup:
    """The swarm, the agents and the settings with which one `Runs` prepares its runs.

    `agents`: the agents that clients may name. `task_agent`: an agent for titles and similar tasks; its name for clients
    is "helper". `results`: the place for long results. `known`: all these agents, and the agents that they can hand off to.
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
        self.logs_requests = False
        self.results: ResultStore | None = None

    def agent(self, name: str | None) -> Agent:
        """Return the agent with this name, or the first agent for None. Raises AgentNotFound."""
        if name is None:
            return next(iter(self.agents.values()))
        if name in self.agents:
            return self.agents[name]
        if name == TASK_MODEL and self.task_agent is not None:
            return self.task_agent
        raise AgentNotFound(name, *difflib.get_close_matches(name, self.agents, n=1))

    def name_of(self, agent: str | Agent, messages: Messages | None) -> str:
        """Return the name of the agent of `Runs.start`. Raises ConfigurationError."""
        if messages is None or not isinstance(agent, str | Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
            given = "no messages" if messages is None else f"a value of the type {type(agent).__name__}"
            raise ConfigurationError(
                f"start() needs an agent and messages, such as start('support', 'Hi!'), or a NewRun; it got {given}"
            )
        if isinstance(agent, str) or agent.name in self.agents:
            return agent if isinstance(agent, str) else agent.name
        raise ConfigurationError(
            f"these runs do not have the agent {agent.name!r}; add it to agents=, because each process finds an agent by its name"
        )


@dataclass(kw_only=True)
class PreparedRun:
    """One attempt of a run, from its start to its last entries. First call `open` and read its events. Then call `endings`.

    `user`: the id of its user. `key`: the id of its conversation in the store; empty for a run without a conversation.
    `starts_with`: the name of its agent. `history`: the messages of the conversation before the run. `added`: the messages that the run adds to the history
    at its start. `resume`: the decisions about open calls; False if no call is open, or if new messages close them. `edited`:
    the names of the context variables that the operator has changed. `tools`: the tools of the client. `trace`: see
    `in_trace`; empty in the process that started the run. `model`, `settings`, `notes`: see `NewRun`. `base`: the revision of
    the conversation before the run. `askers`: see `Found`. `first`: the first entry of the run.
    """

    setup: Setup
    run_id: str
    user: str
    key: str
    conversation: str | None
    starts_with: str
    history: list[Message]
    added: list[Message]
    resume: Mapping[int, Decision] | Literal[False]
    context: Mapping[str, Any]
    edited: Sequence[str]
    tools: Sequence[ClientTool]
    model: str | None
    settings: Mapping[str, Any]
    notes: Sequence[Message]
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    base: str = ""
    askers: Sequence[str] = ()
    first: Entry = field(default=Entry(-1, 0, "", {}))
    maker: EntryMaker = field(init=False)
    recorder: EntryRecorder | None = field(init=False)
    _unreplayed: Response | None = field(init=False, default=None)
    _state: RunState | None = field(init=False)

    @classmethod
    def of_request(
        cls, setup: Setup, run_id: str, new: NewRun, stored: Stored, askers: Sequence[str], asked: Mapping[str, Any]
    ) -> Self:
        """Prepare a new run. `stored`: its conversation; `askers`: see `Found`.

        `asked`: the fields of the first entry of the run whose calls the new run answers. The new run continues with its
        settings and notes, unless it has its own.

        Raises ConversationNotFound and AnswersRefused.
        """
        stored = with_sendable_text(stored)
        messages = _new_messages(new, stored)
        resume = False if messages else _resumed(new, stored, askers)
        history, added = _split(stored, messages)
        context: Mapping[str, Any] = {**stored.context_variables, **checked_context(new.client_context)}
        if new.conversation is None:
            context = new.context_variables or {}
        if (edit := new.context_edit) is not None:
            context = edit.applied_to(context, stored.revision)
        run = cls(
            setup=setup, run_id=run_id, user=new.user, key=stored.id, conversation=new.conversation,
            starts_with=stored.agent or setup.agent(new.agent).name, history=history, added=added, resume=resume, context=context,
            edited=[] if edit is None else edit.names, tools=new.tools, model=new.model or asked.get("model"), askers=askers,
            settings=new.settings or asked.get("_settings", {}), notes=new.notes or asked.get("_notes", ()), base=stored.revision,
        )  # fmt: skip
        run.first = run.restart()
        return run

    @classmethod
    def of_entry(cls, setup: Setup, run_id: str, user: str, first: Entry, stored: Stored) -> Self:
        """Prepare another attempt of a run. `first`: its first entry; `stored`: the current state of its conversation."""
        fields, stored = first.fields, with_sendable_text(stored)
        run = cls(
            setup=setup, run_id=run_id, user=user, key=stored.id, conversation=fields["conversation"] or None,
            starts_with=fields["agent"], history=stored.messages[: fields["before"]], added=list(fields["messages"]),
            resume=_resume_of(fields), context=fields["context_variables"],
            edited=fields.get("edited", ()), model=fields.get("model"),
            tools=[from_fields(ClientTool, tool) for tool in fields.get("_tools", ())],
            settings=fields.get("_settings", {}), notes=fields.get("_notes", ()), trace=fields.get("_trace", {}), first=first,
        )  # fmt: skip
        run.restart()
        return run

    @property
    def messages(self) -> list[Message]:
        """The history that the run starts with."""
        return [*self.history, *self.added]

    def restart(self) -> Entry:
        """Reset the attempt to its state before `open`. Returns a new first entry of the run."""
        self.maker = EntryMaker(self.history, error_text=self.setup.error_text)
        self.recorder = self._state = None
        agent = self.setup.known.get(self.starts_with) or Agent(name=self.starts_with)
        more = {
            "edited": list(self.edited),
            "model": self.model,
            "_resume": self.resume and as_json(self.resume),
            "_tools": [tool.to_dict() for tool in self.tools],
            "_settings": dict(self.settings),
            "_notes": list(self.notes),
            "_askers": list(self.askers),
            # A run whose context is not JSON cannot be continued in another process.
            "_is_inexact": any(context_faults(self.context)),
            "_trace": trace_headers(),
        }
        return self.maker.started(
            self.run_id,
            self.conversation or "",
            agent,
            self.added,
            resume=self.resume,
            context_variables=self.context,
            private={key: value for key, value in more.items() if value},
        )

    # --- execution ---

    @property
    def agent(self) -> Agent:
        """The agent that starts the run. Raises ConfigurationError if this process does not have it."""
        name = self.starts_with
        if (agent := self.setup.known.get(name)) is None:
            raise ConfigurationError(
                f"the run needs the agent {name!r}, which this process does not have; add it to agents="
            )
        return agent

    @cached_property
    def agents(self) -> AgentDirectory:
        """The agents to which the run may hand off, by name."""
        return AgentDirectory((self.agent, *self.setup.known.values()))

    def open(self, recorder: EntryRecorder) -> AsyncGenerator[LoopEvent, None]:
        """Prepare the events of the run, and return them. The run executes and is recorded while the events are read."""
        setup = self.setup
        key = f"conversation:{self.key}" if self.key else f"run:{self.run_id}"
        options = RunOptions(
            self.agent, self.messages, self.context, self.model, max_turns=setup.limits.max_turns, resume=self.resume,
            run_id=self.run_id, owner=RunOwner(key, self.user, self.conversation, setup.results),
        )  # fmt: skip
        swarm, self.recorder = setup.swarm, recorder
        if setup.logs_requests:  # for pages that show everything
            swarm = with_request_log(swarm, lambda request: recorder.add(self.maker.request(request)))

        def wrap(handlers: Handlers) -> Handlers:
            return recorder.wrap(with_client(handlers, self.tools, self.settings, self.notes))

        self._state, events = prepare(swarm, options, deliver_live, recorder.delivery, stream=True, recorder=wrap)
        recorder.use(self._state)
        return events

    def use_record(self, entries: Sequence[Entry]) -> None:
        """End the run with its recorded entries, because they cannot be replayed."""
        folded, self.maker = fold(entries), EntryMaker(self.history, error_text=self.setup.error_text)
        if self.first.fields.get("_is_inexact"):
            folded.context = dict(self.context)
        name = folded.active_agent or self.starts_with
        agent = self.setup.known.get(name) or Agent(name=name)
        self.recorder = self._state = None
        self._unreplayed = recorded_response(folded, self.messages, agent)
        self.maker.follow(folded, self._unreplayed)

    @property
    def has_finished(self) -> bool:
        """Whether the run has finished: it neither failed nor was stopped."""
        return self.recorder is not None and self.recorder.finished is not None

    def response_after(self, error: BaseException | None) -> Response | None:
        """Return the response so far, or None if the run has not started. `error`: the error of a failed run."""
        of_error = getattr(error, "response", None)
        return of_error or (self._unreplayed if self._state is None else self._state.response)

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

    def first_change(self) -> Change:
        """Return the change of the conversation at the start of the run."""
        revision, context = revision_of(self.run_id, 0), dict(self.context)
        return Change(self.base, revision, len(self.history), self.added, self.starts_with, context)

    def last_change(self, response: Response, error: BaseException | None) -> Change:
        """Return the change of the conversation at the end of the run. `error`: the error of a failed run."""
        before = self.messages
        messages = [*before, *response.messages]
        if isinstance(error, RunRefused):
            messages = without_last_question(messages)
        keep = common_messages(before, messages)
        context, _ = storable(response.context_variables, dict(self.context))
        name = response.agent.name
        if response is not self._unreplayed and self.agents.find(name) is not response.agent:
            name = self.starts_with
        return Change(
            revision_of(self.run_id, 0), revision_of(self.run_id, 1), keep, messages[keep:], name, context, response.stop,
            response.unknown_calls,
        )  # fmt: skip


def _resume_of(fields: Mapping[str, Any]) -> Mapping[int, Decision] | Literal[False]:
    recorded: Any = fields.get("_resume", False)  # True in the records of older versions: no call was open
    return {int(index): decision for index, decision in recorded.items()} if is_object(recorded) else False


def _resumed(new: NewRun, stored: Stored, askers: Sequence[str]) -> Mapping[int, Decision] | Literal[False]:
    """Return the decisions about open calls; False if no call is open, and the end of the history has no answer yet."""
    if new.answers and not stored.revision:
        raise ConversationNotFound(str(new.conversation))
    try:
        run_id, complete = asker(stored, next(iter(askers), None)), bool(new.answers)
        answers = [replace(each, run_id=run_id) if run_id and each.run_id in askers else each for each in new.answers]
        decided = decisions(answers, stored.messages, strict=new.strict, complete=complete, last_run=run_id)
    except InvalidRequest as error:
        raise AnswersRefused(error.message, code=error.code) from error
    if decided:
        return decided
    last = stored.messages[-1]["role"] if stored.messages else None
    if last == "user" or (new.continues and last == "tool" and not stored.open_calls):
        return False
    text = "the request adds nothing to the conversation; send a new message or an answer"
    raise AnswersRefused(text, code="nothing_new")


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
            if all(message["content"] in contents for message in messages_of(new)):
                return []
            text = "a request with answers cannot have a new message; send the message after the end of the resumed run"
            raise AnswersRefused(text, code="interrupt_open")
        if stored.open_calls and waiting_entries(stored.messages):
            text = "the conversation has a call that waits for an answer; answer this interrupt first"
            raise AnswersRefused(text, code="interrupt_open")
    messages = messages_of(new) if new.strict else not_stored(messages_of(new), stored.messages)
    return normalize(messages)


def not_stored(messages: Sequence[Message], stored: Sequence[Message]) -> list[Message]:
    """Return the messages that are not yet at the end of the history.

    After a run without an answer, a client sends old messages again.
    """
    count = len(messages)
    while count and [*stored[-count:]] != [*messages[:count]]:
        count -= 1
    return list(messages[count:])


# --- ids of conversations ---


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
    return InvalidRequest(text, code="invalid_request", param="conversation")


def user_prefix(user: str) -> str:
    """Return the prefix of the ids of all conversations of a user in the store."""
    return f"{quote(user, safe='@')}/"


def conversation_id(key: str) -> str:
    """Return the client's id of a conversation: its id in the store without the prefix of the user."""
    return key.partition("/")[2]
