"""A schema is built once per function, and lives no longer than it."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import functools
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import core_schema

from aswarm import Tool, tool
from aswarm.util import function_to_json
from tests.support.tools.hint_schemas import Color, parameters_of, with_signature


class Built:
    """A type that counts how often its schema is built."""

    times = 0

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> core_schema.CoreSchema:
        cls.times += 1
        return core_schema.str_schema()


def look(city: Built) -> None: ...


class Desk:
    def look(self, city: Built) -> None: ...

    @tool
    def find(self, city: Built) -> None: ...

    def __call__(self, city: Built) -> None: ...


desk, partial, made = Desk(), functools.partial(look), tool(look)


@pytest.mark.parametrize(
    "function", [lambda: look, lambda: partial, lambda: desk, lambda: made, lambda: desk.look, lambda: desk.find]
)
def test_a_schema_is_built_once_per_function(function: Callable[[], Any]) -> None:
    """A function is offered several times with one schema. A bound method is a new object for each access."""
    function_to_json(function())
    times = Built.times
    assert times
    assert parameters_of(function())["properties"] == {"city": {"type": "string"}}
    assert Built.times == times


def test_a_schema_goes_with_its_function() -> None:
    """No registry keeps a function or its closure alive."""

    class Big:
        pass

    def make() -> tuple[Callable[..., Any], weakref.ref[Any], weakref.ref[Any]]:
        held = Big()

        class Model(BaseModel):
            x: int

        def look(city: str, model: Model, color: Color = Color.RED) -> Any:
            return held

        return look, weakref.ref(look), weakref.ref(held)

    function, to_function, to_held = make()
    function_to_json(function)
    del function
    gc.collect()
    assert to_function() is None
    assert to_held() is None


def test_a_new_function_never_gets_the_schema_of_one_that_is_gone() -> None:
    """Functions are made and dropped in a web service; an address that is used again is another function."""

    def make(name: str) -> Callable[..., Any]:
        return with_signature({name: (int, False)})

    for number in range(300):
        assert list(parameters_of(make(f"p{number}"))["properties"]) == [f"p{number}"]


def test_a_tool_stays_a_function() -> None:
    """`@tool` keeps name, docstring and signature, and calling it calls the function."""

    @tool
    def look(city: str) -> str:
        """Look around."""
        return city.upper()

    assert isinstance(look, Tool)
    assert look("paris") == "PARIS"
    assert (look.__name__, look.__doc__) == ("look", "Look around.")  # type: ignore[attr-defined]
    assert list(inspect.signature(look).parameters) == ["city"]
