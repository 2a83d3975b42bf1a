"""From a hint to its schema: what JSON schema calls it, and "string" where nothing is known."""

# ruff: noqa: UP006, UP007, UP035, UP045 - the old spellings of hints are what is tested
# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Dict, List, Literal, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from aswarm.util import function_to_json
from tests.support.tools.hint_schemas import (
    Address,
    Cat,
    Color,
    Dog,
    Node,
    Options,
    Point,
    converted,
    parameters_of,
    received,
    refused,
    schema_of_hint,
    taking,
)

T = TypeVar("T")


class Refusing:
    """A class whose own description fails."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Any:
        raise TypeError("no")


class Opaque:
    """Something that no JSON value can become."""


# --- "string" where nothing is known ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hint",
    [
        inspect.Parameter.empty,
        Any,
        object,
        Annotated[Any, "x"],
        Opaque,
        list[Opaque],
        Callable[[int], int],
        Iterator,
        T,
        type[int],
        Opaque | None,
        5,
        ...,
        any,
        callable,
        Refusing,
    ],
    ids=str,
)
def test_what_cannot_be_described_is_a_string(hint: Any) -> None:
    """A parameter is a "string" without a hint, with `Any`, and with a hint that pydantic cannot describe, such as `any`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = schema_of_hint(hint)
    schema.pop("description", None)
    assert schema == {"type": "string"}


@pytest.mark.parametrize("value", ["text", 5, 1.5, None, True, [1, {"a": None}], {"k": "v"}])
@pytest.mark.filterwarnings("ignore:function .* has the hint")
@pytest.mark.parametrize("hint", [inspect.Parameter.empty, Any, Opaque], ids=["unhinted", "Any", "undescribable"])
def test_a_parameter_without_a_usable_hint_gets_the_json_value(hint: Any, value: Any) -> None:
    """Whatever the model sends arrives as it is."""
    assert converted(hint, value) == value


@pytest.mark.parametrize("hint", [any, Any, Opaque, 5, int, T, Opaque | None], ids=str)
def test_a_default_of_none_goes_with_every_hint(hint: Any) -> None:
    """`data: any = None`, as beginners and models write it, is offered and takes null."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert received(taking(hint, None), {"x": None}) == {"x": None}


# --- what Swarm turned into "string" ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Union[int, "str"], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (Literal["a"], {"const": "a", "type": "string"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (List[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (date, {"type": "string", "format": "date"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Path, {"type": "string", "format": "path"}),
        (timedelta, {"type": "string", "format": "duration"}),
        (
            Annotated[int, Field(description="how many", ge=1)],
            {"type": "integer", "description": "how many", "minimum": 1},
        ),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (Annotated[Annotated[int, "inner"], "outer"], {"type": "integer", "description": "outer"}),
        (Annotated[list, "things"], {"type": "array", "description": "things"}),
        ("list[int] | None", {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}),
    ],
    ids=str,
)
def test_hints_beyond_swarms_are_what_json_schema_calls_them(hint: Any, expected: Any) -> None:
    """Optionals, unions, literals, generics, dates and descriptions are in the schema, without titles."""
    assert schema_of_hint(hint) == expected


@pytest.mark.parametrize("hint", [Annotated[int, "how many"] | None, Optional[Annotated[int, "how many"]]], ids=str)
def test_a_plain_text_inside_an_optional_describes_it(hint: Any) -> None:
    """`Annotated[int, "text"] | None` has the same meaning for the model as `Annotated[int, Field(description="text")] | None`."""
    assert "how many" in json.dumps(schema_of_hint(hint))


def test_an_enum_is_its_values() -> None:
    """The schema refers to one definition with the values."""
    parameters = parameters_of(taking(Color))
    assert parameters["properties"]["x"] == {"$ref": "#/$defs/Color"}
    assert parameters["$defs"]["Color"] == {"description": "A colour.", "enum": ["red", "blue"], "type": "string"}


def test_a_recursive_model_is_described_once() -> None:
    """A model that contains itself refers to its own definition."""
    parameters = parameters_of(taking(Node))
    assert parameters["properties"]["x"] == {"$ref": "#/$defs/Node"}
    children = parameters["$defs"]["Node"]["properties"]["children"]
    assert children == {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []}


def test_no_title_of_pydantics_is_left_anywhere() -> None:
    """The schema holds no `title`, at any depth, but for a parameter or a field of that name."""

    def f(a: Node, b: Point, c: Options, d: Color, e: Dog | Cat, g: Address, title: int) -> None: ...

    assert [path for path in _titles(parameters_of(f)) if path[-2] != "properties"] == []


def _titles(schema: Any, path: tuple[str, ...] = ("",)) -> Iterator[tuple[str, ...]]:
    if isinstance(schema, list):
        for item in schema:
            yield from _titles(item, path)
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "title":
                yield (*path, key)
            yield from _titles(value, (*path, key))


def test_two_models_of_one_name_are_told_apart() -> None:
    """Two different classes called `Address` are two definitions."""

    class Other(BaseModel):
        zip_code: int

    Other.__name__ = Other.__qualname__ = "Address"

    def f(a: Address, b: Other) -> None: ...

    parameters = parameters_of(f)
    assert len(parameters["$defs"]) == 2
    assert parameters["properties"]["a"] != parameters["properties"]["b"]


def test_every_schema_is_plain_json() -> None:
    """Whatever the hints hold (dates as examples, enums as defaults), the schema can be sent."""

    class Trip(BaseModel):
        day: Annotated[date, Field(examples=[date(2025, 1, 2)])] = date(2025, 1, 1)
        color: Color = Color.RED

    assert json.loads(json.dumps(parameters_of(taking(Trip)))) == parameters_of(taking(Trip))


def test_an_alias_is_refused() -> None:
    """The error names the parameter, and the remedy."""
    text = refused(taking(Annotated[int, Field(alias="userId")]))
    assert text == "function 'function': parameter 'x' has an alias; rename the parameter instead"


def test_a_constraint_that_is_wrong_is_the_developers_mistake() -> None:
    """The error about a wrong pattern names function and parameter."""
    text = refused(taking(Annotated[str, Field(pattern="(")]))
    assert "'function'" in text
    assert "'x'" in text


def test_a_field_as_default_is_refused() -> None:
    """`x: int = Field(description=…)`, as other libraries take it, never reaches the function as a FieldInfo."""
    text = refused(taking(int, Field(description="how many")))
    assert "parameter 'x' has a Field as its default" in text and "write Annotated[<type>, Field(...)]" in text


class StandardPlace(TypedDict, total=False):
    """Of `typing`, which pydantic takes from Python 3.12 on."""

    city: str
    inside: "list[StandardPlace]"


def test_a_typed_dict_of_the_standard_library_is_a_schema() -> None:
    """`typing.TypedDict` is described on every Python, alone and inside other hints."""

    def go(where: StandardPlace, via: list[StandardPlace] | None = None) -> str: ...

    parameters = function_to_json(go)["function"]["parameters"]
    assert parameters["properties"]["where"] == {"$ref": "#/$defs/StandardPlace"}
    assert parameters["$defs"]["StandardPlace"]["properties"]["city"] == {"type": "string"}
