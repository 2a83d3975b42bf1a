"""Types for hints, and helpers that return the schema of a hint, or validate arguments with it."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has hints that are text.

import dataclasses
import inspect
import keyword
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict as PydanticTypedDict

from aswarm import ConfigurationError, ToolArgumentsError, function_to_json, tool
from aswarm._tools.schema import schema_of


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


def converted(hint: Any, value: Any) -> Any:
    return schema_of(taking(hint)).validate({"x": value})["x"]


def complaints(function: Callable[..., Any], arguments: dict[str, Any]) -> list[str]:
    with pytest.raises(ToolArgumentsError) as caught:
        schema_of(function).validate(arguments)
    return str(caught.value).split("\n")


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


# --- exactly Swarm's dict ---------------------------------------------------------------------------------------------

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


# --- kinds of parameters ----------------------------------------------------------------------------------------------


def refused(function: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        function_to_json(function)
    return str(caught.value)


# --- what is behind the function --------------------------------------------------------------------------------------


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
