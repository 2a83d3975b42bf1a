"""The state of one run, and its `Response` at any moment.

`RunState` decides the active agent, the context variables and the next step. `history`, `turn`, `typed_answers` and
`budget` decide the rest. None of these modules does I/O.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from types import MappingProxyType
from typing import Any, TypeAlias

from aswarm._runtime import clocks
from aswarm._tools.filled import Filled
from aswarm._tools.tool import Tool
from aswarm._tools.toolbox import clash, toolbox
from aswarm._values.agent import Agent, Response, StopReason, asked_for
from aswarm._values.context import check_context, copy_containers, plain_copy
from aswarm._values.decisions import OpenCall, Resume
from aswarm._values.errors import AswarmError, ConfigurationError, RunError
from aswarm._values.messages import SENT_INPUT, Message, are_plain, as_sent, last_head, normalize, unanswered_calls
from aswarm._values.output import Output
from aswarm._wire.accumulator import Accumulator, Completion
from aswarm._wire.prefix import SentPrompts
from aswarm._wire.request import CompletionRequest, RequestSettings, build_request, relaxed

from .budget import BudgetControl, Spending
from .call import Call, TurnCalls
from .filling import NO_RESOURCES, check_agent
from .history import AgentsWithResults, History, recorded_form
from .resuming import check_resume, named_ids
from .turn import Turn, calls_of, resumed_turn
from .typed_answers import TypedAnswers, check_parameters

logger = logging.getLogger("aswarm")
_SCHEMA = operator.attrgetter("_schema.json")

EndCallback: TypeAlias = Callable[[Response, AswarmError | None], None]
"""A function for `RunInfo.on_end`. Called at the end of a run, with its response, and its error or None."""


@dataclass(slots=True)
class RunEnding:
    """The end of one run.

    `is_over`: whether the run has ended. `stop`: the reason; "cancelled" until another reason is known. `response`: the final
    response; None before the end, and for a run that was closed early. `callbacks`: called once, in this order.
    """

    is_over: bool = False
    stop: StopReason = "cancelled"
    response: Response | None = None
    callbacks: tuple[EndCallback, ...] = ()


class RunState:
    """The state of one run.

    `agent`: the active agent.
    `toolbox`: the tools of the agent.
    `context`: the run's own copy of the context variables.
    `budget`: None if no budget limits the run.
    `prompts`: the sent requests.
    `turns`: the number of completions.
    `accumulator`: the unfinished completion, or None.
    `eager_calls`: the calls of the last completion that have started before their turn.
    `pending_check`: the call of an async check of the answer, which the loop awaits next, or None.
    `is_typed`: whether the answer of the first agent has a type.
    `concurrent_tools`: whether calls may run together.
    `resources`: the resources of the swarm and of the run.
    """

    def __init__(
        self,
        agent: Agent,
        messages: object,
        context_variables: object,
        *,
        resume: Resume = False,
        empty_content: str | None = None,
        run_id: str | None = None,
        spending: Spending | None = None,
        output: Output[Any] | None = None,
        resources: Mapping[str, object] = NO_RESOURCES,
        concurrent_tools: bool = True,
        tools_of_middleware: Mapping[str, Tool[..., Any]] = MappingProxyType({}),
    ) -> None:
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
            raise ConfigurationError(f"agent must be an Agent, not {type(agent).__name__}")
        self.id = run_id or clocks.urandom(16).hex()
        self.agent: Agent = agent
        self.context = _own_context(context_variables)
        self.spending = spending or Spending()
        self.prompts = SentPrompts({} if spending is None else spending.prices)
        is_limited = spending is not None and any(each.budget for each in spending.chain())
        self.budget = BudgetControl(self.spending, agent, self.id) if is_limited else None
        self.resources = resources
        self.concurrent_tools = concurrent_tools
        self.pending_check: Callable[[], Awaitable[object]] | None = None
        self.eager_calls: list[Call] = []
        self.turns = 0
        self.accumulator: Accumulator | None = None
        self.ending = RunEnding()
        self._has_answer = False
        self._tools_of_middleware = tools_of_middleware
        self.toolbox = toolbox(agent)
        self.is_typed = output is not None or agent.output is not None
        self._typed = TypedAnswers(output, self.context, resources) if self.is_typed else None
        if is_plain := are_plain(messages):
            history = list(messages)
        elif any(map(operator.contains, history := normalize(messages), repeat(SENT_INPUT))):
            history = as_sent(history)
        self._read_history(history, resume, empty_content, is_plain=is_plain)

    def _read_history(
        self, history: list[Message], resume: Resume, empty_content: str | None, *, is_plain: bool
    ) -> None:
        with_calls = [] if is_plain else history  # a plain history has no calls, so nothing searches it
        unanswered = unanswered_calls(with_calls)
        check_resume(resume, [call["id"] for call in unanswered])
        # A provider rejects a history with unanswered calls, so the message with these calls is sent after their answers.
        settled = last_head(history) if unanswered else len(history)
        self.history = History(history, settled, empty_content, is_plain=is_plain)
        self._with_results = AgentsWithResults(with_calls, self.agent.name)
        tools = self.tools
        self.turn = (
            resumed_turn(history[settled:], unanswered, self.agent, tools, resume, concurrent=self.concurrent_tools)
            if unanswered
            else Turn(TurnCalls())
        )

    # --- the next request ---

    @property
    def tools(self) -> Mapping[str, Tool[..., Any]]:
        """The tools of the active agent by name. Raises ConfigurationError for a function that cannot be a tool."""
        if not self.toolbox.fits(self.agent):
            self.toolbox = toolbox(self.agent)
        functions: Mapping[str, Tool[..., Any]] = self.toolbox.tools
        if self._tools_of_middleware:
            functions = self._with_tools_of_middleware(functions)
        return functions if self._typed is None else self._typed.tools(self.agent, functions)

    def _with_tools_of_middleware(self, own: Mapping[str, Tool[..., Any]]) -> Mapping[str, Tool[..., Any]]:
        """Return the functions of the active agent, and those of middleware if results of functions are in the history or may be."""
        more = self._tools_of_middleware
        if not more or not (own or self.history.has_results):
            return own
        for name in own.keys() & more.keys():
            raise clash(self.agent, name, own[name], more[name])
        return {**own, **more}

    def request(self, instructions: Any, settings: RequestSettings) -> CompletionRequest:
        """Return the next request for a completion."""
        agent, typed = self.agent, self._typed
        if typed is not None and typed.correction is not None:
            self.history.settle([typed.correction])
            typed.correction = None
        is_last = self.budget is not None and self.budget.is_last
        choice = agent.model_settings.get("tool_choice") if agent.tool_choice is None else agent.tool_choice
        if is_last:
            choice = "none"
        elif choice is not None and agent in self._with_results:
            choice = relaxed(choice)
        tools: Iterable[Tool[..., Any]] = self.tools.values()
        search = self.toolbox.search
        if search is not None:
            search.check_choice(choice)
            tools = search.offered(self.tools, self.history.settled)
        messages, known = self.history.sent_to(agent)
        request = build_request(agent, instructions, messages, map(_SCHEMA, tools), choice, settings, known=known)
        if search is not None and search.mode == "auto":
            request = replace(request, tool_search=True)
        if self.budget is not None:
            self.budget.check_price(request.body["model"])
            request = replace(request, _may_continue=self.budget.admit_next)
        if typed is None:
            return request
        typed.is_last = is_last
        return typed.ask(request, self._with_tools_of_middleware(toolbox(agent).tools))

    def start_step(self, max_turns: int | None, *, execute_tools: bool) -> StopReason | None:
        """Return the reason to stop, or None for another step: a `pending_check`, the calls of the turn, or a completion.

        Call it once for each step, because it counts the step in the budgets. Raises OutputError if the retries for an answer
        of the right type are used up.
        """
        turn, typed = self.turn, self._typed
        stop: StopReason | None = None
        if typed is not None and self._is_checking(typed):
            return None
        if turn.calls:
            if turn.waits:
                stop = "waiting"
            # Calls at turn 0 come from `resume`, which asks to run them. So they run even without `execute_tools`.
            elif not (execute_tools or self.turns == 0 or (typed and all(call.outcome for call in turn.calls))):
                stop = "tool_calls"
            elif self.budget is not None:
                self.budget.admit_calls(turn.calls)
            return stop
        if self.history.unsent:
            self.history.settle_unsent()
            self._has_answer = False
            self._with_results.clear()
        may_ask = max_turns is None or self.turns < max_turns
        if self._has_answer and not (self.budget is not None and self.budget.is_paused):
            return "budget" if self.budget is not None and self.budget.is_last else "answer"
        if self.budget is not None and not self.budget.admit_request(may_ask=may_ask):
            return "budget"
        return None if may_ask else "max_turns"

    def _is_checking(self, typed: TypedAnswers) -> bool:
        """Return whether a check of the answer is pending. Raises OutputError after the last retry."""
        if self.turns == 0:
            typed.settle(self.turn.calls)  # the calls that are resumed
            self.pending_check = typed.pending
        if typed.error is not None:
            raise typed.error
        return self.pending_check is not None

    # --- messages of the user while it runs ---

    def send(self, messages: object) -> None:
        """Store messages of the user, and record them after all calls of the turn have answers.

        Raises RuntimeError after the end of the run, and ConfigurationError for messages with another role.
        """
        if self.ending.is_over:
            raise RuntimeError(
                "this run has ended, so no message can be sent to it; start another run with its input messages, "
                "`run.response.messages` and the new message"
            )
        self.history.send(messages)

    @property
    def unsent(self) -> list[Message]:
        """The sent messages of the user that are not in the response."""
        return self.history.unsent.copy() if not self.ending.is_over or self.response.open_calls else []

    # --- recording ---

    @property
    def partial(self) -> str:
        """The text of the unfinished completion; empty if there is none."""
        return self.accumulator.text if self.accumulator else ""

    @property
    def partial_output(self) -> Any:
        """The typed answer so far, or None. Each access parses the text again."""
        return None if self._typed is None else self._typed.partial(self.agent, self.accumulator)

    def record_completion(self, completion: Completion) -> Message:
        """Record a finished completion, and start a turn with its calls. Return the recorded message."""
        agent, typed, spending = self.agent, self._typed, self.spending
        message = recorded_form(completion.message, agent.name)
        if typed is not None and self.accumulator is not None:
            typed.written = agent, self.accumulator
        self.accumulator = None
        if spending.outer is None and spending.shared is None:
            spending.usage += completion.usage
        else:
            spending.add(completion.usage)
        if self.budget is not None:
            self.budget.add_price(completion.usage)
            self.budget.end_completion(completion.finish_reason)
        self.history.record(message)
        requested = message["tool_calls"]
        self.turn.calls = calls = calls_of(requested, agent, self.tools) if requested else TurnCalls()
        if typed is None:
            self._has_answer = not calls
        else:
            self._has_answer, self.pending_check = typed.read(message, calls, agent), typed.pending
        return message

    def end_check(self, error: ValueError | None) -> None:
        """Continue with the answer after its `pending_check`, which may have raised this error."""
        typed = self._typed
        assert typed is not None  # noqa: S101 - only a typed answer has a check
        self._has_answer, self.pending_check = typed.advance(error), typed.pending

    def end_group(self, calls: Iterable[Call]) -> bool:
        """Merge the context changes of a group in call order. Return False if the turn stops, because a call waits."""
        self.context.update(self.turn.calls.changes())
        if self.turn.finish_group(calls):
            return True
        # The history must not approve a call, so it cannot store these decisions for the next run.
        if lost := self.turn.lost_decisions:
            logger.warning(
                "resume has decisions on calls that the run did not reach, because another call of the turn waits: %s. They "
                "stay open; pass these decisions again, together with a decision on the waiting call",
                named_ids(lost),
                extra=self.log_fields,
            )
        return False

    def end_turn(self) -> tuple[Agent, Agent] | None:
        """Record the tool messages of a turn in call order, and switch the agent. Return (source, target) of a handoff."""
        turn, source = self.turn, self.agent
        if turn.waits:
            return None
        calls = turn.calls
        target = calls.handed_to()
        if target is not None and target is not source:
            self._check_target(target)
        if calls:
            self._with_results.add(source)
        if self.budget is not None:
            self.budget.end_turn(calls, source, target)
        answers = turn.finish()
        self.history.settle(answers)
        self.agent = target or source
        if self._typed is not None:
            self._has_answer = self._typed.end_turn(calls, answers, handed_off=target is not None)
        elif self.agent.output is not None:
            self._typed = TypedAnswers(None, self.context, self.resources)
        return (source, self.agent) if self.agent is not source else None

    def _check_target(self, target: Agent) -> None:
        """Raise ConfigurationError if the context or the resources do not suit the target. The handoff then fails."""
        try:
            self.toolbox = tools = toolbox(target)
            if tools.needs or callable(target.instructions) or target.output is not None:
                check_agent(target, tools, self.context, self.resources, self._check_of(target))
        except ConfigurationError as error:
            text = f"the handoff to {target.name!r} failed"
            self.turn.fail_handoffs(text)
            raise ConfigurationError(f"{text}: {error}") from error

    def check_agent(self) -> None:
        """Raise ConfigurationError if the context or the resources do not suit the agent."""
        check_agent(self.agent, self.toolbox, self.context, self.resources, self._check_of(self.agent))

    def _check_of(self, agent: Agent) -> Filled | None:
        of_run = None if self._typed is None else self._typed.output
        output = agent.output if of_run is None else of_run
        check = output.check if isinstance(output, Output) else None
        return None if check is None else check_parameters(check)

    # --- the response ---

    @property
    def response(self) -> Response:
        """The results so far, as a valid `Response`. After the end of the run, it is always the same object."""
        return self.ending.response or self._snapshot(copy_containers(self.context))

    def finish(self, stop: StopReason, error: AswarmError | None = None) -> Response:
        """End the run, and set the response of the error. Afterwards the state does not change."""
        ending = self.ending
        ending.stop, ending.is_over = stop, True
        ending.response = response = self._snapshot(self.context)
        if error is not None:
            error.response = response
        if isinstance(error, RunError):
            error.partial = self.partial
        if ending.callbacks:
            self.report_end(error)
        return response

    def report_end(self, error: AswarmError | None = None) -> None:
        """Call the callbacks of the end. If a callback fails, log the exception, and continue with the next callback."""
        response, callbacks = self.response, self.ending.callbacks
        self.ending.callbacks = ()
        for callback in callbacks:
            try:
                callback(response, error)
            except Exception:
                logger.exception("a callback of on_end failed", extra=self.log_fields)

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields of each log record about this run."""
        return {"run_id": self.id, "agent": self.agent.name}

    def _snapshot(self, context: dict[str, Any]) -> Response:
        # A plain dict: a dict subclass of the user may raise in its methods. Such an error must not replace a cancellation.
        variables = plain_copy(context)
        messages, agent, waiting = self.history.messages.copy(), self.agent, list[OpenCall]()
        unknown_calls = self.turn.unknown_calls.copy()
        if self.turn.calls:
            turn = self.turn.as_stopped()
            messages, waiting = turn.added_to(messages)
            variables.update(turn.calls.changes())
            agent = turn.calls.handed_to() or agent
            unknown_calls += turn.calls.unknown_calls()
        if self.ending.is_over and not waiting:
            messages += self.history.unsent
        response: Response = Response(
            messages=messages,
            agent=agent,
            context_variables=variables,
            usage=self.spending.usage,
            stop=self.ending.stop,
            spent=None if self.budget is None else self.budget.spent,
            run_id=self.id,
            unknown_calls=unknown_calls,
            open_calls=waiting,
        )
        return asked_for(response, self._typed.output) if self._typed and self._typed.output else response


def _own_context(context_variables: object) -> dict[str, Any]:
    check_context(context_variables)
    kind = type(context_variables).__name__
    try:
        context: dict[str, Any] = copy_containers({} if context_variables is None else context_variables)
    except Exception as error:
        raise ConfigurationError(
            f"context_variables of the type {kind} cannot be read: {type(error).__name__}: {error}; pass a dict"
        ) from error
    return context
