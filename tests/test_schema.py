"""From a signature to the schema that the model sees, and from what the model sends to what the function gets.

`function_to_json` gives exactly Swarm's dict for what Swarm could express. The rest is checked by what it means: the
schema is what JSON schema calls the hint, and what is sent is converted by the same hint.
"""

# ruff: noqa: UP006, UP007, UP035, UP045, RUF013 - the old spellings of hints are what is tested
# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import dataclasses
import functools
import gc
import inspect
import json
import keyword
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Dict, List, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict as PydanticTypedDict

import annotated_functions
from aswarm import ConfigurationError, Tool, function_to_json, tool
from aswarm._schema import ArgumentsError, schema_of
from aswarm._tools import as_tool

T = TypeVar("T")


def parameters_of(function: Callable[..., Any]) -> Any:
    return function_to_json(function)["function"]["parameters"]


def taking(hint: Any = inspect.Parameter.empty, default: Any = inspect.Parameter.empty) -> Callable[..., Any]:
    """A function of one parameter `x` with this hint and default."""

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
    with pytest.raises(ArgumentsError) as caught:
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


@dataclasses.dataclass
class Unfinished:
    field: "NowhereDefined"  # type: ignore[name-defined]  # noqa: F821


class Refusing:
    """A class whose own description fails."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Any:
        raise TypeError("no")


class Opaque:
    """Something that no JSON value can become."""


# --- exactly Swarm's dict ---------------------------------------------------------------------------------------------


def test_the_example_of_swarms_readme() -> None:
    """The dict is Swarm's, key for key, with the docstring cleaned of its indentation and otherwise whole."""

    def greet(name, age: int, location: str = "New York"):  # type: ignore[no-untyped-def]
        """Greets the user. Make sure to get their name and age before calling.

        Args:
           name: Name of the user.
           age: Age of the user.
           location: Best place on earth.
        """
        print(f"Hello {name}, glad you are {age} in {location}!")

    assert function_to_json(greet) == {
        "type": "function",
        "function": {
            "name": "greet",
            "description": "Greets the user. Make sure to get their name and age before calling.\n\n"
            "Args:\n   name: Name of the user.\n   age: Age of the user.\n   location: Best place on earth.",
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "age": {"type": "integer"},
                    "location": {"type": "string"},
                },
                "required": ["name", "age"],
            },
        },
    }


def test_a_function_without_parameters_or_docstring() -> None:
    """Empty description, empty properties, an empty list of what is required."""

    def ping() -> None: ...

    parameters = {"type": "object", "properties": {}, "required": []}
    function = {"name": "ping", "description": "", "parameters": parameters}
    assert function_to_json(ping) == {"type": "function", "function": function}


SWARM_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


@pytest.mark.parametrize(("hint", "name"), [*SWARM_TYPES.items(), (None, "null"), (type(None), "null")])
def test_each_of_swarms_seven_types_is_bare(hint: Any, name: str) -> None:
    """`{"type": …}` and nothing else: no `items`, no `additionalProperties`, no title."""
    assert schema_of_hint(hint) == {"type": name}


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and name != "context_variables"
)
signatures = st.dictionaries(
    names, st.tuples(st.sampled_from([*SWARM_TYPES, inspect.Parameter.empty]), st.booleans()), max_size=5
)


@given(signatures)
def test_whatever_swarm_could_express_is_as_swarm_expressed_it(drawn: dict[str, tuple[Any, bool]]) -> None:
    """For every signature of Swarm's types: Swarm's dict, in the order of the parameters, for any parameter names."""
    function = _with_signature(drawn)
    expected = {name: {"type": SWARM_TYPES.get(hint, "string")} for name, (hint, _) in drawn.items()}
    required = [name for name, (_, has_default) in drawn.items() if not has_default]
    parameters = parameters_of(function)
    assert parameters == {"type": "object", "properties": expected, "required": required}
    assert list(parameters["properties"]) == list(drawn)


