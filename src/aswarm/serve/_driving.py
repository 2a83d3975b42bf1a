"""One run between the conversation and the log: loads the history, streams the run, makes the entries.

Decides which agent begins, and whether decisions fit the open calls. It holds no log and no task.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, cast
from urllib.parse import quote

from aswarm._agent import Agent, Response
from aswarm._decisions import Decision, waiting_entries
from aswarm._errors import AswarmError, ConfigurationError
from aswarm._events import CompletionFinished, RunFinished, TurnStarted
from aswarm._messages import Message
from aswarm._run.streams import EventStream
from aswarm._swarm import AsyncSwarm
from aswarm._usage import Usage
from aswarm._wire.request import CompletionRequest
from aswarm.conversations import Change, Conversation, Store, Stored
from aswarm.conversations._conversation import stream_from
from aswarm.conversations._recorded_run import with_new
from aswarm.conversations._records import checked_id
from aswarm.graph._find import reachable_agents

from ._entries import Entry
from ._entry_maker import EntryMaker, ErrorText, general_error
from ._extras import RunExtras, run_extras, with_extras
from ._requests import RequestError, decisions
from ._runs import AgentNotFound, AnswersRefused, ConversationNotFound, Limits, NewRun

_LONGEST = 200
TASK_MODEL = "helper"  # the name under which clients know the agent for titles and the like


def conversation_key(user: str, conversation: str) -> str:
    """The id under which the store has a conversation of a user. Those of different users are never equal.

    Raises RequestError for an id of a conversation that no store or path takes, and ConfigurationError for such a user: the
    first is the client's, the second is that of `auth`.
    """
    if not 0 < len(user) <= _LONGEST:
        raise ConfigurationError(f"the id of a user must have 1 to {_LONGEST} characters, not {len(user)}")
    if not 0 < len(conversation) <= _LONGEST:
        raise _invalid_id(f"the id of a conversation must have 1 to {_LONGEST} characters, not {len(conversation)}")
    if "/" in conversation:
        raise _invalid_id("the id of a conversation is a part of a path and may not have a slash; use another id")
    try:
        return checked_id(f"{user_prefix(user)}{conversation}")
    except ConfigurationError as error:
        raise _invalid_id("the id of a conversation must be text that a database takes") from error


def _invalid_id(text: str) -> RequestError:
    return RequestError(422, "invalid_request", text, param="conversation")


def user_prefix(user: str) -> str:
    """What the ids of all conversations of a user begin with in the store."""
    return f"{quote(user, safe='@')}/"


def conversation_id(key: str) -> str:
    """The id of a conversation, as its user knows it."""
    return key.partition("/")[2]


def agents_by_name(agents: Agent | Iterable[Agent] | Mapping[str, Agent]) -> dict[str, Agent]:
    """The agents that clients may name. Raises ConfigurationError for none, for two of one name, and for a key that is no name."""
    if isinstance(agents, Mapping):
        named = cast("Mapping[str, Agent]", agents)
        for key, agent in named.items():
            if key != agent.name:
                raise ConfigurationError(
                    f"agents has the key {key!r} for the agent {agent.name!r}. Clients and stored conversations know an agent by "
                    "its name: use the name as the key, or pass a list"
                )
        listed = [*named.values()]
    else:
        listed = [agents] if isinstance(agents, Agent) else [*agents]
    found = {agent.name: agent for agent in listed}
    if not found or len(found) < len(listed):
        raise ConfigurationError("agents must be a list of at least one Agent, and each needs a name of its own")
    return found


def _with_reachable(agents: Mapping[str, Agent]) -> dict[str, Agent]:
    """The agents, and those that they can hand off to: so that no run has to search for them."""
    reachable = [each for agent in agents.values() for each in reachable_agents(agent)]
    by_name: dict[str, set[int]] = {}
    for agent in reachable:
        by_name.setdefault(agent.name, set()).add(id(agent))
    return {**{each.name: each for each in reachable if len(by_name[each.name]) == 1}, **agents}


class Drivers:
    """Makes the driver of each run: what all runs of a service share."""

    def __init__(
        self,
        swarm: AsyncSwarm,
        store: Store,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        limits: Limits,
        error_text: ErrorText | None = None,
    ) -> None:
        self.swarm = with_extras(swarm)
        self.store = store
        self.agents = agents_by_name(agents)
        self.known = _with_reachable(self.agents)
        self.limits = limits
        self.error_text = error_text or general_error
        self.task_agent: Agent | None = None
        self.logs_requests = False

    def agent(self, name: str | None) -> Agent:
        """The agent of this name; the first one for None. Raises AgentNotFound."""
        if name is None:
            return next(iter(self.agents.values()))
        if name in self.agents:
            return self.agents[name]
        if name == TASK_MODEL and self.task_agent is not None:
            return self.task_agent
        raise AgentNotFound(name)

    def conversation(self, user: str, name: str, agent: str | None, context: Mapping[str, Any] | None) -> Conversation:
        """A conversation of a user. `agent` and `context` are those that a new one begins with."""
        return Conversation(
            self.store,
            conversation_key(user, name),
            self.swarm,
            agent=self.agent(agent),
            agents=self.known.values(),
            context_variables=context,
        )

    async def recover(
        self, user: str, conversation: str, entries: Sequence[Entry]
    ) -> tuple[EntryMaker, Response | None]:
        """What the log of a run needs whose process has died: a maker for its last entries, and what the run had done.

        The conversation has more than the log, which is written a moment later. There is no Response if the conversation was
        changed since. Raises Conflict, and what the store raises.
        """
        key, first = conversation_key(user, conversation), entries[0].fields
        await self._restore(key, first)
        stored = await self.store.load(key) or Stored(key)
        agent = self.known.get(stored.agent) or Agent(name=stored.agent or first["agent"])
        maker = EntryMaker.of_log(entries, agent, stored.messages)
        start = first["before"] + len(first["messages"])
        if stored.messages[first["before"] : start] != first["messages"]:
            return maker, None
        response: Response = Response(
            messages=stored.messages[start:],
            agent=agent,
            context_variables=stored.context_variables,
            usage=_usage(maker.folded.usage),
            run_id=first["run_id"],
            stop="cancelled",
            unknown_calls=stored.unknown_calls,
        )
        return maker, response

    async def _restore(self, key: str, first: Mapping[str, Any]) -> None:
        """Add the messages of a run to its conversation: its process may have died before it could write them.

        Nothing is added if the conversation has them, or if it has changed since.
        """
        before, messages = first["before"], first["messages"]
        stored = await self.store.load(key) or Stored(key)
        rest = stored.messages[before:]  # the answers to open calls may stand in another order in `messages`
        if len(stored.messages) < before or len(rest) >= len(messages) or any(each not in messages for each in rest):
            return
        agent, context = stored.agent or first["agent"], first["context_variables"]
        await self.store.write(key, Change(stored.revision, os.urandom(8).hex(), before, messages, agent, context))

    def driver(self, new: NewRun) -> Driver:
        """The driver of a new run. Raises AgentNotFound, and RequestError for an id that no store takes."""
        agent = self.agent(new.agent)
        chat = (
            None
            if new.conversation is None
            else self.conversation(new.user, new.conversation, new.agent, new.context_variables)
        )
        return Driver(self, new, agent, chat)


class Driver:
    """Drives one run. `load` comes first, then `drive`, then `endings`.

    `new`: what the run begins with. `agent`: the one that a new conversation begins with. `stored`: the conversation as it was
    loaded. `last_run`: as given to `load`.
    """

    def __init__(self, drivers: Drivers, new: NewRun, agent: Agent, chat: Conversation | None) -> None:
        self.run_id = uuid.uuid4().hex if new.run_id is None else new.run_id
        self._drivers = drivers
        self.new = new
        self.agent = agent
        self._chat = chat
        self._messages: list[Message] = []
        self._resume: Mapping[int, Decision] | Literal[True] | None = None
        self.stored = Stored("")
        self.last_run: str | None = None
        self._maker = EntryMaker()
        self._run: EventStream | None = None
        self._finished: RunFinished | None = None
        self._requests: list[CompletionRequest] = []  # those that have no entry yet
        self._is_in_turn = False  # whether the last turn of the log waits for its completion

    async def load(self, last_run: str | None) -> Entry:
        """Load the conversation, and make the first entry. Raises ConversationNotFound and AnswersRefused.

        `last_run`: the id of the run before this one in the conversation.
        """
        new = self.new
        self.stored = stored = await self._load_stored()
        self.last_run = last_run
        self._messages = _new_messages(new, stored)
        self._resume = self._resumed(stored, last_run)
        history, added = _split(stored, self._messages)
        self._maker = EntryMaker(history, error_text=self._drivers.error_text)
        return self._maker.started(
            self.run_id,
            new.conversation or "",
            self._drivers.known.get(stored.agent) or self.agent,
            added,
            resume=False if self._resume is None or self._resume is True else self._resume,
            context_variables={**stored.context_variables, **(new.client_context or {})},
        )

    async def _load_stored(self) -> Stored:
        chat = self._chat
        if chat is None:
            return Stored("")
        stored = await chat.load()
        return await _without_answer(self._drivers, chat, stored) if self.new.regenerate else stored

    def _resumed(self, stored: Stored, last_run: str | None) -> Mapping[int, Decision] | Literal[True] | None:
        """What the run resumes with: decisions; True for a history without an answer at its end; None for new messages."""
        new = self.new
        if self._messages:
            return None
        if new.answers and not stored.revision:
            raise ConversationNotFound(str(new.conversation))
        try:
            found = decisions(
                new.answers, stored.messages, must_fit=new.must_fit, complete=bool(new.answers), last_run=last_run
            )
        except RequestError as error:
            raise AnswersRefused(error.message, error.code, error.status) from error
        if found:
            return found
        last = stored.messages[-1]["role"] if stored.messages else None
        if last == "user" or (new.continues and last == "tool" and not stored.waiting):
            return True
        raise AnswersRefused("the request has nothing that the conversation does not have already", "nothing_new", 409)

    async def drive(self, add: Callable[[Entry], None]) -> None:
        """Run to the end. `add` gets the entries but the last ones. Raises what the run raises."""

        def log_request(request: CompletionRequest) -> None:
            self._requests.append(request)
            self._add_requests(add)

        run_extras.set(RunExtras(self.new.tools, log_request if self._drivers.logs_requests else None))
        async with self._stream() as run:
            self._run = run
            async for event in run:
                if isinstance(event, RunFinished):
                    self._finished = event
                    continue
                for entry in self._maker.event(event, self._response):
                    add(entry)
                if isinstance(event, TurnStarted | CompletionFinished):
                    self._is_in_turn = isinstance(event, TurnStarted)
                    self._add_requests(add)

    def _add_requests(self, add: Callable[[Entry], None]) -> None:
        """Add the requests of the turn that the log is in. A request may be noticed before the event of its turn is read."""
        if self._is_in_turn:
            for request in self._requests:
                add(self._maker.request(request))
            self._requests.clear()

    def _stream(self) -> AbstractAsyncContextManager[EventStream]:
        new, chat, limits = self.new, self._chat, self._drivers.limits
        if chat is None:
            return self._drivers.swarm.stream(
                self.agent, list(new.messages), new.context_variables, max_turns=limits.max_turns, run_id=self.run_id
            )
        if self._resume is not None:
            return chat.resume_stream(
                self._resume,
                new.client_context,
                max_turns=limits.max_turns,
                run_id=self.run_id,
                revision=self.stored.revision,
            )
        return stream_from(
            chat, self.stored, self._messages, new.client_context, max_turns=limits.max_turns, run_id=self.run_id
        )

    def _response(self) -> Response:
        assert self._run is not None  # noqa: S101 - it is set before any event
        return self._run.response

    @property
    def has_finished(self) -> bool:
        """Whether the run has ended by itself."""
        return self._finished is not None

    def response_after(self, error: BaseException | None) -> Response | None:
        """What the run has done so far; None if it has not begun. `error`: what has ended it."""
        of_error = error.response if isinstance(error, AswarmError) else None
        return of_error or (None if self._run is None else self._run.response)

    def endings(self, reason: str | None, error: BaseException | None) -> list[Entry]:
        """The last entries: of the end that the run has had, of an error, or of a run that was stopped for a reason."""
        response = self.response_after(error)
        if error is not None:
            return self._maker.failed(error, response)
        if self._finished is not None:
            return self._maker.event(self._finished, self._response)
        return self._maker.stopped(reason or "cancelled", response)


def _usage(counts: Mapping[str, Any]) -> Usage:
    return Usage(**counts)


def _split(stored: Stored, messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """The history that stays, and what a run with these messages begins by adding: calls that were open are closed."""
    whole = with_new(stored, messages) if messages else stored.messages
    pairs = zip(stored.messages, whole, strict=False)
    same = next((at for at, (before, now) in enumerate(pairs) if before != now), len(stored.messages))
    return whole[:same], whole[same:]


def _new_messages(new: NewRun, stored: Stored) -> list[Message]:
    """The messages of a request that are new. Raises AnswersRefused for one that `open_calls_first` does not allow."""
    if new.open_calls_first and new.messages:
        if new.answers and new.must_fit:
            # The client may send its history without the message of the assistant.
            known = [message["content"] for message in stored.messages if message["role"] == "user"]
            if all(message["content"] in known for message in new.messages):
                return []
            text = "a request with answers cannot have a new message; send the message once the resumed run has ended"
            raise AnswersRefused(text, "interrupt_open", 409)
        if stored.waiting and waiting_entries(stored.messages):
            text = "the conversation has a call that waits for an answer; answer this interrupt first"
            raise AnswersRefused(text, "interrupt_open", 409)
    return list(new.messages) if new.must_fit else not_stored(new.messages, stored.messages)


def not_stored(messages: Sequence[Message], stored: Sequence[Message]) -> list[Message]:
    """The messages without those that the history ends with: a client sends them again after a run without an answer."""
    count = len(messages)
    while count and [*stored[-count:]] != [*messages[:count]]:
        count -= 1
    return list(messages[count:])


async def _without_answer(drivers: Drivers, chat: Conversation, stored: Stored) -> Stored:
    """The conversation, of which everything after the last message of the user is taken back."""
    users = [at for at, message in enumerate(stored.messages) if message["role"] == "user"]
    before = await drivers.store.load(chat.id, until=users[-1] + 1) if users else None
    if before is None:
        raise AnswersRefused("the conversation has no message whose answer could be made again", "nothing_new", 409)
    agent = drivers.known.get(before.agent)
    await chat.replace(before.messages, agent=agent, context_variables=before.context_variables)
    return await chat.load()
