"""The public types as other libraries use them: their hints can be read, they name their package, they can be pickled."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import types
import typing
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from aswarm import (
    Agent,
    AswarmError,
    AsyncSwarm,
    Budget,
    CompletionFinished,
    File,
    HandedOff,
    Hold,
    Image,
    Output,
    RateLimits,
    Response,
    Result,
    RunFinished,
    Swarm,
    TextDelta,
    Tool,
    ToolCallFinished,
    ToolCallStarted,
    ToolError,
    Usage,
    external_tool,
    tool,
)
from aswarm.batch import Item
from aswarm.code import CodeLimits
from aswarm.errors import ToolTimeout
from aswarm.evals import Case
from aswarm.events import ReasoningDelta, RefusalDelta, ToolCallDelta, TurnStarted
from aswarm.middleware import CompletionRequest, ToolOutcome, summarize
from aswarm.testing import ScriptedModel, call
from docs._site import reference

PACKAGES = [
    "aswarm",
    "aswarm.batch",
    "aswarm.conversations",
    "aswarm.evals",
    "aswarm.extensions",
    "aswarm.graph",
    "aswarm.middleware",
    "aswarm.repl",
    "aswarm.runs",
    "aswarm.testing",
]


def exported() -> list[tuple[ModuleType, str, Any]]:
    packages = [importlib.import_module(name) for name in PACKAGES]
    return [(package, name, getattr(package, name)) for package in packages for name in package.__all__]


TYPES = [(package, name, value) for package, name, value in exported() if isinstance(value, type)]
FUNCTIONS = [(package, name, value) for package, name, value in exported() if inspect.isfunction(value)]


def name_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("package", "name", "value"), TYPES + FUNCTIONS, ids=name_of)
def test_a_public_name_reports_the_package_that_exports_it(package: ModuleType, name: str, value: Any) -> None:
    """`__module__` is a public package, where the very object stands under its name; so a definition can be moved."""
    assert value.__module__ in PACKAGES
    assert getattr(importlib.import_module(value.__module__), name) is value


@pytest.mark.parametrize(("package", "name", "value"), TYPES + FUNCTIONS, ids=name_of)
def test_the_hints_of_a_public_name_can_be_read(package: ModuleType, name: str, value: Any) -> None:
    """`typing.get_type_hints` works on classes and functions, as web frameworks and documentation call it."""
    hints = typing.get_type_hints(value, include_extras=True)
    assert not [hint for hint in hints.values() if isinstance(hint, str)]


METHODS: list[tuple[str, Callable[..., Any]]] = [
    (f"{name}.{key}", member)
    for package, name, value in TYPES
    for key, member in vars(value).items()
    # pydantic adds a method of its own to a class with private attributes.
    if inspect.isfunction(member) and not member.__module__.startswith("pydantic.")
    if not key.startswith("_") or key == "__init__"
]


@pytest.mark.parametrize(("name", "method"), METHODS, ids=name_of)
def test_the_hints_of_a_public_method_can_be_read(name: str, method: Callable[..., Any]) -> None:
    """The hints of methods can be read too, except a hint whose package is imported late."""
    if name == "ScriptedModel.client":  # returns an AsyncOpenAI, and openai is not imported with the module
        return
    typing.get_type_hints(method)


# --- pickles ----------------------------------------------------------------------------------------------------------


def look(city: str) -> str:
    """Look."""
    return city


AGENT = Agent(name="A", functions=[look, Agent(name="B")])
USAGE = Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3)
RESPONSE = Response(messages=[{"role": "assistant", "content": "Hi"}], agent=AGENT, usage=USAGE, run_id="mine")
VALUES = [
    AGENT,
    USAGE,
    RESPONSE,
    Result(value=1, agent=AGENT, context_variables={"a": 1}),
    TurnStarted(AGENT, 1),
    TextDelta("a"),
    ReasoningDelta("a"),
    RefusalDelta("a"),
    ToolCallDelta(0, "id", "name", "{}"),
    CompletionFinished({"role": "assistant"}, "stop", USAGE),
    ToolCallStarted(0, "id", "look", "{}", AGENT),
    HandedOff(AGENT, AGENT),
    RunFinished(RESPONSE),
    ToolOutcome("text", Result(agent=AGENT)),
    CompletionRequest(AGENT, {"stream": True}),
]


POSITIONAL = {
    AsyncSwarm.stream: ["self", "agent", "messages", "context_variables"],
    Budget: [],
    Case: ["conversation"],
    CodeLimits: [],
    File: ["data"],
    Image: ["data"],
    Item: ["messages"],
    Output: ["type"],
    RateLimits: [],
    Swarm.stream: ["self", "agent", "messages", "context_variables"],
    Tool: ["function"],
    external_tool: [],
    summarize: ["agent"],
}


@pytest.mark.parametrize("function", POSITIONAL, ids=lambda function: function.__qualname__)
def test_options_are_given_by_name(function: Any) -> None:
    """A later version may add an option at any place; only parameters whose meaning is clear at a call are positional."""
    parameters = inspect.signature(function).parameters.values()
    assert [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD] == POSITIONAL[function]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_can_be_pickled_and_copied(value: Any) -> None:
    """Values of a run go to other processes and into caches: they come back equal, and of the same class."""
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert type(again) is type(value)
        assert again == value


def test_a_pickle_names_public_places() -> None:
    """What is stored does not name a private module, so that it can be read after one was moved."""
    for value in VALUES:
        assert b"aswarm._" not in pickle.dumps(value), value


def test_an_event_with_an_error_can_be_pickled() -> None:
    """Exceptions do not compare; class, text and attributes stay."""
    error = ToolTimeout("late", still_running=True)
    again = pickle.loads(pickle.dumps(ToolCallFinished(0, "id", "look", "late", error, True)))
    assert type(again.error) is ToolTimeout
    assert (str(again.error), again.error.still_running) == ("late", True)


@pytest.mark.asyncio
async def test_the_response_of_a_run_can_be_pickled_with_its_id() -> None:
    """The response of a real run, with calls, context, usage and id, comes back equal."""
    swarm = AsyncSwarm(ScriptedModel([call("look", city="Oslo"), "Done."]).client())
    response = await swarm.run(Agent(functions=[look]), "Hi", {"user": 1}, run_id="mine")
    again = pickle.loads(pickle.dumps(response))
    assert again == response
    assert again.run_id == "mine"
    assert again.text == "Done."


# --- errors --------------------------------------------------------------------------------------------------------------

ERRORS = sorted(
    (kind for kind in reference.public_classes() if issubclass(kind, BaseException)), key=lambda kind: kind.__name__
)
BY_HINT: dict[Any, Any] = {str: "a text", int: 418, float: 1.5, bool: True, object: {"amount": 5}, Any: ["any"]}
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
    if hint in BY_HINT:
        return BY_HINT[hint]
    if get_origin(hint) is Literal:
        return get_args(hint)[-1]
    if get_origin(hint) in (Union, types.UnionType):
        return value_of(next(each for each in get_args(hint) if each is not type(None)))
    return hint("a text")


def example(kind: type[BaseException]) -> BaseException:
    """Return an error of the class, with a value for each parameter that the class adds to Exception."""
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
    """A copy also has the response that a run has set, and the note of a program."""
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