@given(signatures)
def test_strict_mode_requires_every_parameter_whatever_its_name(drawn: dict[str, tuple[Any, bool]]) -> None:
    """All are required and the object is closed, also where a parameter is named like a keyword of JSON schema."""
    typed = {name: (str if hint in (dict, list) else hint, has) for name, (hint, has) in drawn.items()}
    schema = parameters_of(tool(strict=True)(_with_signature(typed)))
    assert schema["required"] == list(drawn)
    assert list(faults_of_strict(schema)) == []


@given(signatures)
def test_what_fits_arrives_as_it_was_sent(drawn: dict[str, tuple[Any, bool]]) -> None:
    """Correct arguments are given to the function under the names and with the values that were sent."""
    samples = {str: "7", int: 7, float: 7.5, bool: True, list: [7], dict: {"seven": 7}}
    arguments = {name: samples.get(hint, {"any": [None]}) for name, (hint, _) in drawn.items()}
    assert schema_of(_with_signature(drawn)).validate(arguments) == arguments


def _with_signature(drawn: dict[str, tuple[Any, bool]]) -> Callable[..., Any]:
    def function(**named: Any) -> Any:
        return named

    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default="d" if has_default else empty)
        for name, (hint, has_default) in drawn.items()
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


ODD_NAMES = [
    "schema", "model_config", "self_", "_private", "title", "properties", "class_", "json", "default", "enum", "const",
    "required", "type", "description", "items", "self", "cls", "copy", "name", "strict", "extra", "function",
    "arguments", "examples", "model_fields", "__dunder", "validate",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_parameter_name_is_fine(name: str) -> None:
    """Names that mean something to pydantic or to JSON schema are names like any other, in both forms."""
    function = _with_signature({name: (int, False), "other": (str, True)})
    assert parameters_of(function)["properties"] == {name: {"type": "integer"}, "other": {"type": "string"}}
    strict = parameters_of(tool(strict=True)(function))
    assert strict["properties"][name] == {"type": "integer"}
    assert schema_of(function).validate({name: "3"}) == {name: 3}


def test_nested_fields_may_have_any_name_too() -> None:
    """A field called `title` of a model is not taken for a title."""
    definition = parameters_of(taking(Address))["$defs"]["Address"]
    assert definition["properties"] == {
        "title": {"type": "string"},
        "street": {"type": "string", "description": "without number"},
    }


def test_the_dict_is_the_callers_own() -> None:
    """Changing what `function_to_json` gave changes nothing for the next caller."""

    def look(city: str) -> None: ...

    function_to_json(look)["function"]["parameters"]["properties"].clear()
    assert parameters_of(look)["properties"] == {"city": {"type": "string"}}


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
        Unfinished,
        Refusing,
    ],
    ids=str,
)
def test_what_cannot_be_described_is_a_string(hint: Any) -> None:
    """No hint, `Any`, and what pydantic cannot describe (`any` written for `Any` included) are "string", quietly."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = schema_of_hint(hint)
    schema.pop("description", None)
    assert schema == {"type": "string"}


@pytest.mark.parametrize("value", ["text", 5, 1.5, None, True, [1, {"a": None}], {"k": "v"}])
@pytest.mark.parametrize("hint", [inspect.Parameter.empty, Any, Opaque], ids=["unhinted", "Any", "undescribable"])
def test_a_parameter_without_a_usable_hint_gets_the_json_value(hint: Any, value: Any) -> None:
    """Whatever the model sends arrives as it is."""
    assert converted(hint, value) == value


@pytest.mark.parametrize("hint", [any, Any, Opaque, 5, int, T, Opaque | None], ids=str)
def test_a_default_of_none_goes_with_every_hint(hint: Any) -> None:
    """`data: any = None`, as beginners and models write it, is offered and takes null."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schema_of(taking(hint, None))
    assert schema.validate({"x": None}) == {"x": None}


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
    """Optionals, unions, literals, generics, dates and descriptions are told to the model, with no titles."""
    assert schema_of_hint(hint) == expected


@pytest.mark.parametrize("hint", [Annotated[int, "how many"] | None, Optional[Annotated[int, "how many"]]], ids=str)
def test_a_plain_text_inside_an_optional_describes_it(hint: Any) -> None:
    """`Annotated[int, "text"] | None` says as much to the model as `Annotated[int, Field(description="text")] | None`."""
    assert "how many" in json.dumps(schema_of_hint(hint))


