"""Schemas that JSON in UTF-8 cannot hold are found before the first request, with the names of function and parameter."""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from aswarm import Agent, AsyncSwarm, ConfigurationError, Output, external_tool, tool
from aswarm.testing import ScriptedModel
from aswarm.tools import function_tool


class Thing:
    """Has no JSON form."""


class Things(enum.Enum):
    ONE = Thing()


class Numbers(enum.Enum):
    ONE = math.nan


class WithDefault(BaseModel):
    x: float = math.inf


class WithExtra(BaseModel):
    model_config = ConfigDict(json_schema_extra={"z": Thing()})  # type: ignore[dict-item]
    x: int


class WithDescription(BaseModel):
    x: str = Field("a", description="caf\udce9")


HINTS: dict[str, tuple[Any, str]] = {
    "enum of objects": (Things, "Unable to serialize unknown type"),
    "enum of NaN": (Numbers, r"\['enum'\]\[0\] is nan"),
    "default": (WithDefault, r"\['x'\]\['default'\] is inf"),
    "extra": (WithExtra, r"\['z'\] is <.*Thing object .*>, which is not JSON"),
    "description": (WithDescription, r"\['description'\] has half a surrogate pair"),
    "inside a list": (list[WithDefault], r"\['default'\] is inf"),
}


def taking(hint: Any) -> Any:
    def look(thing: Any) -> str:
        """Look."""
        return "x"

    look.__annotations__["thing"] = hint
    return look


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("is_tool", [True, False])
async def test_a_parameter_is_named(name: str, is_tool: bool) -> None:
    """Nothing is sent."""
    hint, fault = HINTS[name]
    function = tool(taking(hint)) if is_tool else taking(hint)
    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match=f"function 'look': parameter 'thing' .*{fault}"):
        await AsyncSwarm(model.client()).run(Agent(functions=[function]), "Hi!")
    assert model.requests == []


async def test_metadata_and_a_docstring_are_named() -> None:
    """A text beside the type is a part of the schema."""
    model = ScriptedModel([])
    swarm = AsyncSwarm(model.client())
    look = taking(int)
    look.__doc__ = "caf\udce9"
    extra = taking(Annotated[int, Field(json_schema_extra={"x": Thing()})])  # type: ignore[dict-item]
    for function, fault in (
        (look, "function 'look': the description has half a surrogate pair"),
        (tool(description="\ud800")(taking(int)), "function 'look': the description has half a surrogate pair"),
        (taking(Annotated[int, "caf\udce9"]), r"parameter 'thing' .*\['description'\] has half"),
        (extra, "parameter 'thing' cannot be described to a model, because its schema is not JSON"),
    ):
        with pytest.raises(ConfigurationError, match=fault):
            await swarm.run(Agent(functions=[function]), "Hi!")
    assert model.requests == []


@pytest.mark.parametrize("make", [function_tool, external_tool])
@pytest.mark.parametrize(
    ("description", "extra", "fault"),
    [
        ("\ud800", {}, "the description has half a surrogate pair"),
        ("Look.", {"title": "\ud800"}, r"parameters\['title'\] has half a surrogate pair"),
        ("Look.", {"x": [Thing()]}, r"parameters\['x'\]\[0\] is <.*Thing"),
        ("Look.", {"x": {(1, 2): 3}}, r"parameters\['x'\] has the key \(1, 2\)"),
    ],
)
def test_a_ready_schema_is_checked_when_the_tool_is_made(make: Any, description: str, extra: Any, fault: str) -> None:
    """With the name of the function and the place."""
    function = (taking(int),) if make is function_tool else ()
    parameters = {"type": "object", "properties": {}, **extra}
    with pytest.raises(ConfigurationError, match=f"function 'look': .*{fault}"):
        make(*function, name="look", description=description, parameters=parameters)


@pytest.mark.parametrize("name", HINTS)
def test_an_output_type_is_checked_when_it_is_made(name: str) -> None:
    """By `Output`, and by an agent with the type."""
    hint, fault = HINTS[name]
    for make in (lambda: Output(hint), lambda: Output(hint | str), lambda: Agent(output=hint)):
        with pytest.raises(
            ConfigurationError, match=f"the output type .* cannot be described to a model: .*{fault}"
        ) as caught:
            make()
        assert type(caught.value) is ConfigurationError


async def test_an_output_type_that_exists_later_is_checked_by_the_run() -> None:
    """A class may name another class that is defined below it."""
    output = Output(list["Later"])  # type: ignore[name-defined]  # noqa: F821
    with pytest.raises(ConfigurationError, match="cannot be described to a model"):
        await AsyncSwarm(ScriptedModel([]).client()).run(Agent(output=output), "Hi!")
