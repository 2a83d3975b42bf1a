"""Structured output: the request for a typed answer, the check of the answer, and the message about an invalid answer.

The module counts the invalid answers, and does no I/O. A run without an output type does not use it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from aswarm._tools.answer_tool import JSON_OBJECT, answer_tool, response_format, schema_text
from aswarm._tools.filled import Filled, filled_parameters
from aswarm._tools.hints import cached_by_function, has_code_flag, name_of, signature_of
from aswarm._tools.tool import Tool, is_async
from aswarm._values.agent import Agent
from aswarm._values.content import text_part
from aswarm._values.errors import ConfigurationError, OutputError, ToolArgumentsError, ToolError
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import FINAL_ANSWER, Message, call_name, text_of
from aswarm._values.output import ACCEPTED, AnswerType, Output, answer_type, as_output
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.request import CompletionRequest, requiring, with_schema

from .call import Call
from .filling import read_arguments
from .outcome import ToolOutcome

Tools = Mapping[str, Tool[..., Any]]
Reading: TypeAlias = "Generator[Callable[[], Awaitable[object]], None, bool]"
"""Reads an answer, and returns whether it is the answer of the run. It yields the call of each async check, which its caller
awaits. If this call raises ValueError, the caller throws it into the generator."""
_ANOTHER = f"not the answer: an earlier call of {FINAL_ANSWER} was accepted"


class TypedAnswers:
    """The typed answers of one run.

    `output`: the output of the run; None if each agent has its own `output`.
    `error`: the error of the run after the last retry, or None.
    `is_last`: whether the budget allows no further completion, so that an invalid answer gets no retry.
    `written`: the last finished completion and its agent.
    `correction`: a message about an invalid answer, for the next request.
    `pending`: the call of an async check that the loop awaits next; see `advance`.
    """

    def __init__(self, output: Output[Any] | None, context: Mapping[str, Any], resources: Mapping[str, object]) -> None:
        self.output = output
        self.pending: Callable[[], Awaitable[object]] | None = None
        self._reading: Reading | None = None
        self._context, self._resources = context, resources
        self.error: OutputError | None = None
        self.is_last = False
        self.written: tuple[Agent, Accumulator] | None = None
        self.correction: Message | None = None
        self._invalid = 0
        self._functions: Tools = {}  # of the last request
        self._forces = False  # the last answer was an invalid text, and one retry is left: force `final_answer`

    def _output_of(self, agent: Agent) -> tuple[Output[Any], AnswerType] | None:
        """Return the output of this agent and its type, or None. Raises ConfigurationError for an unusable type."""
        output = self.output if self.output is not None else as_output(agent.output)
        return None if output is None else (output, answer_type(output))

    # --- the request ---

    def tools(self, agent: Agent, functions: Tools) -> Tools:
        """Return the functions of the agent. If the mode is "tool", add `final_answer` at the end.

        Raises ConfigurationError for an unusable type, or unusable settings of the agent.
        """
        wanted = self._output_of(agent)
        if wanted is None or wanted[1].schema is None:
            return functions
        output, answer = wanted
        _check_agent(agent, functions)
        mode = _mode(output, answer, agent, functions)
        if mode == "schema":
            response_format(answer)  # raises for a type that strict mode cannot express
        return {**functions, FINAL_ANSWER: answer_tool(answer)} if mode == "tool" else functions

    def ask(self, request: CompletionRequest, functions: Tools) -> CompletionRequest:
        """Add the format of the answer to the request. Only mode="schema" sends both tools and a `response_format`."""
        agent, body, self._functions = request.agent, request.body, functions
        wanted = self._output_of(agent)
        if wanted is None or wanted[1].schema is None:
            return request
        output, answer = wanted
        match _mode(output, answer, agent, functions):
            case "schema":
                return with_schema(request, response_format(answer))
            case "prompt":
                body["messages"] = _instructed(body["messages"], schema_text(answer))
                if not body.get("tools") and not answer.allows_text:
                    body["response_format"] = dict(JSON_OBJECT)
            case _:
                if self._forces or self.is_last:
                    return requiring(request, FINAL_ANSWER)
        return request

    # --- the answer ---

    def read(self, message: Message, calls: Sequence[Call], agent: Agent) -> bool:
        """Return whether the completion is the answer of the run; False while an async check is `pending`.

        Set `correction` for an invalid text, and the outcome of each call of `final_answer`. Such a call runs no function.
        """
        return self._start(self._read(message, calls, agent))

    def settle(self, calls: Sequence[Call]) -> None:
        """Set the outcome of each call of `final_answer` that has none."""
        self._start(self._settle(calls))

    def _start(self, reading: Reading) -> bool:
        self._reading = reading
        return self.advance()

    def advance(self, error: ValueError | None = None) -> bool:
        """Continue after the `pending` check, which may have raised this error. Return what `read` returns."""
        reading, self.pending = self._reading, None
        assert reading is not None  # noqa: S101 - `pending` is set only with it
        try:
            self.pending = next(reading) if error is None else reading.throw(error)
        except StopIteration as end:
            self._reading = None
            return bool(end.value)
        return False

    def _read(self, message: Message, calls: Sequence[Call], agent: Agent) -> Reading:
        yield from self._settle(calls)
        wanted = self._output_of(agent)
        if calls or wanted is None or message.get("refusal"):
            return not calls
        output, answer = wanted
        try:
            yield from self._check(output, answer.read_text(text_of(message.get("content"))))
        except ToolArgumentsError as error:
            if self.is_last:
                return True
            self._refuse_text(output, answer, agent, str(error))
            return False
        return True

    def _refuse_text(self, output: Output[Any], answer: AnswerType, agent: Agent, fault: str) -> None:
        self._count(output, answer, fault)
        if self.error is None:
            by_tool = answer.schema is not None and _mode(output, answer, agent, self._functions) == "tool"
            self._forces = by_tool and self._invalid == output.retries
            do = f"Call the function {FINAL_ANSWER} with your answer." if by_tool else "Answer again."
            self.correction = {"role": "user", "content": f"Your answer cannot be used:\n{fault}\n{do}"}

    def _settle(self, calls: Sequence[Call]) -> Reading:
        accepted = False
        for call in calls:
            if call.tool is not None and call.tool.is_answer and call.outcome is None:
                outcome = ToolOutcome(_ANOTHER) if accepted else (yield from self._read_call(call))
                call.finish(outcome)
                accepted = accepted or outcome.error is None
        return False

    def _read_call(self, call: Call) -> Generator[Callable[[], Awaitable[object]], None, ToolOutcome]:
        wanted = self._output_of(call.agent)
        assert wanted is not None  # noqa: S101 - only an agent with a type has this function
        output, answer = wanted
        try:
            yield from self._check(output, answer.read(call.arguments or "{}"))
        except ToolArgumentsError as error:
            return ToolOutcome(f"Error: {error}", error=error)
        return ToolOutcome(ACCEPTED)

    def _check(self, output: Output[Any], value: Any) -> Generator[Callable[[], Awaitable[object]], None, None]:
        if output.check is not None:
            yield from run_check(output.check, value, self._context, self._resources)

    def end_turn(self, calls: Sequence[Call], answers: Sequence[Message], *, handed_off: bool) -> bool:
        """Return whether the turn contains the answer of the run. Count an invalid answer, unless the turn has a handoff."""
        self._forces = False
        if any(message["content"] == ACCEPTED and message["tool_name"] == FINAL_ANSWER for message in answers):
            return True
        for call in calls:
            if call.tool is not None and call.tool.is_answer and call.outcome and call.outcome.error and not handed_off:
                if wanted := self._output_of(call.agent):
                    self._count(*wanted, str(call.outcome.error))
                break
        return False

    def _count(self, output: Output[Any], answer: AnswerType, fault: str) -> None:
        self._invalid += 1
        if self._invalid > output.retries and not self.is_last:
            times = "once" if output.retries == 1 else f"{output.retries} times"
            self.error = OutputError(
                f"the model gave no answer of the type {answer.name}, and was asked again {times}; the "
                f"last answer is wrong:\n{fault}"
            )

    def partial(self, agent: Agent, accumulator: Accumulator | None) -> Any:
        """Return the answer so far as plain data. Without an unfinished completion, use the last finished one."""
        is_whole = accumulator is None
        if accumulator is None:
            if self.written is None:
                return None
            agent, accumulator = self.written
        if (wanted := self._output_of(agent)) is None:
            return None
        text = accumulator.arguments_of(FINAL_ANSWER) or accumulator.text
        return wanted[1].partial(text, is_whole=is_whole)


def _mode(output: Output[Any], answer: AnswerType, agent: Agent, functions: Tools) -> str:
    if output.mode == "auto":
        has_tools = bool(functions or agent.model_settings.get("tools"))
        return "tool" if has_tools or answer.allows_text else "schema"
    if output.mode == "schema" and answer.allows_text:
        raise ConfigurationError('mode="schema" allows no plain text, which a union with str needs; use mode="auto"')
    return output.mode


def _check_agent(agent: Agent, functions: Tools) -> None:
    provider_tools = {call_name(tool) for tool in agent.model_settings.get("tools") or () if is_object(tool)}
    if FINAL_ANSWER in functions or FINAL_ANSWER in provider_tools:
        raise ConfigurationError(
            f"agent {agent.name!r} has a function named {FINAL_ANSWER!r}, which is reserved for a typed answer; rename it"
        )
    text = agent.model_settings.get("text")
    if agent.model_settings.get("response_format") is not None or (is_object(text) and text.get("format")):
        raise ConfigurationError(
            f"agent {agent.name!r} has a response_format in its model_settings, and a type of its answer; remove one of the two"
        )


def _instructed(messages: Sequence[Message], text: str) -> list[Message]:
    """Return the messages with the text appended to the instructions."""
    first = messages[0] if messages and messages[0]["role"] == "system" else None
    if first is None:
        return [{"role": "system", "content": text}, *messages]
    content: Any = first["content"]
    joined = [*content, text_part(text)] if is_array(content) else f"{content}\n\n{text}"
    return [{**first, "content": joined}, *messages[1:]]


# --- the check of an answer -------------------------------------------------------------------------------------------


def check_parameters(check: Callable[..., object]) -> Filled | None:
    """Return the parameters of the check that the run fills; None if there is none. The result is cached.

    Raises ConfigurationError for a generator, and for a parameter that nothing fills.
    """
    return cached_by_function(check, ("check of an answer",), functools.partial(_check_parameters, check))


def _check_parameters(check: Callable[..., object]) -> Filled | None:
    name = f"check {name_of(check)!r} of an Output"
    if has_code_flag(check, inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise ConfigurationError(f"{name} must be a function without `yield`")
    after_answer = functools.partial(check, None)
    filled = filled_parameters(after_answer)
    names = {} if filled is None else dict.fromkeys(each.name for each in filled.resources)
    if filled is not None and filled.context is not None:
        names[filled.context] = None
    try:
        signature_of(check).bind(None, **names)
    except TypeError as error:
        remedy = "it gets the answer, `context_variables`, and each parameter with the hint Resource[...]"
        raise ConfigurationError(f"{name} cannot be called: {error}; {remedy}") from error
    except ValueError:  # a builtin without a signature
        return None
    return filled


def run_check(
    check: Callable[..., object], value: object, context: Mapping[str, Any], resources: Mapping[str, object]
) -> Generator[Callable[[], Awaitable[object]], None, None]:
    """Call the check with the answer. Raises ToolArgumentsError with the text of a ValueError or a ToolError.

    The generator yields an async function, and does not call it: the coroutine would never be awaited if the run is closed now.
    """
    filled = check_parameters(check)
    own = {} if filled is None else read_arguments(filled, context, resources)
    call = cast("Callable[[], Any]", functools.partial(check, value, **own))
    try:
        if is_async(check):
            yield functools.partial(_finished, check, value, call)
        elif inspect.isawaitable(returned := call()):
            try:
                yield functools.partial(_finished, check, value, lambda: returned)
            finally:
                if inspect.iscoroutine(returned):
                    returned.close()
        else:
            _refuse_result(check, value, returned)
    except (ValueError, ToolError) as error:
        raise ToolArgumentsError(str(error) or "the answer was refused") from error


async def _finished(check: Callable[..., object], value: object, call: Callable[[], Awaitable[object]]) -> None:
    try:
        _refuse_result(check, value, await call())
    except ToolError as error:
        raise ValueError(str(error)) from error


def _refuse_result(check: Callable[..., object], value: object, returned: object) -> None:
    """Refuse the result of a check in the style of another library: without the error, the run would ignore the result."""
    name = f"check {name_of(check)!r} of an Output"
    if returned is False and value is not False:
        raise ConfigurationError(
            f"{name} returned False; for a wrong answer, raise ValueError with a text for the model"
        )
    if returned is not value and type(returned) is type(value) and returned != value:
        raise ConfigurationError(
            f"{name} returned another answer; it cannot change the answer: let the type convert it"
        )
