"""`ConversationSink`: writes a run to its conversation in a `Store` while it runs. It makes no entries.

Each write stores the current `run.response`: the response that the run would have if it were cancelled at this moment. So a
dead process leaves the same state as a cancelled run. Finished calls have their results, a started call is answered
"cancelled; its outcome is unknown", and other calls are open. The stored state needs no repair when it is loaded.

A write has only the messages that differ from the stored ones. If nothing has changed since the last write, `commit` writes
nothing. Calls that wait for a write at the same time share one write.

The functions after the class decide what a run adds to a stored history, and which part of the result a store can keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from aswarm._log.stored import Change, Conflict, Stored
from aswarm._record.entries import Entry
from aswarm._run.state import RunState
from aswarm._runtime import clocks
from aswarm._runtime.backend import raise_if_own
from aswarm._values.agent import Agent, Response
from aswarm._values.context import context_error, context_faults
from aswarm._values.errors import AswarmError, CallerMistake, RunRefused
from aswarm._values.json import sendable_data
from aswarm._values.messages import (
    OUTCOME_UNKNOWN,
    Message,
    call_arguments,
    call_name,
    last_head,
    match_answers,
    message_blocks,
    settled,
    started_inside,
    unanswered_calls,
)

if TYPE_CHECKING:
    from ._store import Store  # `Store.conversation` makes a `Conversation`


def with_sendable_text(stored: Stored) -> Stored:
    """Return the conversation with messages that UTF-8 can encode. Older versions stored any text."""
    messages = sendable_data(stored.messages)
    return stored if messages is stored.messages else replace(stored, messages=messages)


def with_new(stored: Stored, messages: list[Message]) -> list[Message]:
    """Return the stored history with the new messages. A tool message answers an open call; any other message closes all of them.

    Otherwise the history would have unanswered calls before its end, which the API refuses.
    """
    answers = 0
    while answers < len(messages) and messages[answers]["role"] == "tool":
        answers += 1
    history = [*stored.messages, *messages[:answers]]
    if answers == len(messages):
        return history
    return [*closed(history, stored), *messages[answers:]]


def closed(history: list[Message], stored: Stored) -> list[Message]:
    """Return the history without open calls: each open call gets an answer, in call order."""
    if not unanswered_calls(history):
        return history
    end = last_head(history)
    [(head, answers)] = message_blocks(history[end:])
    calls: list[Message] = head["tool_calls"]
    matched, started = match_answers(calls, answers), started_inside(head, history[end + 1 :])
    unknown = _unknown(stored, zip(calls, matched, strict=True))
    texts = {at: OUTCOME_UNKNOWN for at, call in enumerate(calls) if at in started or _key(call) in unknown}
    return [*history[: end + 1], *filter(None, settled(calls, matched, texts))]


def _unknown(stored: Stored, pairs: Iterable[tuple[Message, Message | None]]) -> Counter[tuple[str, str, str]]:
    """Return the calls with an unknown outcome, except calls whose answers say that it is unknown. A provider may repeat an id."""
    unknown = Counter((call.id, call.name, call.arguments) for call in stored.unknown_calls)
    unknown.subtract(
        _key(call) for call, answer in pairs if answer and str(answer["content"]).startswith(OUTCOME_UNKNOWN)
    )
    return +unknown


def _key(call: Message) -> tuple[str, str, str]:
    return str(call["id"]), call_name(call), call_arguments(call)


def without_last_question(messages: list[Message]) -> list[Message]:
    """Return the messages without the last messages of the user, which a guard has refused: the next run must not send them."""
    end = len(messages)
    while end and messages[end - 1]["role"] == "user":
        end -= 1
    return messages[:end]


def common_messages(before: list[Message], after: list[Message]) -> int:
    """Return the number of equal messages at the start of both lists."""
    for position, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new and old != new:
            return position
    return min(len(before), len(after))


def storable(context: dict[Any, Any], stored: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the context variables to store, and the first fault or None.

    A variable that is not JSON keeps its stored value.
    """
    faulty = dict(context_faults(context))
    if not faulty:
        return context, None
    kept = {key: value for key, value in context.items() if key not in faulty}
    kept |= {key: stored[key] for key in faulty if key in stored}
    return kept, context_error(next(iter(faulty.values())))


