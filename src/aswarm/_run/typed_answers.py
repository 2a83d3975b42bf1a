"""Answers with a type: how the model is asked for one, which answer ends the run, and what the model is told of another.

Decides, and keeps count of answers that could not be used. Never waits, never sends. A run without a type has none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._agent import Agent
from aswarm._content import text_part
from aswarm._errors import ConfigurationError, OutputError, ToolArgumentsError
from aswarm._json import is_array, is_object
from aswarm._messages import Message, call_name, text_of
from aswarm._output import ACCEPTED, FINAL_ANSWER, AnswerType, Output, answer_type, as_output
from aswarm._tools.answer_tool import JSON_OBJECT, answer_tool, response_format, schema_text
from aswarm._tools.tool import Tool
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.request import CompletionRequest, with_schema

from .plan import ToolCall, ToolOutcome

Tools = Mapping[str, Tool[..., Any]]
_ANOTHER = f"not the answer: an earlier call of {FINAL_ANSWER} was accepted"


class TypedAnswers:
    """The answers of one run. `error`: set once the model has had all its attempts.

    `given`: what the run was asked for; without it, each agent answers with its own `output`. `is_last`: the completion is
    the last one that a budget admits, so an answer that cannot be used is not asked for again. `written`: the last completion
    that has finished, and its agent.
    """

    def __init__(self, given: Output[Any] | None) -> None:
        self.error: OutputError | None = None
        self.is_last = False
        self.written: tuple[Agent, Accumulator] | None = None
        self._given = given
        self._invalid = 0
        self._forces = False  # the model has answered with a text, and has one attempt left

    def _output_of(self, agent: Agent) -> Output[Any] | None:
        return self._given if self._given is not None else as_output(agent.output)

    def type_of(self, agent: Agent) -> AnswerType | None:
        """The type of the answer of this agent; None if it has none. Raises ConfigurationError for an unusable type."""
        output = self._output_of(agent)
        return None if output is None else answer_type(output)

    def _mode_of(self, agent: Agent, answer: AnswerType, functions: Tools) -> str:
        output = self._output_of(agent)
        return _mode("auto" if output is None else output.mode, answer, agent, functions)

    # --- the request ---

    def tools(self, agent: Agent, functions: Tools) -> Tools:
        """The functions of the agent, and `final_answer` as the last one where the model is asked by it.

        Raises ConfigurationError for a type, and for settings of the agent, that cannot be used.
        """
        answer = self.type_of(agent)
        if answer is None or answer.schema is None:
            return functions
        _check_agent(agent, functions)
        mode = self._mode_of(agent, answer, functions)
        if mode == "schema":
            response_format(answer)  # raises for what strict mode cannot express
        return {**functions, FINAL_ANSWER: answer_tool(answer)} if mode == "tool" else functions

    def ask(self, request: CompletionRequest, functions: Tools) -> CompletionRequest:
        """Add to the request how the answer should be written. It has both tools and a `response_format` for mode="schema" only."""
        agent, body = request.agent, request.body
        answer = self.type_of(agent)
        if answer is None or answer.schema is None:
            return request
        match self._mode_of(agent, answer, functions):
            case "schema":
                return with_schema(request, response_format(answer))
            case "prompt":
                body["messages"] = _instructed(body["messages"], schema_text(answer))
                if not body.get("tools") and not answer.allows_text:
                    body["response_format"] = dict(JSON_OBJECT)
            case _:
                if self._forces or self.is_last:
                    # Some servers ignore a choice by name. All of them know a choice among one.
                    body["tools"], body["tool_choice"] = [answer_tool(answer).schema.json], "required"
        return request

    # --- the answer ---

    def read_text(self, message: Message, agent: Agent, functions: Tools) -> str | None:
        """Look at a message without calls. Returns what the model is told if it is asked again; None if the run ends."""
        answer = self.type_of(agent)
        if answer is None or message.get("refusal"):
            return None
        try:
            self._check(agent, answer.read_text(text_of(message.get("content"))))
        except ToolArgumentsError as error:
            if self.is_last:
                return None
            by_tool = answer.schema is not None and self._mode_of(agent, answer, functions) == "tool"
            self._count(agent, answer, str(error))
            self._forces = by_tool and self._invalid == self._retries(agent)
            do = f"Call the function {FINAL_ANSWER} with your answer." if by_tool else "Answer again."
            return None if self.error else f"Your answer cannot be used:\n{error}\n{do}"
        return None

    def settle(self, calls: Sequence[ToolCall]) -> None:
        """Give the calls of `final_answer` their outcomes: they are read here, and nothing runs for them."""
        accepted = False
        for call in calls:
            if call.tool is not None and call.tool.is_answer and call.outcome is None:
                call.hold = None
                call.outcome = ToolOutcome(_ANOTHER) if accepted else self._read(call)
                accepted = accepted or call.outcome.error is None

    def _read(self, call: ToolCall) -> ToolOutcome:
        answer = self.type_of(call.agent)
        assert answer is not None  # noqa: S101 - it has the function only because it has a type
        try:
            self._check(call.agent, answer.read(call.arguments or "{}"))
        except ToolArgumentsError as error:
            return ToolOutcome(f"Error: {error}", error=error)
        return ToolOutcome(ACCEPTED)

    def end_turn(self, calls: Sequence[ToolCall], answers: Sequence[Message], *, handed_off: bool) -> bool:
        """Whether the turn has the answer of the run. An unusable one is counted, unless the agent has handed off."""
        self._forces = False
        if any(message["content"] == ACCEPTED and message["tool_name"] == FINAL_ANSWER for message in answers):
            return True
        for call in calls:
            if call.tool is not None and call.tool.is_answer and call.outcome and call.outcome.error and not handed_off:
                self._count(call.agent, self.type_of(call.agent), str(call.outcome.error))
                break
        return False

    def _check(self, agent: Agent, value: Any) -> None:
        """Let `check` of the user look at the answer. Raises ToolArgumentsError with the text of its ValueError."""
        output = self._output_of(agent)
        if output is not None and output.check is not None:
            try:
                output.check(value)
            except ValueError as error:
                raise ToolArgumentsError(str(error) or "the answer was refused") from error

    def _retries(self, agent: Agent) -> int:
        output = self._output_of(agent)
        return 0 if output is None else output.retries

    def _count(self, agent: Agent, answer: AnswerType | None, fault: str) -> None:
        self._invalid += 1
        retries = self._retries(agent)
        if answer is not None and self._invalid > retries and not self.is_last:
            self.error = OutputError(
                f"the model gave no answer of the type {answer.name}, and was asked again {retries} times; the "
                f"last answer is wrong:\n{fault}"
            )

    def partial(self, agent: Agent, accumulator: Accumulator | None) -> Any:
        """What has come of the answer in this completion, or without one in the last completion, as plain data."""
        if accumulator is None:
            if self.written is None:
                return None
            agent, accumulator = self.written
        answer = self.type_of(agent)
        arguments = accumulator.arguments_of(FINAL_ANSWER)
        return None if answer is None else answer.partial(arguments or accumulator.text)


def is_settled(calls: Sequence[ToolCall]) -> bool:
    """Whether all calls have outcomes already, so that no function runs for them."""
    return all(call.outcome is not None for call in calls)


def _mode(mode: str, answer: AnswerType, agent: Agent, functions: Tools) -> str:
    if mode == "auto":
        has_tools = bool(functions or agent.model_settings.get("tools"))
        return "tool" if has_tools or answer.allows_text else "schema"
    if mode == "schema" and answer.allows_text:
        raise ConfigurationError('mode="schema" admits no plain text, which a union with str needs; use mode="auto"')
    return mode


def _check_agent(agent: Agent, functions: Tools) -> None:
    own = {call_name(tool) for tool in agent.model_settings.get("tools") or () if is_object(tool)}
    if FINAL_ANSWER in functions or FINAL_ANSWER in own:
        raise ConfigurationError(
            f"agent {agent.name!r} has a function named {FINAL_ANSWER!r}, the name of the function by which a model gives "
            "an answer with a type; rename it"
        )
    text = agent.model_settings.get("text")
    if agent.model_settings.get("response_format") is not None or (is_object(text) and text.get("format")):
        raise ConfigurationError(
            f"agent {agent.name!r} has a response_format in its model_settings, and its answer has a type; remove one of "
            "the two"
        )


def _instructed(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with a text added to the instructions."""
    first = messages[0] if messages and messages[0]["role"] == "system" else None
    if first is None:
        return [{"role": "system", "content": text}, *messages]
    content: Any = first["content"]
    joined = [*content, text_part(text)] if is_array(content) else f"{content}\n\n{text}"
    return [{**first, "content": joined}, *messages[1:]]
