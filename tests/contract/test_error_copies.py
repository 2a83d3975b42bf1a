"""Public errors cross processes: pickled or copied, each keeps its text, its arguments and its attributes.

The classes are found in `__all__` of every public module, so a new error is tested too.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from aswarm import Agent, AswarmError, Hold, Response, ToolError, tool
from docs._site import reference

ERRORS = sorted(
    (kind for kind in reference.public_classes() if issubclass(kind, BaseException)), key=lambda kind: kind.__name__
)
VALUES: dict[Any, Any] = {str: "a text", int: 418, float: 1.5, bool: True, object: {"amount": 5}, Any: ["any"]}
COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@tool(approve=True)
def refund(order: int) -> str:
    return f"refunded {order}"


def value_of(hint: Any) -> Any:
    """Return a value that is no default, for a parameter with this hint."""
    if hint in VALUES:
        return VALUES[hint]
    if get_origin(hint) is Literal:
        return get_args(hint)[-1]
    if get_origin(hint) in (Union, types.UnionType):
        return value_of(next(each for each in get_args(hint) if each is not type(None)))
    return hint("a text")


def example(kind: type[BaseException]) -> BaseException:
    """Return an error of the class, with a value for each parameter that the class adds to those of Exception."""
    if not inspect.isfunction(kind.__init__):
        return kind("a text", 7)
    hints = get_type_hints(kind.__init__)
    parameters = list(inspect.signature(kind).parameters.values())
    values = {each.name: value_of(hints[each.name]) for each in parameters}
    positional = [values.pop(each.name) for each in parameters if each.kind is not each.KEYWORD_ONLY]
    return kind(*positional, **values)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_copy_of_an_error_has_its_text_arguments_and_attributes(kind: type[BaseException], way: str) -> None:
    """Also those that a run or a program has set later: the response, a note."""
    error = example(kind)
    error.add_note("in the second step")
    if isinstance(error, AswarmError):
        agent = Agent(name="A", functions=[refund])
        error.response = Response(messages=[{"role": "user", "content": "Hi"}], agent=agent, stop="error")
    again = COPIES[way](error)
    assert type(again) is kind
    assert (str(again), repr(again), again.args) == (str(error), repr(error), error.args)
    assert vars(again) == vars(error)
    assert again.__notes__ == ["in the second step"]


@pytest.mark.parametrize("base", [AswarmError, ToolError, Hold])
def test_an_error_of_a_program_with_its_own_constructor_is_copied_too(base: Any) -> None:
    """A subclass of a program need not know how its base class is pickled."""

    class Closed(base):  # type: ignore[misc]
        def __init__(self, day: str, *, hour: int) -> None:
            super().__init__(f"closed on {day}")
            self.hour = hour

    again = copy.copy(Closed("Monday", hour=9))
    assert (str(again), again.hour) == ("closed on Monday", 9)