class ConversationSink:
    """Writes one run of one conversation. `state`: the state of the run; set it before the first `commit`.

    `history`: the messages that the run starts with. `check_agent`: raises CallerMistake for an agent that a later run could
    not find by its name.
    """

    awaits_results = True
    state: RunState

    def __init__(
        self, store: Store, stored: Stored, history: list[Message], check_agent: Callable[[Agent], None]
    ) -> None:
        self.conversation_id = stored.id
        self._store = store
        self._stored = stored  # the conversation after the last write of this run
        self._history = history
        self._check_agent = check_agent
        self._agent: Agent | None = None  # the last checked agent
        self._uncertain: Change | None = None  # the change of an interrupted write: it may be in the store
        self._fault: str | None = None  # the reason why that change is not complete
        self._failure: Exception | None = None
        self._last: Response | None = None
        self._is_refused = False
        self._wanted = 0  # the number of calls of `commit`
        self._changed = 0  # the number of the last call of `commit` whose state is in `_uncertain`, or stored
        self._written = 0  # the number of the last call of `commit` whose state is in the store
        self._writing: anyio.Event | None = None

    def add(self, entry: Entry) -> None:
        """Do nothing: a conversation has no entries."""

    async def commit(self) -> None:
        """Write the current state of the run, and wait until it is stored. Raises the error of the write."""
        self._wanted += 1
        wanted = self._wanted
        while self._written < wanted:
            if self._failure is not None:
                raise self._failure
            if self._writing is not None:
                await self._writing.wait()
                continue
            self._writing = written = anyio.Event()
            try:
                if (change := self._uncertain or self._next_change()) is not None:
                    await self._store.write(self.conversation_id, change)
                    self._stored = _changed(self._stored, change)
                self._uncertain, self._written = None, self._changed
                if self._fault is not None:
                    raise CallerMistake(self._fault)
            except anyio.get_cancelled_exc_class() as error:  # the next turn of the loop repeats the write
                await raise_if_own(error)
            except Exception as error:  # noqa: BLE001 - raised above, or by `finish`
                self._failure = error
                if isinstance(error, Conflict):
                    error.messages = [*self._history, *(self._last or self.state.response).messages]
            finally:
                self._writing = None
                written.set()

    async def finish(self, response: Response | None, error: Exception | None) -> None:
        """Write the end of the run, even if the current task is cancelled. A write that has failed is tried again.

        Raises the error of the write. An AswarmError has the response of the run.
        """
        response = response or self.state.response
        has_conflict = isinstance(self._failure, Conflict)
        if not has_conflict and (self._failure is not None or self._last is None):
            self._last, self._is_refused = response, isinstance(error, RunRefused)
            self._failure = None
            await self._commit_shielded()
        if self._failure is not None:
            if isinstance(self._failure, AswarmError) and self._failure.response is None:
                self._failure.response = response
            raise self._failure

    async def _commit_shielded(self) -> None:
        interrupted: BaseException | None = None
        wanted = self._wanted + 1
        with anyio.CancelScope(shield=True):
            while self._written < wanted and self._failure is None:
                try:
                    await self.commit()
                except anyio.get_cancelled_exc_class() as error:  # a plain task.cancel() ignores the shield
                    interrupted = error
                except Exception:
                    if self._failure is None:  # not of the write, which `finish` raises: the event loop is closed
                        raise
        if interrupted is not None:
            raise interrupted

    def _next_change(self) -> Change | None:
        """Return the next change, or None if nothing has changed. Raises CallerMistake for a state that cannot be stored."""
        stored, response, self._changed, self._fault = (
            self._stored,
            self._last or self.state.response,
            self._wanted,
            None,
        )
        messages = [*self._history, *response.messages]
        if self._is_refused:
            messages = without_last_question(messages)
        agent = (
            stored.agent
            if response.agent is not self._agent and not self._is_known(response.agent)
            else response.agent.name
        )
        context = response.context_variables
        if context:
            context, fault = storable(context, stored.context_variables)
            self._fault = self._fault or fault
        if self._fault is not None and self._last is None:
            raise CallerMistake(self._fault)
        stop = None if self._last is None else response.stop
        keep, unknown = common_messages(stored.messages, messages), response.unknown_calls
        is_stored = (
            len(stored.messages) == len(messages) == keep
            and (stored.agent, stored.stop, stored.unknown_calls) == (agent, stop, unknown)
            and repr(stored.context_variables) == repr(context)  # as text, because 1 == True == 1.0
        )
        if not (is_stored and stored.revision):
            revision = clocks.urandom(8).hex()
            self._uncertain = Change(stored.revision, revision, keep, messages[keep:], agent, context, stop, unknown)
            return self._uncertain
        return None

    def _is_known(self, agent: Agent) -> bool:
        """Return whether a later run can find the agent. If not, this is a fault."""
        try:
            self._check_agent(agent)
        except CallerMistake as error:
            self._fault = str(error)
            return False
        self._agent = agent
        return True


def _changed(stored: Stored, change: Change) -> Stored:
    return replace(
        stored,
        revision=change.revision,
        messages=[*stored.messages[: change.keep], *change.messages],
        agent=change.agent,
        context_variables=change.context_variables,
        stop=change.stop,
        unknown_calls=list(change.unknown_calls),
    )
