"""The calls that a model made, and whether a case expects them. Decides in plain code; the result is a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aswarm._agent import Response
from aswarm._json import is_array, is_object, jsonable
from aswarm._messages import Message, call_name

from ._case import Case


@dataclass(frozen=True, slots=True)
class Call:
    """One call that the model made. `arguments`: the JSON text as the model wrote it."""

    name: str
    arguments: str

    def __str__(self) -> str:
        """The call on one line, such as `book({"city": "Rome"})`."""
        return f"{self.name}({'' if self.parsed == {} else ' '.join(self.arguments.split())})"

    @property
    def parsed(self) -> Any:
        """The parsed arguments; `{}` if the text is empty, None if it is not JSON."""
        try:
            return json.loads(self.arguments) if self.arguments.strip() else {}
        except (ValueError, RecursionError):
            return None


def calls_of(messages: Iterable[Message]) -> list[Call]:
    """All calls of the assistant messages, in order, handoffs included."""
    return [
        Call(call_name(call), _text_of_arguments(call))
        for message in messages
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or ()
    ]


def _text_of_arguments(call: Mapping[str, Any]) -> str:
    function: Mapping[str, Any] = call.get("function") or {}
    return str(function.get("arguments") or "")


def unexpected(case: Case, calls: Sequence[Call]) -> str | None:
    """What the case expected, as a text, if the calls differ from it; None if they do not. The rules are those of `Case`."""
    if case.function is ... and case.arguments is None:
        return None
    if case.calls_nothing:
        return "expected no call" if calls else None
    if is_array(case.function) and sorted(case.function) != sorted(call.name for call in calls):
        return f"expected exactly these calls: {', '.join(case.function)}"
    candidates = calls[:1] if case.extent == "completion" else calls
    return None if any(_fits(case, call) for call in candidates) else _expectation(case)


def unexpected_output(case: Case, response: Response) -> str | None:
    """What the case expected of an answer with a type, if the answer differs from it. Raises AswarmError if there is none."""
    if case.output is None:
        return None
    answer: Any = jsonable(response.output)
    given: Mapping[str, Any] = answer if is_object(answer) else {"value": answer}
    wrong = [name for name, value in case.output.items() if name not in given or not _agrees(value, given[name])]
    expected = ", ".join(f"{name}={_shown(case.output[name])}" for name in wrong)
    return f"expected an output with {expected}, not {_shown(answer)}" if wrong else None


def _fits(case: Case, call: Call) -> bool:
    return (not isinstance(case.function, str) or call.name == case.function) and _has(call, case.arguments or {})


def _expectation(case: Case) -> str:
    named = case.function if isinstance(case.function, str) else "a call"
    arguments = ", ".join(f"{name}={_shown(value)}" for name, value in (case.arguments or {}).items())
    return f"expected {named}" + (f" with {arguments}" if arguments else "")


def _has(call: Call, expected: Mapping[str, Any]) -> bool:
    given = call.parsed
    if not is_object(given):
        return not expected
    return all(name in given and _agrees(value, given[name]) for name, value in expected.items())


def _agrees(expected: Any, given: Any) -> bool:
    """Whether two JSON values are equal, where true is not 1. A callable decides itself."""
    if callable(expected):
        return bool(expected(given))
    if is_object(expected) and is_object(given):
        return expected.keys() == given.keys() and all(_agrees(expected[key], given[key]) for key in expected)
    if is_array(expected) and is_array(given):
        return len(expected) == len(given) and all(map(_agrees, expected, given))
    return isinstance(expected, bool) == isinstance(given, bool) and bool(expected == given)


def _shown(value: Any) -> str:
    if callable(value):
        return f"<{getattr(value, '__name__', 'check')}>"
    return json.dumps(value, ensure_ascii=False, default=str)
