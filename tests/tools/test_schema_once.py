"""A schema is built once per function, and lives no longer than it."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import functools
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from aswarm import Tool, function_to_json, tool
from aswarm._tools.tool import as_tool
from tests.support.tools.hint_schemas import Caller, Color, Service, parameters_of, taking, with_signature


def test_a_schema_is_built_once_per_function() -> None:
    """However often a function is offered, its schema is the same object."""

    def look(city: str) -> None: ...

    partial = functools.partial(look)
    caller = Caller()
    for function in (look, partial, caller, tool(look)):
        assert as_tool(function)._schema is as_tool(function)._schema


def test_a_schema_is_built_once_per_method() -> None:
    """A bound method is a new object each time it is looked up, and yet one function."""
    service = Service()
    assert as_tool(service.look)._schema is as_tool(service.look)._schema
    assert as_tool(service.find)._schema is as_tool(service.find)._schema


def test_a_schema_goes_with_its_function() -> None:
    """No registry keeps a function alive, nor what its closure holds."""

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
    as_tool(function)
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


def test_functions_that_differ_only_in_their_defaults_have_their_own_schemas() -> None:
    """Equal-looking closures are different functions."""

    def make(required: bool) -> Callable[..., Any]:
        return taking(int) if required else taking(int, 3)

    first, second = make(True), make(False)
    assert parameters_of(first)["required"] == ["x"]
    assert parameters_of(second)["required"] == []


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
