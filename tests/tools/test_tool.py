"""`@tool`: its options, refused values, and whether a call returns a coroutine."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import functools
import gc
import inspect
import sys
import weakref
from typing import Any

import pytest

from aswarm import Agent, ConfigurationError, Tool, tool
from aswarm._tools.tool import is_async
from aswarm._tools.toolbox import tools_of
from aswarm.tools import function_tool
from aswarm.util import function_to_json
from tests.support.tools.sample_functions import Service, Slotted, Unhashable, find, look

# --- @tool ------------------------------------------------------------------------------------------------------------


def test_without_options_a_tool_is_the_function() -> None:
    """`@tool` and `@tool()` make the same tool, offered as the bare function is."""
    bare, empty = tool(look), tool()(look)
    assert function_to_json(bare) == function_to_json(empty) == function_to_json(look)
    for made in (bare, empty):
        assert (made.concurrent, made.limiter, made.timeout, made.thread) == (None, None, None, True)
        assert (made.abandon_on_cancel, made.strict, made.name) == (False, False, None)


def test_a_second_tool_adds_to_the_first() -> None:
    """Options of the outer `@tool` win; other options stay."""
    made = tool(timeout=5)(tool(timeout=1, name="other")(look))
    assert (made.timeout, made.name, made.function) == (5, "other", look)


def test_a_description_replaces_the_docstring() -> None:
    """The model gets the description of `@tool`; parameters and the other tool of the function stay as they are."""
    described, plain = tool(description="Weather of a city.")(look), function_to_json(look)
    made = function_to_json(described)
    assert made["function"] == {**plain["function"], "description": "Weather of a city."}
    assert function_to_json(tool(description="")(look))["function"]["description"] == ""
    assert function_to_json(look) == plain


def test_a_description_has_priority_over_that_of_function_tool() -> None:
    """A second `@tool` adds its options, also to a tool with its own schema."""
    made = function_tool(look, name="look", description="Old.", parameters={"type": "object", "properties": {}})
    assert function_to_json(tool(description="New.")(made))["function"]["description"] == "New."


def test_each_option_of_the_hints_is_accepted_and_no_other() -> None:
    """The typed overload and the check of names have the same options, which are fields of the tool."""
    source = ast.parse(inspect.getsource(sys.modules["aswarm._tools.tool"]))
    overloads = [each for each in source.body if isinstance(each, ast.FunctionDef) and each.name == "tool"]
    hints = {argument.arg for each in overloads for argument in each.args.kwonlyargs}
    options: dict[str, Any] = {name: getattr(tool(look), name) for name in hints}
    assert tool(**options)(look).function is look
    fields = {field.name for field in dataclasses.fields(Tool)}
    for name in fields - hints:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            tool(**{name: None})


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("needs_approval", "approve=True"),
        ("requires_approval", "approve=True"),
        ("retries", "raise ToolError"),
        ("max_retries", "raise ToolError"),
        ("name_override", "name="),
        ("description_override", "description="),
        ("strict_mode", "strict=True"),
        ("parameters", "function_tool"),
        ("is_external", "external_tool"),
        ("time_out", "the options are concurrent, limiter,"),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_options(option: str, remedy: str) -> None:
    """The error comes where the option stands, and names the option of aswarm in place of an option of another library."""
    with pytest.raises(TypeError) as caught:
        tool(**{option: True})
    assert str(caught.value).startswith(f"tool() got an unexpected keyword argument {option!r}; ")
    assert remedy in str(caught.value)
    assert "may_wait, private, defer, name, description" in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5", [1]])
def test_a_timeout_that_is_no_positive_number_is_refused(timeout: Any) -> None:
    """It is the developer's mistake, found where it is made."""
    with pytest.raises(ConfigurationError) as caught:
        tool(timeout=timeout)
    assert repr(timeout) in str(caught.value)


@pytest.mark.parametrize("thing", ["look", 5, Agent()])
def test_a_tool_of_something_that_is_no_function_is_refused(thing: Any) -> None:
    """`@tool("name")`, as other libraries have it, is a ConfigurationError, not a puzzle at the first call."""
    with pytest.raises(ConfigurationError):
        tool(thing)


@pytest.mark.parametrize(
    ("made", "result"),
    [
        (Service().plain, "plain Paris"),
        (Service().made, "Service Paris"),
        (Service.made, "Service Paris"),
        (Service().bare, "bare Paris"),
    ],
)
def test_tools_of_a_class_bind_like_methods(made: Any, result: str) -> None:
    """Looked up on an instance (or, for a class method, on the class), a tool is bound, and can be called and offered."""
    assert made("Paris") == result
    assert made(city="Paris") == result
    assert function_to_json(made)["function"]["parameters"]["required"] == ["city"]


def test_a_bound_tool_does_not_outlive_its_instance() -> None:
    """No registry holds the instance."""
    service = Service()
    reference = weakref.ref(service)
    tools_of(Agent(functions=[service.plain, service.slow, service.bare]))
    del service
    gc.collect()
    assert reference() is None


# --- is it async ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (look, False),
        (find, True),
        (tool(find), True),
        (tool(look), False),
        (functools.partial(find), True),
        (functools.partial(tool(find)), True),
        (tool(functools.partial(find)), True),
        (functools.partial(look), False),
        (Slotted(), True),
        (functools.partial(Slotted()), True),
        (tool(Slotted()), True),
        (Unhashable(), False),
        (Service().slow, True),
        (Service().fixed, True),
        (Service.fixed, True),
        (Service().plain, False),
        (lambda: None, False),
        (len, False),
        (dict, False),
        (Slotted, False),
    ],
)
def test_whether_calling_gives_a_coroutine(function: Any, expected: bool) -> None:
    """Seen through tools, partials, methods and callable objects; a class gives an instance, never a coroutine."""
    assert is_async(function) is expected
    if isinstance(function, Tool):
        assert function.is_async is expected


@pytest.mark.parametrize("limiter", [asyncio.Semaphore(2), 3])
def test_a_limiter_of_another_kind_is_refused(limiter: Any) -> None:
    """The caller gets the error at once, instead of the model at every call."""
    with pytest.raises(ConfigurationError, match=r"anyio\.CapacityLimiter"):
        tool(limiter=limiter)
