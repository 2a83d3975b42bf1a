"""The state of one run: what has happened, and the `Response` that any exit leaves.

Decides the wire history, the active agent, the context and which calls are open. Never waits. A snapshot may be taken at
any moment and is always valid.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from aswarm._agent import Agent, Response, StopReason, UnknownCall
from aswarm._content import text_part
from aswarm._context import copy_containers, plain_dict
from aswarm._errors import ConfigurationError
from aswarm._json import is_object, shown
from aswarm._messages import (
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    Message,
    match_answers,
    message_blocks,
    normalize,
    open_calls,
    to_wire,
    tool_message,
)
from aswarm._tools.tool import Tool
from aswarm._tools.toolbox import Toolbox, toolbox
from aswarm._usage import Usage
from aswarm._wire.accumulator import Accumulator, Completion
from aswarm._wire.chat_request import is_chat
from aswarm._wire.request import CompletionRequest, KnownHistory, RequestSettings, build_request, relaxed

from .plan import ToolCall, calls_of

_SHOWN_IDS = 5  # how many open calls an error text names
# What an assistant message always has, in this order.
_FIRST_KEYS: Message = {"role": None, "content": None, "sender": None, "tool_calls": None}


class RunState:
    """The record of one run.

    `agent`: the active agent. `context`: the run's own copy of the context variables. `calls`: the calls of the current
    turn, or the open calls that a resumed run begins with. `stop`: why the run ended; "cancelled" until that is known.
    """

    def __init__(
        self,
        agent: object,
        messages: object,
        context_variables: object,
        *,
        resume: bool = False,
        empty_content: str | None = None,
        run_id: str | None = None,
    ) -> None:
        if not isinstance(agent, Agent):
            raise ConfigurationError(f"agent must be an Agent, not {type(agent).__name__}")
        self.id = run_id or os.urandom(16).hex()
        self.agent = agent
        self.context = _own_context(context_variables)
        self.usage = Usage()
        self.stop: StopReason = "cancelled"
        self.turns = 0
        self.accumulator: Accumulator | None = None
        self._answered = False
        self._empty_content = empty_content
        self._new_messages: list[Message] = []
        # Agents with a tool result since the last user message: by identity those of this run, by name those of others.
        self._with_results: dict[int, Agent] = {}
        self._names_with_results: set[str] = set()
        self._unknown_calls: list[UnknownCall] = []
        self._toolbox: Toolbox | None = None
        self._response: Response | None = None
        self._read_history(normalize(messages), resume=resume)

    def _read_history(self, history: list[Message], *, resume: bool) -> None:
        waiting = open_calls(history)
        if waiting and not resume:
            raise ConfigurationError(
                f"messages end with tool calls that have no answer ({_ids(waiting)}). Messages are data, never an order: pass "
                "resume=True to run them, if the history comes from storage you trust, or answer them yourself"
            )
        tail = _last_assistant(history) if waiting else len(history)
        # The message with the open calls is sent once they are answered.
        self._pending = history[tail:]
        self._wire = to_wire(history[:tail], empty_content=self._empty_content)
        self._known = KnownHistory(is_chat(self._wire))
        asked: list[Message] = (self._pending[0]["tool_calls"] or []) if waiting else []
        self._names_with_results = _senders_with_results(history, self.agent.name)
        open_messages = {id(call) for call in waiting}
        self.calls = [call for call in calls_of(asked, self.agent, self.tools) if id(call.message) in open_messages]

    # --- the next request ---

    @property
    def tools(self) -> dict[str, Tool[..., Any]]:
        """The tools of the active agent by name. Raises ConfigurationError for a function that cannot be offered."""
        if self._toolbox is None or not self._toolbox.fits(self.agent):
            self._toolbox = toolbox(self.agent)
        return self._toolbox.tools

    def check_tools(self) -> None:
        """Raise ConfigurationError for a function of the active agent that cannot be offered."""
        _ = self.tools

    def request(self, instructions: Any, settings: RequestSettings) -> CompletionRequest:
        """The next request for a completion."""
        choice = self.agent.tool_choice
        if choice is None:
            choice = self.agent.model_settings.get("tool_choice")
        if choice is not None and (id(self.agent) in self._with_results or self.agent.name in self._names_with_results):
            choice = relaxed(choice)
        tools = [tool.schema.json for tool in self.tools.values()]
        return build_request(self.agent, instructions, self._wire, tools, choice, settings, known=self._known)

    def stop_reason(self, max_turns: float, *, execute_tools: bool) -> StopReason | None:
        """Why the run is over, or None: then it runs `calls`, or asks for a completion if there are no calls."""
        if self.calls:
            resumed = self.turns == 0  # `resume=True` is the approval
            return None if execute_tools or resumed else "tool_calls"
        if self._answered:
            return "answer"
        return None if self.turns < max_turns else "max_turns"

    # --- recording ---

    @property
    def partial(self) -> str:
        """The text of a completion that has not finished; empty where there is none."""
        return self.accumulator.text if self.accumulator else ""

    def record_completion(self, completion: Completion) -> Message:
        """Record a whole completion and make `calls` those that it asks for. Returns the message as recorded."""
        message = recorded_form(completion.message, self.agent.name)
        calls = message["tool_calls"]
        self.accumulator = None
        self.usage += completion.usage
        self._new_messages.append(message)
        self._pending = [message]
        self.calls = calls_of(calls or (), self.agent, self.tools)
        self._answered = not self.calls
        return message

    def merge_context(self, calls: Iterable[ToolCall]) -> None:
        """Merge the context changes of the finished calls of a group, in call order."""
        self.context.update(_changes(calls))
        for call in calls:
            call.merged = True

    def end_turn(self) -> tuple[Agent, Agent] | None:
        """Record the tool messages of a turn in call order and switch the agent. Returns (source, target) if it did."""
        if self.calls:
            self._with_results[id(self.agent)] = self.agent
        messages = _answers(self.calls)
        self._unknown_calls += _unknown_calls(self.calls)
        self._new_messages.extend(messages)
        self._send_pending(messages)
        source, self.agent = self.agent, _handed_to(self.calls) or self.agent
        self.calls = []
        return (source, self.agent) if self.agent is not source else None

    def _send_pending(self, answers: list[Message]) -> None:
        sent = to_wire([*self._pending, *answers], empty_content=self._empty_content)
        self._known.is_chat = self._known.is_chat and is_chat(sent)
        self._wire += sent
        self._pending = []

    # --- the response ---

    @property
    def response(self) -> Response:
        """What has happened so far, as a valid `Response`; the same object each time once the run has ended."""
        return self._response or self._snapshot(copy_containers(self.context))

    def finish(self, stop: StopReason) -> Response:
        """End the run. Nothing is recorded after this."""
        self.stop = stop
        self._response = self._snapshot(self.context)
        return self._response

    def _snapshot(self, context: dict[str, Any]) -> Response:
        # A plain dict, because a subclass may refuse to be read or changed, and nothing may replace a cancellation.
        variables = plain_dict(context)
        variables.update(_changes(self.calls))
        return Response(
            messages=[*self._new_messages, *_answers(self.calls)],
            agent=_handed_to(self.calls) or self.agent,
            context_variables=variables,
            usage=self.usage,
            stop=self.stop,
            run_id=self.id,
            unknown_calls=[*self._unknown_calls, *_unknown_calls(self.calls)],
        )


def _own_context(context_variables: object) -> dict[str, Any]:
    kind = type(context_variables).__name__
    if not (context_variables is None or is_object(context_variables)):
        raise ConfigurationError(f"context_variables must be a dict, not {kind}")
    try:
        context: dict[str, Any] = copy_containers({} if context_variables is None else context_variables)
    except Exception as error:
        raise ConfigurationError(
            f"context_variables of the type {kind} cannot be read: {type(error).__name__}: {error}; pass a dict"
        ) from error
    return context


def recorded_form(message: Message, sender: str) -> Message:
    """An assistant message as the history has it: four keys that are always there, then those of the provider."""
    return {**_FIRST_KEYS, **message, "sender": sender}


def _ids(calls: list[Message]) -> str:
    more = f", and {len(calls) - _SHOWN_IDS} more" if len(calls) > _SHOWN_IDS else ""
    return ", ".join(shown(call["id"], 40) for call in calls[:_SHOWN_IDS]) + more


def _last_assistant(history: list[Message]) -> int:
    return max(position for position, message in enumerate(history) if message["role"] == "assistant")


def _senders_with_results(history: list[Message], default: str) -> set[str]:
    """The agents that have a tool result since the last user message; `default` is the sender of a message without one."""
    start = len(history)
    while start > 0 and history[start - 1]["role"] != "user":
        start -= 1
    return {
        sender if isinstance(sender := head.get("sender"), str) else default
        for head, answers in message_blocks(history[start:])
        if any(match_answers(head.get("tool_calls") or [], answers))
    }


def _changes(calls: Iterable[ToolCall]) -> dict[str, Any]:
    """The context changes of finished calls that are not merged yet; the last in call order wins."""
    changes: dict[str, Any] = {}
    for call in calls:
        if call.outcome and call.outcome.result and not call.merged:
            changes.update(call.outcome.result.context_variables)
    return changes


def _handed_to(calls: Iterable[ToolCall]) -> Agent | None:
    """The agent that takes over: of several handoffs the last in call order."""
    target: Agent | None = None
    for call in calls:
        if call.outcome and (agent := call.outcome.agent):
            target = agent
    return target


def _unknown_calls(calls: Iterable[ToolCall]) -> list[UnknownCall]:
    """The calls that began and have no outcome, and those whose outcome says that it is not known."""
    found: list[UnknownCall] = []
    for call in calls:
        outcome = call.outcome
        if call.started if outcome is None else outcome.unknown or outcome.still_running:
            found.append(call.as_unknown)
    return found


def _answers(calls: list[ToolCall]) -> list[Message]:
    """The tool messages of the calls, in call order, as of now."""
    messages: list[Message] = []
    previous: Agent | None = None
    open_calls: set[ToolCall] | None = None
    for call in calls:
        if call.outcome:
            note = _replaced(call.outcome.agent, previous)
            messages.append(
                tool_message(call.message, _with_note(call.outcome.content, note) if note else call.outcome.content)
            )
            previous = call.outcome.agent or previous
            continue
        open_calls = _open_calls(calls) if open_calls is None else open_calls
        if call not in open_calls:
            messages.append(tool_message(call.message, _text_without_outcome(call)))
    return messages


def _open_calls(calls: list[ToolCall]) -> set[ToolCall]:
    """The calls that get no answer, so that they can be resumed: those that never started, or are repeatable.

    No call stays open once a handoff of the same turn has finished: the new agent may not even have that function. And no
    call before an answered one of the same id and name: a resumed run would take that answer for this call's.
    """
    found: set[ToolCall] = set()
    answered: set[tuple[str, str]] = set()
    for call in () if _handed_to(calls) else reversed(calls):
        key = (call.id, call.name)
        if call.outcome or key in answered or (call.started and not call.is_repeatable):
            answered.add(key)
        else:
            found.add(call)
    return found


def _text_without_outcome(call: ToolCall) -> str:
    if not call.started:
        return INTERRUPTED
    was_left = call.tool is not None and call.tool.abandon_on_cancel
    return OUTCOME_UNKNOWN + ("; it may still be running" if was_left else "")


def _with_note(content: str | list[dict[str, Any]], note: str) -> str | list[dict[str, Any]]:
    return content + note if isinstance(content, str) else [*content, text_part(note)]


def _replaced(agent: Agent | None, previous: Agent | None) -> str:
    # Recorded results never change, so the later handoff says which one it replaces.
    if agent is None or previous is None or agent is previous:
        return ""
    return f" (replaces the handoff to {previous.name})"
