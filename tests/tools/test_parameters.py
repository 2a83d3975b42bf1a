"""Kinds of parameters: which ones the model sees, which are hidden, and which functions are refused."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import json
import warnings
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, tool
from aswarm.testing import ScriptedModel, call
from aswarm.util import function_to_json
from tests.support.tools.hint_schemas import complaints, parameters_of, received, refused, taking, with_signature


def test_keyword_only_parameters_are_parameters() -> None:
    """`*, city` is offered like any other."""

    def f(a: int, *, city: str, limit: int = 3) -> None: ...

    assert parameters_of(f) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "city": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["a", "city"],
    }


def test_further_arguments_are_taken_and_checked() -> None:
    """`**rest` is no property of the schema; it takes further arguments, by its hint."""

    def f(a: int, **rest: int) -> None: ...

    assert parameters_of(f) == {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert received(f, {"a": "1", "b": "2"}) == {"a": 1, "b": 2}


def test_unhinted_further_arguments_are_json_values() -> None:
    """`**rest` without a hint takes anything."""

    def f(**rest) -> None: ...  # type: ignore[no-untyped-def]

    assert received(f, {"b": [1], "c": None}) == {"b": [1], "c": None}


def test_without_further_arguments_the_unexpected_is_refused() -> None:
    """A misspelled name is an error for the model, not dropped."""
    assert complaints(taking(int), {"x": 1, "y": 2}) == ["y: Extra inputs are not permitted (got 2)"]


def test_context_variables_are_hidden_and_discarded() -> None:
    """The model neither sees nor sets them, whatever the kind and hint of the parameter."""

    def plain(context_variables, a: int) -> None: ...  # type: ignore[no-untyped-def]

    def hinted(a: int, *, context_variables: dict[str, Any] | None = None) -> None: ...

    def further(a: int, context_variables: dict[str, Any], **rest: Any) -> None: ...

    def none(a: int) -> None: ...

    def only_further(a: int, **rest: Any) -> None: ...

    for function in (plain, hinted, further, none, only_further):
        assert parameters_of(function)["properties"] == {"a": {"type": "integer"}}
        assert parameters_of(function)["required"] == ["a"]
        given = received(function, {"a": 1, "context_variables": {"admin": True}})
        assert given in ({"a": 1}, {"a": 1, "context_variables": {}})


def test_star_args_are_refused_by_name() -> None:
    """The model passes arguments by name: `*args` is the developer's mistake, and the error names function and parameter."""

    def f(*things: int) -> None: ...

    assert "'f'" in refused(f)
    assert "'things'" in refused(f)


def test_positional_only_parameters_are_refused_by_name() -> None:
    """So are parameters before a `/`, the context variables included."""

    def f(a: int, /) -> None: ...

    def g(context_variables: dict[str, Any], /) -> None: ...

    assert "'f'" in refused(f)
    assert "'a'" in refused(f)
    assert "'g'" in refused(g)
    assert "'context_variables'" in refused(g)


@pytest.mark.parametrize("name", ["größe", "x" * 65])
def test_parameter_names_that_the_api_refuses_are_refused(name: str) -> None:
    """Letters, digits and _ up to 64: what Python allows beyond is refused before any request."""
    text = refused(with_signature({name: (int, False)}))
    assert "'function'" in text
    assert repr(name) in text


@pytest.mark.parametrize(
    "name", ["x" * 65, "ü" * 65, "gr öße", "<größe>", "<lambda>", "with space", "with.dot", "new\nline", "end\n"]
)
def test_function_names_that_the_api_refuses_are_refused(name: str) -> None:
    """Letters, digits, _ and - up to 64."""

    def f() -> None: ...

    f.__name__ = name
    assert repr(name) in refused(f)


@pytest.mark.asyncio
async def test_function_names_beyond_ascii_are_warned_about_once() -> None:
    """Servers at home take them and OpenAI does not: there is one warning for the function."""

    def größe() -> str:
        return "180 cm"

    model = ScriptedModel([call("größe"), call("größe"), "Done", call("größe"), "Done"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            response = await AsyncSwarm(model.client()).run(Agent(functions=[größe]), "How tall?")
    assert [message["content"] for message in response.messages if message["role"] == "tool"] == ["180 cm"]
    (warning,) = caught
    assert "function 'größe'" in str(warning.message)
    assert "OpenAI refuses" in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, größe.__code__.co_firstlineno)


def test_a_name_beyond_ascii_without_a_place() -> None:
    """A class has no line of its own in Python; the warning comes all the same."""

    class Größe:
        def __init__(self, unit: str) -> None: ...

    with pytest.warns(UserWarning, match="function 'Größe'"):
        function_to_json(Größe)


def test_a_lambda_needs_a_name() -> None:
    """`<lambda>` is refused; given a name it is a tool like any other."""
    assert "<lambda>" in refused(lambda city: city)
    named = function_to_json(tool(name="look")(lambda city: city))
    assert named["function"]["name"] == "look"
    assert named["function"]["parameters"]["required"] == ["city"]


@pytest.mark.parametrize("builtin", [len, print, max, int, str, dict, sorted])
def test_builtins_that_cannot_be_called_by_name_are_refused(builtin: Any) -> None:
    """A builtin with no readable signature, `*args` or positional-only parameters is refused, by name."""
    assert repr(builtin.__name__) in refused(builtin)


def test_builtins_that_can_be_called_by_name_are_tools() -> None:
    """A builtin with plain parameters is offered."""
    assert parameters_of(json.dumps)["required"] == ["obj"]
