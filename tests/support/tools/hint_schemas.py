"""Types for hints, and helpers that return the schema of a hint, or validate arguments with it."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has hints that are text.

import asyncio
import dataclasses
import functools
import inspect
import json
import keyword
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict as PydanticTypedDict

from aswarm import Agent, AsyncSwarm, ConfigurationError, Tool, tool
from aswarm.testing import ScriptedModel, call
from aswarm.util import function_to_json


def parameters_of(function: Callable[..., Any]) -> Any:
    return function_to_json(function)["function"]["parameters"]


def taking(hint: Any = inspect.Parameter.empty, default: Any = inspect.Parameter.empty) -> Callable[..., Any]:
    """Return a function of one parameter `x` with this hint and default."""

    def function(x: Any) -> Any:
        return x

    parameter = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hint, default=default)
    function.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    return function


def schema_of_hint(hint: Any) -> Any:
    return parameters_of(taking(hint))["properties"]["x"]


def names_of(agent: Agent) -> list[str]:
    """Return the names of the tools that a request of the agent offers."""
    model = ScriptedModel(["Hello"])
    asyncio.run(AsyncSwarm(model.client()).run(agent, "Hi"))
    return [each["function"]["name"] for each in model.requests[0].body.get("tools", ())]


def _watched(function: Any, calls: list[dict[str, Any]]) -> Any:
    """Return a function that looks the same, and only keeps its arguments."""
    if isinstance(function, functools.partial):
        return functools.partial(_watched(function.func, calls), *function.args, **function.keywords)

    @functools.wraps(function)
    def keep(*_: Any, **given: Any) -> str:
        calls.append(given)
        return "called"

    return keep


def _called(function: Any, arguments: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Call the function in a run. Return the arguments of each call, and the tool message."""
    calls: list[dict[str, Any]] = []
    if isinstance(function, Tool):
        offered: Any = dataclasses.replace(function, function=_watched(function.function, calls))
    else:
        offered = _watched(function, calls)
    model = ScriptedModel([call(function_to_json(function)["function"]["name"], json.dumps(arguments)), "Done"])
    response = asyncio.run(AsyncSwarm(model.client()).run(Agent(functions=[offered]), "Go"))
    return calls, response.messages[1]["content"]


def received(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function gets for the arguments of a model."""
    calls, text = _called(function, arguments)
    assert text == "called", text
    [given] = calls
    return given


def converted(hint: Any, value: Any) -> Any:
    return received(taking(hint), {"x": value})["x"]


def complaints(function: Callable[..., Any], arguments: dict[str, Any]) -> list[str]:
    """Return the lines about the arguments in the tool message."""
    calls, text = _called(function, arguments)
    assert calls == []
    return text.removeprefix("Error: ").split("\n")


class Color(Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Point:
    x: int
    label: str = "p"


class Options(PydanticTypedDict, total=False):
    verbose: bool


class Address(BaseModel):
    title: str
    street: str = Field(description="without number")


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Pair(NamedTuple):
    left: int
    right: str


SWARM_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and name != "context_variables"
)
signatures = st.dictionaries(
    names, st.tuples(st.sampled_from([*SWARM_TYPES, inspect.Parameter.empty]), st.booleans()), max_size=5
)


def with_signature(drawn: dict[str, tuple[Any, bool]]) -> Callable[..., Any]:
    def function(**named: Any) -> Any:
        return named

    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default="d" if has_default else empty)
        for name, (hint, has_default) in drawn.items()
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def refused(function: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        function_to_json(function)
    return str(caught.value)


class Service:
    """A service."""

    def look(self, city: str, limit: int = 3) -> str:
        """Look around."""
        return city

    @tool
    def find(self, city: str) -> str:
        """Find something."""
        return city

    @tool
    @classmethod
    def made(cls, city: str) -> str:
        """Of the class."""
        return city

    @tool
    @staticmethod
    async def fixed(city: str) -> str:
        """Of nobody."""
        return city


class Caller:
    """A callable."""

    def __call__(self, city: str) -> str:
        """Call it."""
        return city
