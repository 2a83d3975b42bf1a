"""Compares the calls and the answer of a run with the expectations of a case."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aswarm._values.agent import Response
from aswarm._values.json import is_array, is_object, jsonable
from aswarm._values.messages import Message, call_arguments, call_name

from ._case import Case


@dataclass(frozen=True, slots=True)
class CaseCall:
    """A call of the model. `arguments`: the JSON text as the model wrote it."""

    name: str
    arguments: str

    def __str__(self) -> str:
        """Return the call on one line, such as `book({"city": "Rome"})`."""
        return f"{self.name}({'' if self.parsed == {} else ' '.join(self.arguments.split())})"

    @property
    def parsed(self) -> Any:
        """The parsed arguments; `{}` if the text is empty, None if it is not JSON."""
        try:
            return json.loads(self.arguments) if self.arguments.strip() else {}
        except (ValueError, RecursionError):
            return None


def calls_of(messages: Iterable[Message]) -> list[CaseCall]:
    """Return all calls of the assistant messages, in order. Handoffs are calls too."""
    return [
        CaseCall(call_name(call), call_arguments(call))
        for message in messages
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or ()
    ]


def unexpected(case: Case, calls: Sequence[CaseCall]) -> str | None:
    """Return None if the calls meet the expectation, otherwise the expectation as a text. For the rules, see `Case`."""
    if case.function is ... and case.arguments is None:
        return None
    if case.calls_nothing:
        return "expected no call" if calls else None
    if is_array(case.function) and sorted(case.function) != sorted(call.name for call in calls):
        return f"expected exactly these calls: {', '.join(case.function)}"
    candidates = calls[:1] if case.extent == "completion" else calls
    named = [call for call in candidates if not isinstance(case.function, str) or call.name == case.function]
    return None if any(_has(call, case.arguments or {}) for call in named) else _expectation(case)


def unexpected_output(case: Case, response: Response) -> str | None:
    """Return None if the typed answer meets the expectation, otherwise the expectation as a text.

    Raises AswarmError if there is no typed answer.
    """
    if case.output is None:
        return None
    answer: Any = jsonable(response.output)
    fields: Mapping[str, Any] = answer if is_object(answer) else {"value": answer}
    wrong = [name for name, value in case.output.items() if name not in fields or not _agrees(value, fields[name])]
    expected = ", ".join(f"{name}={_shown(case.output[name])}" for name in wrong)
    return f"expected an output with {expected}, not {_shown(answer)}" if wrong else None


def _expectation(case: Case) -> str:
    named = case.function if isinstance(case.function, str) else "a call"
    arguments = ", ".join(f"{name}={_shown(value)}" for name, value in (case.arguments or {}).items())
    return f"expected {named}" + (f" with {arguments}" if arguments else "")


def _has(call: CaseCall, expected: Mapping[str, Any]) -> bool:
    arguments = call.parsed
    if not is_object(arguments):
        return not expected
    return all(name in arguments and _agrees(value, arguments[name]) for name, value in expected.items())


def _agrees(expected: Any, actual: Any) -> bool:
    """Return whether two JSON values are equal. Unlike in Python, true is not equal to 1. If `expected` is a callable, return its result."""
    if callable(expected):
        return bool(expected(actual))
    if is_object(expected) and is_object(actual):
        return expected.keys() == actual.keys() and all(_agrees(expected[key], actual[key]) for key in expected)
    if is_array(expected) and is_array(actual):
        return len(expected) == len(actual) and all(map(_agrees, expected, actual))
    return isinstance(expected, bool) == isinstance(actual, bool) and bool(expected == actual)


def _shown(value: Any) -> str:
    if callable(value):
        return f"<{getattr(value, '__name__', 'check')}>"
    return json.dumps(value, ensure_ascii=False, default=str)