def test_an_enum_is_its_values() -> None:
    """The model is told the values, by reference to one definition."""
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


def test_a_typed_dict_of_the_standard_library_is_described_or_refused() -> None:
    """`typing.TypedDict`, which pydantic takes from Python 3.12 on only, is never silently a string."""

    class Old(TypedDict):
        a: int

    try:
        definitions = parameters_of(taking(Old))["$defs"]
    except ConfigurationError as error:
        assert "typing_extensions" in str(error)  # noqa: PT017
        return
    assert definitions["Old"]["properties"] == {"a": {"type": "integer"}}


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


def test_an_alias_is_the_name_that_the_model_uses() -> None:
    """`Field(alias=…)` on a parameter is offered, and the function gets its own name; or it is refused with a reason."""
    function = taking(Annotated[int, Field(alias="userId")])
    try:
        parameters = parameters_of(function)
    except ConfigurationError as error:
        assert "'x'" in str(error)  # noqa: PT017
        return
    (name,) = parameters["properties"]
    assert schema_of(function).validate({name: "5"}) == {"x": 5}


def test_a_constraint_that_is_wrong_is_the_developers_mistake() -> None:
    """A pattern that is no regular expression is told with function and parameter, not as an error of pydantic's core."""
    text = refused(taking(Annotated[str, Field(pattern="(")]))
    assert "'function'" in text
    assert "'x'" in text


def test_a_field_as_default_is_refused_or_understood() -> None:
    """`x: int = Field(description=…)`, as other libraries take it, never reaches the function as a FieldInfo."""
    function = taking(int, Field(description="how many"))
    try:
        parameters = parameters_of(function)
    except ConfigurationError as error:
        assert "'x'" in str(error)  # noqa: PT017
        return
    assert parameters["required"] == ["x"]
    assert parameters["properties"]["x"] == {"type": "integer", "description": "how many"}


