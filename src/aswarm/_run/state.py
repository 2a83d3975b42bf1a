"""The state of one run: what has happened, and the `Response` that any exit leaves.

Decides the wire history, the active agent, the context and which calls are open. Never waits. A snapshot may be taken at
any moment and is always valid.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from aswarm._agent import Agent, Response, StopReason, UnknownCall, asked_for
from aswarm._context import copy_containers, plain_dict
from aswarm._decisions import Decisions, OpenCall, open_call, waiting_entries
from aswarm._errors import AswarmError, ConfigurationError, RunError
from aswarm._json import is_object, shown
from aswarm._messages import WAITING, Message, match_answers, message_blocks, normalize, open_calls, to_wire
from aswarm._output import Output
from aswarm._tools.tool import Tool
from aswarm._tools.toolbox import Toolbox, toolbox
from aswarm._wire.accumulator import Accumulator, Completion
from aswarm._wire.chat_request import is_chat
from aswarm._wire.request import CompletionRequest, RequestSettings, build_request, relaxed
from aswarm._wire.responses_input import KnownHistory

from .answers import (
    answers_of,
    changes_of,
    entry_of,
    handed_to,
    kept_open,
    open_calls_of,
    unknown_calls_of,
    waiting_message,
    waits,
)
from .budget_control import BudgetControl
from .plan import ToolCall, calls_of
from .resuming import decide, named_ids
from .sent_history import SentHistory
from .spending import Spending
from .typed_answers import TypedAnswers, is_settled

logger = logging.getLogger("aswarm")

# Called with the response and the error of a run that has ended; None if it ended without an error.
EndCallback: TypeAlias = Callable[[Response, AswarmError | None], None]

# What an assistant message always has, in this order.
_FIRST_KEYS: Message = {"role": None, "content": None, "sender": None, "tool_calls": None}


class RunState:
    """The record of one run.

    `agent`: the active agent. `context`: the run's own copy of the context variables. `calls`: the calls of the current
    turn, or the open calls that a resumed run begins with. `stop`: why the run ended; "cancelled" until that is known.
    `budget`: what the budgets let it do; None without a budget. `is_cut`: the deadline of a budget cut the current completion.
    `end_callbacks`: called once, in this order, when the run ends.
    """

    def __init__(
        self,
        agent: object,
        messages: object,
        context_variables: object,
        *,
        resume: bool | Decisions = False,
        empty_content: str | None = None,
        run_id: str | None = None,
        spending: Spending | None = None,
        output: Output[Any] | None = None,
    ) -> None:
        if not isinstance(agent, Agent):
            raise ConfigurationError(f"agent must be an Agent, not {type(agent).__name__}")
        self.id = run_id or os.urandom(16).hex()
        self.agent = agent
        self.context = _own_context(context_variables)
        self.spending = spending or Spending()
        is_limited = spending is not None and any(each.budget for each in spending.chain())
        self.budget = BudgetControl(self.spending, agent, self.id) if is_limited else None
        self.is_cut = self.may_be_cut = False
        self.end_callbacks: tuple[EndCallback, ...] = ()
        self.stop: StopReason = "cancelled"
        self.turns = 0
        self.accumulator: Accumulator | None = None
        self._answered = False
        self._waits = False
        self._recorded: Mapping[int, Mapping[str, Any]] = {}  # what the history says of the calls that wait
        self._empty_content = empty_content
        self._new_messages: list[Message] = []
        self._unsent: list[Message] = []  # messages of the user that came while the run was at work
        self.has_ended = False
        # Agents with a tool result since the last user message: by identity those of this run, by name those of others.
        self._with_results: dict[int, Agent] = {}
        self._names_with_results: set[str] = set()
        self._unknown_calls: list[UnknownCall] = []
        self._toolbox: Toolbox | None = None
        self._response: Response | None = None
        self._output = output
        self._typed: TypedAnswers | None = None  # if an answer must have a type
        self._correction: Message | None = None  # what the next request says of an answer that cannot be used
        if output is not None or agent.output is not None:
            self._typed = TypedAnswers(output)
        self._read_history(normalize(messages), resume=resume)

    def _read_history(self, history: list[Message], *, resume: bool | Decisions) -> None:
        unanswered = open_calls(history)
        if unanswered and resume is False:
            raise ConfigurationError(
                f"messages end with tool calls that have no answer ({named_ids([call['id'] for call in unanswered])}). Messages are data, never an order. "
                "Pass resume={'call_1': True}, with a decision for each call, or resume=True to run them all, if the history comes "
                "from storage you trust; or answer them yourself"
            )
        if not unanswered and not isinstance(resume, bool) and resume:
            raise ConfigurationError(
                f"resume has decisions, but messages have no open calls: {shown(dict(resume), 200)}; the calls may have been "
                'decided already. Leave out resume, or pass the messages of the run that stopped with stop="waiting"'
            )
        tail = _last_assistant(history) if unanswered else len(history)
        # The message with the open calls is sent once they are answered.
        self._pending = history[tail:]
        self._wire = to_wire(history[:tail], empty_content=self._empty_content)
        self._known = KnownHistory(is_chat(self._wire))
        self._before = history
        self._sent: SentHistory | None = None  # once an agent has a `history` function
        self._names_with_results = _senders_with_results(history, self.agent.name)
        asked: list[Message] = (self._pending[0]["tool_calls"] or []) if unanswered else []
        are_open = {id(call) for call in unanswered}
        self.calls = [call for call in calls_of(asked, self.agent, self.tools) if id(call.message) in are_open]
        if self.calls:
            entries = waiting_entries(history)
            self._recorded = entries or {}
            decide(self.calls, resume, entries)
            if self._typed is not None:
                self._typed.settle(self.calls)

    @property
    def settled(self) -> list[Message]:
        """The history on the wire, up to the last message whose calls are all answered."""
        return self._wire.copy()

    # --- the next request ---

    @property
    def tools(self) -> Mapping[str, Tool[..., Any]]:
        """The tools of the active agent by name. Raises ConfigurationError for a function that cannot be offered."""
        if self._toolbox is None or not self._toolbox.fits(self.agent):
            self._toolbox = toolbox(self.agent)
        functions = self._toolbox.tools
        return functions if self._typed is None else self._typed.tools(self.agent, functions)

    def check_tools(self) -> None:
        """Raise ConfigurationError for a function of the active agent that cannot be offered."""
        _ = self.tools

    def request(self, instructions: Any, settings: RequestSettings) -> CompletionRequest:
        """The next request for a completion."""
        if self._correction is not None:
            self._new_messages.append(self._correction)
            self._send_pending([self._correction])
            self._correction = None
        choice = self.agent.tool_choice
        if choice is None:
            choice = self.agent.model_settings.get("tool_choice")
        if self.budget is not None and self.budget.is_last:
            choice = "none"
        elif choice is not None and (
            id(self.agent) in self._with_results or self.agent.name in self._names_with_results
        ):
            choice = relaxed(choice)
        tools = [tool.schema.json for tool in self.tools.values()]
        messages, known = self._wire, self._known
        if (function := self.agent.history) is not None:
            self._sent = self._sent or SentHistory(self._before, self._new_messages, self._empty_content)
            messages, known = self._sent.of(self.agent, function)
        request = build_request(self.agent, instructions, messages, tools, choice, settings, known=known)
        if self.budget is not None:
            self.budget.check_price(request.body["model"])
        if self._typed is None:
            return request
        self._typed.is_last = self.budget is not None and self.budget.is_last
        return self._typed.ask(request, toolbox(self.agent).tools)

    def begin_step(self, max_turns: float, *, execute_tools: bool) -> StopReason | None:
        """Begin the next step: returns why the run is over, or None. Then it runs `calls`, or asks for a completion.

        It counts the step in the budgets, so it is called once a step.

        Raises OutputError once no answer had the type that was asked for, and the model is not asked again.
        """
        if self.calls:
            if self._waits:
                return "waiting"
            resumed = self.turns == 0  # `resume=True` is the approval
            if not (execute_tools or resumed or (self._typed and is_settled(self.calls))):
                return "tool_calls"
            if self.budget is not None:
                self.budget.admit_calls(self.calls)
            return None
        if self._unsent:
            self._take_unsent()
        if self._typed is not None and self._typed.error is not None:
            raise self._typed.error
        if self.budget is not None and not self._admits(self.budget, may_ask=self.turns < max_turns):
            return "budget"
        if self._answered:
            return "answer"
        return None if self.turns < max_turns else "max_turns"

    def _admits(self, budget: BudgetControl, *, may_ask: bool) -> bool:
        """Whether the run may continue: end with its answer, or ask for a completion. `may_ask`: max_turns admits one."""
        return not budget.is_last if self._answered else budget.admit_request(may_ask=may_ask)

    # --- messages of the user while it runs ---

    def send(self, messages: object) -> None:
        """Take messages of the user, which are recorded once all calls of the turn are answered.

        Raises RuntimeError after the end of the run, and ConfigurationError for messages that are not of the user.
        """
        if self.has_ended:
            raise RuntimeError(
                "this run has ended, so no message can be sent to it; begin another run with its messages, those of "
                "`run.response.messages` and the new one"
            )
        sent = normalize(messages)
        if wrong := [message["role"] for message in sent if message["role"] != "user"]:
            raise ConfigurationError(f"send takes messages with the role 'user', not {wrong[0]!r}")
        self._unsent += sent

    def _take_unsent(self) -> None:
        taken, self._unsent = self._unsent, []
        self._new_messages += taken
        self._send_pending(taken)
        self._answered = False
        self._with_results.clear()
        self._names_with_results.clear()

    @property
    def unsent(self) -> list[Message]:
        """The messages of the user that are not in the response."""
        return self._unsent.copy() if not self.has_ended or self.response.waiting else []

    # --- recording ---

    @property
    def partial(self) -> str:
        """The text of a completion that has not finished; empty where there is none."""
        return self.accumulator.text if self.accumulator else ""

    @property
    def partial_output(self) -> Any:
        """What has come of an answer with a type, parsed at each access; None where there is none."""
        return None if self._typed is None else self._typed.partial(self.agent, self.accumulator)

    def record_completion(self, completion: Completion) -> Message:
        """Record a whole completion and make `calls` those that it asks for. Returns the message as recorded."""
        message = recorded_form(completion.message, self.agent.name)
        calls = message["tool_calls"]
        if self._typed is not None and self.accumulator is not None:
            self._typed.written = self.agent, self.accumulator
        self.accumulator = None
        self.spending.usage += completion.usage
        if self.spending.outer is not None:
            self.spending.outer.add(completion.usage)
        if self.budget is not None:
            self.budget.add_price(completion.usage)
        self._new_messages.append(message)
        self._pending = [message]
        self.calls = calls_of(calls or (), self.agent, self.tools)
        self._answered = not self.calls
        if self._typed is not None:
            self._check_answer(self._typed, message)
        return message

    def _check_answer(self, typed: TypedAnswers, message: Message) -> None:
        typed.settle(self.calls)
        if not self.calls:
            told = typed.read_text(message, self.agent, toolbox(self.agent).tools)
            self._answered = told is None and typed.error is None
            if told is not None:
                self._correction = {"role": "user", "content": told}

    def end_group(self, calls: Iterable[ToolCall]) -> bool:
        """Merge the context changes of the finished calls of a group, in call order. False if the turn stops here: a call waits."""
        self.context.update(changes_of(calls))
        has_hold = False
        for call in calls:
            call.merged = True
            has_hold = has_hold or call.hold is not None
        self._waits = has_hold and waits(self.calls)
        if self._waits:
            self.calls = kept_open(self.calls)
            self._tell_of_lost_decisions()
        return not self._waits

    def _tell_of_lost_decisions(self) -> None:
        # Nothing in a history may approve, so an approval cannot be kept for the run that reaches its call.
        lost = [call.id for call in self.calls if call.decided and not (call.outcome or call.started or call.hold)]
        if lost:
            logger.warning(
                "resume has decisions on calls that the run did not reach, because another call of the turn waits: %s. They "
                "are open as before; pass these decisions together with one on the call that waits",
                named_ids(lost),
                extra=self.log_fields,
            )

    def end_turn(self) -> tuple[Agent, Agent] | None:
        """Record the tool messages of a turn in call order and switch the agent. Returns (source, target) if it did."""
        if self._waits:  # the turn has not ended
            return None
        if self.calls:
            self._with_results[id(self.agent)] = self.agent
        if self.budget is not None:
            self.budget.end_turn(self.calls, self.agent, handed_to(self.calls))
        messages = answers_of(self.calls)
        self._unknown_calls += unknown_calls_of(self.calls)
        self._new_messages.extend(messages)
        self._send_pending(messages)
        source, self.agent = self.agent, handed_to(self.calls) or self.agent
        if self._typed is not None:
            self._answered = self._typed.end_turn(self.calls, messages, handed_off=handed_to(self.calls) is not None)
        elif self.agent.output is not None:
            self._typed = TypedAnswers(None)
        self.calls, self._recorded = [], {}
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

    def finish(self, stop: StopReason, error: AswarmError | None = None) -> Response:
        """End the run; an error gets the response. Nothing is recorded after this."""
        self.stop = stop
        self.has_ended = True
        self._response = self._snapshot(self.context)
        if error is not None:
            error.response = self._response
        if isinstance(error, RunError):
            error.partial = self.partial
        if self.end_callbacks:
            self.report_end(error)
        return self._response

    def report_end(self, error: AswarmError | None = None) -> None:
        """Call the callbacks. One that fails is logged: neither the other ones nor the run may fail because of it."""
        callbacks, self.end_callbacks = self.end_callbacks, ()
        response = self.response
        for callback in callbacks:
            try:
                callback(response, error)
            except Exception:
                logger.exception("a callback of on_end failed", extra=self.log_fields)

    @property
    def log_fields(self) -> dict[str, Any]:
        """What each log record about this run has beside its text."""
        return {"run_id": self.id, "agent": self.agent.name}

    def _snapshot(self, context: dict[str, Any]) -> Response:
        # A plain dict, because a subclass may refuse to be read or changed, and nothing may replace a cancellation.
        variables = plain_dict(context)
        messages, calls, waiting = self._new_messages.copy(), self.calls, list[OpenCall]()
        if calls:
            calls = kept_open(calls) if waits(calls) else calls
            open_ones = open_calls_of(calls)
            waiting = list(map(self._as_open, open_ones))
            messages = self._with_waiting(messages, open_ones) + answers_of(calls)
            variables.update(changes_of(calls))
        if self.has_ended and not waiting:
            messages += self._unsent
        response: Response = Response(
            messages=messages,
            agent=handed_to(calls) or self.agent,
            context_variables=variables,
            usage=self.spending.usage,
            stop=self.stop,
            spent=None if self.budget is None else self.budget.spent,
            run_id=self.id,
            unknown_calls=[*self._unknown_calls, *unknown_calls_of(calls)],
            waiting=waiting,
        )
        return response if self._output is None else asked_for(response, self._output)

    def _with_waiting(self, messages: list[Message], open_ones: list[ToolCall]) -> list[Message]:
        """The messages of this run before the answers of `calls`, with what the open calls wait for."""
        entries = [(call, entry) for call in open_ones if (entry := self._entry_of(call))]
        if messages and entries:  # the last message made the calls
            return [*messages[:-1], {**messages[-1], WAITING: [entry for _, entry in entries]}]
        # The caller has the message that made the calls, and a run changes no message.
        new = [(call, entry) for call, entry in entries if self._recorded.get(call.position) != entry]
        return messages + [waiting_message(call, entry) for call, entry in new]

    def _as_open(self, call: ToolCall) -> OpenCall:
        # A call that was decided, and not reached, waits for what the history says.
        entry = self._entry_of(call) or self._recorded.get(call.position, {})
        return open_call(call.position, call.message, self.agent.name, entry)

    def _entry_of(self, call: ToolCall) -> Mapping[str, Any] | None:
        # A call without a decision waits for what it has waited for before.
        recorded = None if call.decided else self._recorded.get(call.position)
        return entry_of(call) if recorded is None else recorded


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
