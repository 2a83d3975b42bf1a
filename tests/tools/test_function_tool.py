"""`function_tool`: a tool whose JSON schema is given, and whose arguments are passed on as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Tool
from aswarm.testing import ScriptedModel, call
from aswarm.tools import function_tool
from aswarm.util import function_to_json
from tests.support.run.one_turn import contents, run_turn

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "x-hint": "keep me"}, "day": {"$ref": "#/$defs/Day"}},
    "required": ["city"],
    "$defs": {"Day": {"type": "string", "format": "date", "title": "Day"}},
    "$schema": "https://json-schema.org/draft/2020-12/schema",
}


def made(function: Callable[..., Any], **options: Any) -> Tool[..., Any]:
    return function_tool(function, **{"name": "look-up", "description": "Looks.", "parameters": PARAMETERS, **options})


async def echo(**arguments: Any) -> str:
    return repr(arguments)


async def test_the_schema_is_sent_as_it_is() -> None:
    """The tools list has name, description and parameters unchanged: unknown keywords, titles and references too."""
    model = ScriptedModel(["Hello"])
    await AsyncSwarm(client=model.client()).run(Agent(functions=[made(echo)]), "Hi")
    function = {"name": "look-up", "description": "Looks.", "parameters": PARAMETERS}
    assert model.requests[0].body["tools"] == [{"type": "function", "function": function}]
    assert function_to_json(made(echo)) == {"type": "function", "function": function}


async def test_arguments_come_as_they_were_sent() -> None:
    """They are neither checked nor converted: the function gets the JSON values, by name."""
    sent = {"city": 7, "day": "2026-11-21", "more": {"a": [1.5, None, True]}}
    response = await run_turn([made(echo)], [call("look-up", **sent), call("look-up")])
    assert contents(response) == [repr(sent), "{}"]


async def test_arguments_that_are_no_object_are_refused() -> None:
    """The function does not run, and the model gets the reason."""
    response = await run_turn([made(echo)], [call("look-up", "[1]"), call("look-up", "{")])
    array, broken = contents(response)
    assert array == "Error: the arguments must be a JSON object, not list; you sent '[1]'"
    assert broken.startswith("Error: the arguments are not JSON: ")


async def test_arguments_that_do_not_fit_are_the_functions_error() -> None:
    """The model gets the text of Python about a missing or an unexpected argument."""

    async def go(city: str) -> str:
        return city

    response = await run_turn([made(go)], [call("look-up"), call("look-up", city="Rome", land="Italy")])
    missing, unexpected = contents(response)
    assert missing.startswith("Error: TypeError: ") and "missing 1 required positional argument: 'city'" in missing
    assert unexpected.startswith("Error: TypeError: ") and "unexpected keyword argument 'land'" in unexpected


async def test_context_variables_are_never_taken_from_the_model() -> None:
    """A function that names them gets the context of the run; `**arguments` never contains them."""

    async def whose(context_variables: Mapping[str, Any], **arguments: Any) -> str:
        return f"{context_variables['user']} {arguments}"

    forged = {"city": "Rome", "context_variables": {"user": "Eve"}}
    tools = [made(echo, name="echo"), made(whose, name="whose")]
    calls = [call("echo", **forged), call("whose", **forged)]
    response = await run_turn(tools, calls, context_variables={"user": "Ann"})
    assert contents(response) == ["{'city': 'Rome'}", "Ann {'city': 'Rome'}"]


async def test_a_function_that_has_no_signature_can_be_offered() -> None:
    """Nothing is read from it, so a builtin will do."""
    response = await run_turn([made(dict)], [call("look-up", city="Rome")])
    assert contents(response) == ['{"city": "Rome"}']


def test_it_is_called_like_the_function() -> None:
    """Code calls it with nothing added, also where it was made in a class; it has the given name."""

    class Shop:
        def sell(self, city: str) -> str:
            return f"sold in {city}"

        sell_it = made(sell)

    assert made(len)([1, 2]) == 2
    assert Shop().sell_it(city="Rome") == "sold in Rome"
    assert function_to_json(Shop().sell_it) == function_to_json(made(Shop.sell))
    assert made(echo).__name__ == "look-up"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "look up"}, "'look up' has a name that the API refuses"),
        ({"name": "x" * 65}, "names of 1 to 64"),
        ({"parameters": {}}, "'look-up': parameters must be the JSON schema of an object"),
        ({"parameters": {"type": "string"}}, "JSON schema of an object"),
        ({"parameters": [PARAMETERS]}, "JSON schema of an object"),
        ({"parameters": {**PARAMETERS, "default": object()}}, "cannot be written as JSON"),
        ({"parameters": {**PARAMETERS, "maximum": float("nan")}}, "cannot be written as JSON"),
        ({"function": "look"}, "takes a function, not 'look'"),
        ({"timeout": 0}, "positive number of seconds"),
        ({"limiter": 3}, r"anyio\.CapacityLimiter"),
    ],
    ids=["name", "long name", "empty", "string", "list", "object", "nan", "no function", "timeout", "limiter"],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    """The error comes when the tool is made, not at the first request."""
    with pytest.raises(ConfigurationError, match=text):
        made(**{"function": echo, **options})