# --- conversion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "sent", "expected"),
    [
        (int, "7", 7),
        (int, 7.0, 7),
        (float, 7, 7.0),
        (str, 7, "7"),
        (str, 7.5, "7.5"),
        (bool, "true", True),
        (Optional[int], None, None),
        (Optional[int], "7", 7),
        (Union[int, str], "7", "7"),
        (Literal["a", "b"], "a", "a"),
        (Color, "red", Color.RED),
        (Level, 2, Level.HIGH),
        (list[int], ["1", 2], [1, 2]),
        (list[str], [1], ["1"]),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (dict[int, str], {"1": 2}, {1: "2"}),
        (set[int], [1, 1, 2], {1, 2}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Pair, [1, "a"], Pair(1, "a")),
        (date, "2025-01-02", date(2025, 1, 2)),
        (datetime, "2025-01-02T03:04:05", datetime(2025, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        (timedelta, "PT5S", timedelta(seconds=5)),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal, 1, Decimal(1)),
        (UUID, "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        (Path, "/tmp", Path("/tmp")),
        (Point, {"x": "1"}, Point(1)),
        (Point, {"x": 1, "label": 7}, Point(1, "7")),
        (Options, {"verbose": "yes"}, {"verbose": True}),
        (Node, {"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)])),
        (Dog | Cat, {"kind": "cat"}, Cat(kind="cat")),
        (Annotated[int, "how many"], "7", 7),
        (list, [1, "a", None], [1, "a", None]),
        (dict, {"a": [1]}, {"a": [1]}),
    ],
    ids=str,
)
def test_arguments_are_converted_by_the_hint(hint: Any, sent: Any, expected: Any) -> None:
    """A function that asks for a date or a model gets one; numbers become strings where a string is asked for."""
    value = converted(hint, sent)
    assert value == expected
    assert type(value) is type(expected)


def test_a_model_in_strict_mode_takes_what_json_can_say() -> None:
    """What comes is JSON: a model that is strict about types still gets its date from a string, as in validate_json."""

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        day: date
        color: Color
        pair: tuple[int, int]

    sent = {"day": "2025-01-02", "color": "red", "pair": [1, 2]}
    assert converted(Strict, sent) == Strict(day=date(2025, 1, 2), color=Color.RED, pair=(1, 2))


def test_what_was_sent_is_not_changed() -> None:
    """Conversion gives new values and leaves the arguments as they were parsed."""
    arguments = {"x": {"x": "1"}}
    schema_of(taking(Point)).validate(arguments)
    assert arguments == {"x": {"x": "1"}}


def test_a_default_is_the_functions_own() -> None:
    """What the model leaves out is left out: the function's default holds, never a copy of it."""
    assert schema_of(taking(int, 7)).validate({}) == {}


def test_a_default_of_none_accepts_null_whatever_the_hint() -> None:
    """`limit: int = None` takes null, and the schema stays Swarm's."""
    function = taking(int, None)
    assert parameters_of(function) == {"type": "object", "properties": {"x": {"type": "integer"}}, "required": []}
    assert schema_of(function).validate({"x": None}) == {"x": None}
    assert schema_of(function).validate({"x": "3"}) == {"x": 3}


def test_null_is_refused_where_the_default_is_something_else() -> None:
    """Outside strict mode, null is not "leave it out"."""
    (line,) = complaints(taking(int, 7), {"x": None})
    assert line.startswith("x: ")


def test_constraints_hold() -> None:
    """What the schema says is checked."""
    (line,) = complaints(taking(Annotated[int, Field(ge=1)]), {"x": 0})
    assert line == "x: Input should be greater than or equal to 1 (got 0)"


# --- what is wrong with the arguments ---------------------------------------------------------------------------------


def test_each_fault_is_one_line_with_path_expectation_and_value() -> None:
    """Wrong, missing and unexpected arguments are all told at once, with no documentation links."""

    def book(day: date, seats: int, note: str = "") -> None: ...

    assert complaints(book, {"day": "soon", "seats": "two", "colour": [1]}) == [
        "day: Input should be a valid date or datetime, input is too short (got 'soon')",
        "seats: Input should be a valid integer, unable to parse string as an integer (got 'two')",
        "colour: Extra inputs are not permitted (got [1])",
    ]
    assert complaints(book, {}) == ["day: Field required", "seats: Field required"]


def test_the_path_leads_to_the_fault() -> None:
    """Nested values are named by their path."""
    (line,) = complaints(taking(Node), {"x": {"value": 1, "children": [{"value": "no"}]}})
    assert line.startswith("x.children.0.value: ")
    assert line.endswith("(got 'no')")


def test_no_documentation_links_and_no_words_of_pydantic() -> None:
    """The model cannot follow a link, and knows no pydantic."""
    text = "\n".join(complaints(taking(Node), {"x": [], "y": 1}))
    assert "http" not in text
    assert "pydantic" not in text.lower()


def test_a_fault_stays_one_line_whatever_was_sent() -> None:
    """Newlines in values, in names of unexpected arguments and in messages of validators do not make lines."""

    class Picky(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def _refuse(cls, value: str) -> str:
            raise ValueError("not\nthis")

    assert len(complaints(taking(Picky), {"x": {"text": "a\nb"}})) == 1
    assert len(complaints(taking(int), {"x": "a\nb"})) == 1
    assert len(complaints(taking(int), {"x": 1, "y\nz": 1})) == 1


def test_a_huge_value_is_shown_shortened() -> None:
    """The model's own output is not sent back to it whole."""
    (line,) = complaints(taking(int), {"x": "9" * 10_000 + "x"})
    assert len(line) < 300


def test_faults_of_named_and_of_further_arguments_are_told_together() -> None:
    """One answer names every fault, whether the parameter has a name or comes under `**rest`."""

    def f(a: int, **rest: int) -> None: ...

    lines = complaints(f, {"a": "x", "b": "y"})
    assert [line.split(":")[0] for line in lines] == ["a", "b"]


# --- kinds of parameters ----------------------------------------------------------------------------------------------


def test_keyword_only_parameters_are_parameters() -> None:
    """`*, city` is offered like any other."""

    def f(a: int, *, city: str, limit: int = 3) -> None: ...

    assert parameters_of(f) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "city": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["a", "city"],
    }


def test_further_arguments_are_taken_and_checked() -> None:
    """`**rest` is no property of the schema; what the model sends beyond the names arrives, by its hint."""

    def f(a: int, **rest: int) -> None: ...

    assert parameters_of(f) == {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert schema_of(f).validate({"a": "1", "b": "2"}) == {"a": 1, "b": 2}


def test_unhinted_further_arguments_are_json_values() -> None:
    """`**rest` without a hint takes anything."""

    def f(**rest) -> None: ...  # type: ignore[no-untyped-def]

    assert schema_of(f).validate({"b": [1], "c": None}) == {"b": [1], "c": None}


def test_without_further_arguments_the_unexpected_is_refused() -> None:
    """A misspelled name is told to the model, not dropped."""
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
        assert schema_of(function).validate({"a": 1, "context_variables": {"admin": True}}) == {"a": 1}


def refused(function: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        function_to_json(function)
    return str(caught.value)


def test_star_args_are_refused_by_name() -> None:
    """The model passes arguments by name: `*args` is the developer's mistake, told with function and parameter."""

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
    text = refused(_with_signature({name: (int, False)}))
    assert "'function'" in text
    assert repr(name) in text


@pytest.mark.parametrize("name", ["größe", "x" * 65, "<lambda>", "with space", "with.dot", "new\nline", "end\n"])
def test_function_names_that_the_api_refuses_are_refused(name: str) -> None:
    """Letters, digits, _ and - up to 64."""

    def f() -> None: ...

    f.__name__ = name
    assert repr(name) in refused(f)


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


# --- strict mode ------------------------------------------------------------------------------------------------------

# The API's guide on structured outputs, "Supported schemas". Reported as refused: oneOf (livekit/agents#5302),
# prefixItems (pydantic-ai#7315), format uri (pydantic-ai#4490); as accepted: lengths (both of pydantic-ai).
STRICT_KEYWORDS = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
    "description", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minItems", "maxItems", "minLength", "maxLength",
}  # fmt: skip
STRICT_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def faults_of_strict(schema: Any, place: str = "") -> Iterator[str]:
    """What OpenAI's strict mode would refuse in a schema."""
    unknown = schema.keys() - STRICT_KEYWORDS
    if unknown:
        yield f"{place}: {sorted(unknown)} not permitted"
    if not {"type", "anyOf", "$ref", "enum", "const"} & schema.keys():
        yield f"{place}: says no type"
    if "$ref" in schema and len(schema) > 1:
        yield f"{place}: $ref with neighbours"
    if schema.get("format", "date") not in STRICT_FORMATS:
        yield f"{place}: format {schema['format']!r} not permitted"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{place}: array without items"
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            yield f"{place}: not closed"
        if list(schema.get("required", ())) != list(schema.get("properties", ())):
            yield f"{place}: not all required"
    for key in ("properties", "$defs"):
        for name, item in schema.get(key, {}).items():
            yield from faults_of_strict(item, f"{place}/{name}")
    for item in schema.get("anyOf", ()):
        yield from faults_of_strict(item, f"{place}/anyOf")
    if "items" in schema:
        yield from faults_of_strict(schema["items"], f"{place}/items")


@pytest.mark.parametrize(
    "hint",
    [
        str, int, float, bool, None, Any, Optional[int], Union[int, str], Literal["a", "b"], Color, Level, list[int],
        list[Node], Point, Options, Address, Node, date, datetime, UUID, Decimal, timedelta, Dog | Cat,
        Annotated[Dog | Cat, Field(discriminator="kind")], Annotated[Node, "the root"], Annotated[Color, "which"],
        Annotated[str, Field(min_length=2, max_length=5)], set[int], frozenset[str], bytes, Path, Pair,
        tuple[int, str], tuple[int, ...], list, list[Any], Optional[list], Literal[1, "a"],
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("default", [inspect.Parameter.empty, None, "d"], ids=["required", "None", "default"])
def test_strict_form_is_valid_or_refused(hint: Any, default: Any) -> None:
    """Every hint gives a schema that the API's strict mode takes, or an error with function and parameter (or type)."""
    try:
        made = function_to_json(tool(strict=True)(taking(hint, default)))
    except ConfigurationError as error:
        assert "'function'" in str(error)  # noqa: PT017
        assert "'x'" in str(error) or f"'{getattr(hint, '__name__', '')}'" in str(error)  # noqa: PT017
        return
    assert made["function"]["strict"] is True
    assert list(faults_of_strict(made["function"]["parameters"])) == []


EXPRESSIBLE = [
    str, int, float, bool, None, Optional[int], Union[int, str], Literal["a", "b"], Color, list[int], list[Node], Point,
    Options, Address, Node, date, UUID, Decimal, Dog | Cat, Annotated[Dog | Cat, Field(discriminator="kind")],
    Annotated[str, Field(min_length=2)], Path,
]  # fmt: skip


@pytest.mark.parametrize("hint", EXPRESSIBLE, ids=str)
def test_strict_form_does_not_refuse_what_it_can_express(hint: Any) -> None:
    """What strict mode does not know (formats, discriminators) is left out, and left to the check of the arguments."""
    assert parameters_of(tool(strict=True)(taking(hint)))["required"] == ["x"]


@pytest.mark.parametrize("hint", [dict, dict[str, int], list[dict], Optional[dict[str, int]]], ids=str)
def test_strict_mode_refuses_a_dict_of_any_keys(hint: Any) -> None:
    """Strict mode cannot express it; the error names function and parameter."""
    text = refused(tool(strict=True)(taking(hint)))
    assert "'function'" in text
    assert "'x'" in text


def test_strict_mode_refuses_further_arguments() -> None:
    """`**rest` cannot be closed."""

    def f(**rest: int) -> None: ...

    assert "'f'" in refused(tool(strict=True)(f))


def test_in_strict_mode_null_means_the_default() -> None:
    """The model must send every argument; null for one with a default leaves it to the function."""

    def f(a: int, b: int = 7, c: int = None, d: int | None = 3) -> None: ...  # type: ignore[assignment]

    schema = schema_of(f, strict=True)
    assert schema.validate({"a": 1, "b": None, "c": None, "d": None}) == {"a": 1, "d": None}
    nullable = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    properties = schema.json["function"]["parameters"]["properties"]
    assert properties == {"a": {"type": "integer"}, "b": nullable, "c": nullable, "d": nullable}
    with pytest.raises(ArgumentsError):
        schema.validate({"a": None, "b": 1, "c": 1, "d": 1})


def test_strict_mode_makes_no_difference_to_what_arrives() -> None:
    """The same arguments are converted the same way."""
    sent = {"x": {"value": "1", "children": []}}
    assert schema_of(taking(Node), strict=True).validate(sent) == schema_of(taking(Node)).validate(sent)


def test_without_strict_there_is_no_strict_key() -> None:
    """The key is Swarm's absence of it, not false."""
    assert "strict" not in function_to_json(taking(int))["function"]


# --- annotations that are strings -------------------------------------------------------------------------------------


def test_string_annotations_are_resolved() -> None:
    """A module with `from __future__ import annotations` gives the same schema and the same conversion."""
    parameters = parameters_of(annotated_functions.book)
    assert parameters["properties"] == {
        "day": {"type": "string", "format": "date"},
        "booking": {"$ref": "#/$defs/Booking"},
        "seats": {"type": "integer", "description": "how many", "minimum": 1},
        "note": {"type": "string", "description": "anything else"},
        "seat": {"anyOf": [{"enum": ["window", "aisle"], "type": "string"}, {"type": "null"}]},
    }
    assert parameters["required"] == ["day", "booking", "seats"]
    assert set(parameters["$defs"]) == {"Booking", "Passenger"}
    sent = {"title": "B", "passengers": [{"name": "Ada", "born": "1815-12-10"}]}
    valid = schema_of(annotated_functions.book).validate({"day": "2025-01-02", "booking": sent, "seats": 1})
    assert valid["booking"].passengers == [annotated_functions.Passenger("Ada", date(1815, 12, 10))]


desk = annotated_functions.Desk()


@pytest.mark.parametrize(
    "function",
    [
        desk.find,
        desk.cancel,
        desk.all,
        desk.any,
        annotated_functions.Desk.all,
        annotated_functions.Desk.any,
        desk,
        functools.partial(desk.find),
        functools.partial(desk),
        functools.partial(desk.cancel),
        annotated_functions.logged(desk.find),
        tool(desk.find),
        functools.partial(annotated_functions.Desk.find, desk),
    ],
    ids=[
        "method",
        "tool",
        "classmethod",
        "static",
        "class.classmethod",
        "class.static",
        "callable",
        "partial",
        "partial of callable",
        "partial of tool",
        "decorated",
        "tool of method",
        "partial of function",
    ],
)
def test_string_annotations_are_resolved_behind_everything(function: Callable[..., Any]) -> None:
    """Methods, callables, partials and decorated functions find the names of the module in which they were written."""
    assert parameters_of(function)["properties"] == {"day": {"type": "string", "format": "date"}}


def test_string_annotations_find_names_of_the_closure() -> None:
    """A class defined beside the function, inside another function, is found."""
    function = annotated_functions.make_local()
    assert parameters_of(function)["properties"] == {"value": {"$ref": "#/$defs/Local"}}


def test_a_function_whose_closure_is_not_filled_yet_can_be_offered() -> None:
    """Functions that hand over to each other are offered before all names they use exist."""

    def to_other(reason: "str") -> Any:
        return other

    assert parameters_of(to_other)["properties"] == {"reason": {"type": "string"}}
    other = None


def test_a_name_that_does_not_exist_costs_that_parameter_its_type() -> None:
    """A name that only the type checker knows is a string, with a warning that names function and parameter."""
    with pytest.warns(UserWarning) as caught:  # noqa: PT030 - the texts are looked at below
        parameters = schema_of(annotated_functions.pay).json["function"]["parameters"]
    assert parameters["properties"] == {"amount": {"type": "string"}, "card": {"type": "string"}}
    texts = [str(warning.message) for warning in caught]
    assert any("'pay'" in text and "'amount'" in text and "string" in text for text in texts)


def test_the_warning_of_a_return_hint_does_not_speak_of_offering_it() -> None:
    """What a function returns is not offered to the model as anything."""
    with pytest.warns(UserWarning) as caught:  # noqa: PT030 - the texts are looked at below
        schema_of(annotated_functions.pay)
    about_return = [str(warning.message) for warning in caught if "'return'" in str(warning.message)]
    assert not any("offered" in text for text in about_return)


@pytest.mark.parametrize("hint", ["the city", "a.b.c", "1 +", "Missing", "list[Missing]"])
def test_a_text_as_annotation_is_a_string(hint: str) -> None:
    """`city: "the city"` is somebody's documentation, not an error."""
    with pytest.warns(UserWarning, match="'x'"):
        assert schema_of_hint(hint) == {"type": "string"}


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


class SlottedCaller:
    __slots__ = ()

    def __call__(self, city: str) -> str:
        """Call it."""
        return city


class UndocumentedCaller:
    """What the class says."""

    def __call__(self, city: str) -> str:
        return city


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("function", "name", "description"),
    [
        (Service().find, "find", "Find something."),
        (Service().made, "made", "Of the class."),
        (Service.made, "made", "Of the class."),
        (Service().fixed, "fixed", "Of nobody."),
        (Service.fixed, "fixed", "Of nobody."),
        (Caller(), "Caller", "Call it."),
        (SlottedCaller(), "SlottedCaller", "Call it."),
        (UndocumentedCaller(), "UndocumentedCaller", "What the class says."),
        (functools.partial(Caller()), "Caller", "Call it."),
        (functools.partial(Service().look, limit=5), "look", "Look around."),
        (functools.partial(functools.partial(Service().look, limit=5), limit=6), "look", "Look around."),
        (functools.partial(Service.look, Service(), limit=5), "look", "Look around."),
        (tool(name="other")(Caller()), "other", "Call it."),
    ],
)
def test_name_description_and_parameters_of_any_callable(function: Any, name: str, description: str) -> None:
    """The name and the docstring are those of the function behind; `self` and what was bound are not offered."""
    assert function_to_json(function) == {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": CITY},
    }


def test_a_bound_method_offers_no_self() -> None:
    """`self` is bound; the rest is offered."""
    assert list(parameters_of(Service().look)["properties"]) == ["city", "limit"]


def test_what_a_partial_binds_the_model_neither_sees_nor_sets() -> None:
    """A keyword-bound parameter is hidden; sent all the same, it is refused."""

    def pay(amount: int, token: str) -> None: ...

    function = functools.partial(pay, token="secret")
    assert list(parameters_of(function)["properties"]) == ["amount"]
    assert complaints(function, {"amount": 1, "token": "mine"}) == [
        "token: Extra inputs are not permitted (got 'mine')"
    ]


def test_what_a_partial_binds_is_not_overridden_through_further_arguments() -> None:
    """`**rest` takes whatever the model sends, but not what the developer bound."""

    def pay(amount: int, **rest: Any) -> dict[str, Any]:
        return rest

    def pay_with(amount: int, token: str, **rest: Any) -> dict[str, Any]:
        return {"token": token, **rest}

    for function in (functools.partial(pay, token="secret"), functools.partial(pay_with, token="secret")):
        try:
            valid = schema_of(function).validate({"amount": 1, "token": "mine", "note": "n"})
        except ArgumentsError as error:
            assert "token" in str(error)  # noqa: PT017
        else:
            assert function(**valid)["token"] == "secret"


def test_a_context_bound_by_a_partial_is_the_developers() -> None:
    """Where the developer bound the context variables, the run's are not wanted."""

    def f(city: str, context_variables: dict[str, Any]) -> None: ...

    assert schema_of(functools.partial(f, context_variables={})).context_hint is None
    assert schema_of(f).context_hint == dict[str, Any]


def test_a_decorated_function_is_the_function_behind() -> None:
    """`functools.wraps` keeps name, docstring and signature, for plain and coroutine functions."""

    @annotated_functions.logged
    def look(city: str, limit: int = 3) -> str:
        """Look around."""
        return city

    @annotated_functions.logged
    async def find(city: str, limit: int = 3) -> str:
        """Look around."""
        return city

    for function, name in ((look, "look"), (find, "find")):
        made = function_to_json(function)["function"]
        assert (made["name"], made["description"]) == (name, "Look around.")
        assert list(made["parameters"]["properties"]) == ["city", "limit"]


def test_a_coroutine_function_is_described_like_a_function() -> None:
    """`async` makes no difference to the model."""

    def plain(city: str) -> str:
        """Look."""
        return city

    async def coroutine(city: str) -> str:
        """Look."""
        return city

    coroutine.__name__ = "plain"
    assert function_to_json(plain) == function_to_json(coroutine)


def test_a_class_is_its_constructor() -> None:
    """A dataclass or a model among the functions makes an instance."""
    assert parameters_of(Point) == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
        "required": ["x"],
    }


@pytest.mark.parametrize("thing", [None, 5, "look", {"type": "function"}, object()])
def test_what_is_not_callable_is_refused(thing: object) -> None:
    """The error shows what it was."""
    assert repr(thing) in refused(thing)


# --- built once -------------------------------------------------------------------------------------------------------


def test_a_schema_is_built_once_per_function() -> None:
    """However often a function is offered, its schema is the same object."""

    def look(city: str) -> None: ...

    partial = functools.partial(look)
    caller = Caller()
    for function in (look, partial, caller, tool(look)):
        assert as_tool(function).schema is as_tool(function).schema


def test_a_schema_is_built_once_per_method() -> None:
    """A bound method is a new object each time it is looked up, and yet one function."""
    service = Service()
    assert as_tool(service.look).schema is as_tool(service.look).schema
    assert as_tool(service.find).schema is as_tool(service.find).schema


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
        return _with_signature({name: (int, False)})

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
