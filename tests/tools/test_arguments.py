"""Arguments of a model are converted by the hints. The error has one line for each fault."""

# ruff: noqa: UP007, UP045 - the old spellings of hints are what is tested
# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from aswarm import ToolError
from aswarm._tools.conversion import parse_arguments, valid_arguments
from aswarm._tools.tool import as_tool
from tests.support.tools.hint_schemas import (
    Cat,
    Color,
    Dog,
    Level,
    Node,
    Options,
    Pair,
    Point,
    complaints,
    converted,
    parameters_of,
    received,
    taking,
)

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
    """The arguments are JSON: a model that is strict about types still gets its date from a string, as in validate_json."""

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
    received(taking(Point), arguments)
    assert arguments == {"x": {"x": "1"}}


def test_a_default_is_the_functions_own() -> None:
    """An omitted argument stays omitted: the function's own default holds, never a copy."""
    assert received(taking(int, 7), {}) == {}


def test_a_default_of_none_accepts_null_whatever_the_hint() -> None:
    """`limit: int = None` takes null, and the schema stays Swarm's."""
    function = taking(int, None)
    assert parameters_of(function) == {"type": "object", "properties": {"x": {"type": "integer"}}, "required": []}
    assert received(function, {"x": None}) == {"x": None}
    assert received(function, {"x": "3"}) == {"x": 3}


class Window(BaseModel):
    width: int = 80
    title: str
    note: str | None = "none"
    children: list["Window"] = []


class Depth(TypedDict, total=False):
    depth: int


def window(x: Window, sizes: dict[str, int] = {}, many: list[int] = [], options: Depth = {}, n: int = 7) -> str:  # noqa: B006
    return ""


WINDOW = {"title": "a"}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"x": WINDOW, "n": None}, {"x": Window(title="a")}),
        ({"x": WINDOW, "n": None, "sizes": None, "many": None}, {"x": Window(title="a")}),
        ({"x": {**WINDOW, "width": None}}, {"x": Window(title="a")}),
        ({"x": {**WINDOW, "note": None}}, {"x": Window(title="a", note=None)}),
        (
            {"x": {**WINDOW, "children": [{**WINDOW, "width": None}]}},
            {"x": Window(title="a", children=[Window(title="a")])},
        ),
        ({"x": WINDOW, "options": {"depth": None}}, {"x": Window(title="a"), "options": {}}),
    ],
)
def test_null_means_the_default_if_the_type_refuses_it(sent: dict[str, Any], expected: dict[str, Any]) -> None:
    """As in strict mode, also for fields of models; a type with None keeps None."""
    assert valid_arguments(as_tool(window), json.dumps(sent)) == expected


@pytest.mark.parametrize(
    ("sent", "place"),
    [
        ({"x": None}, "x"),
        ({"x": {"title": None}}, "x.title"),
        ({"x": WINDOW, "sizes": {"a": None}}, "sizes.a"),
        ({"x": WINDOW, "many": [1, None]}, "many.1"),
        ({"x": None, "n": None}, "x"),
        ({"x": WINDOW, "n": "seven"}, "n"),
    ],
)
def test_null_is_refused_for_a_value_without_a_default(sent: dict[str, Any], place: str) -> None:
    """Nothing is removed from a list, or from a dict of any keys; and no other fault is hidden."""
    (line,) = complaints(window, sent)
    assert line.startswith(f"{place}: ")


def shapes(x: Cat | Dog | None = None, y: Cat | int = 3, **others: int) -> str:
    return ""


def test_null_means_the_default_beside_unions_and_other_parameters() -> None:
    assert received(shapes, {"y": None, "z": 1}) == {"z": 1}
    assert received(shapes, {"x": None}) == {"x": None}
    (line,) = complaints(shapes, {"z": None})
    assert line.startswith("z: ")


def test_constraints_hold() -> None:
    """The constraints of the schema are checked."""
    (line,) = complaints(taking(Annotated[int, Field(ge=1)]), {"x": 0})
    assert line == "x: Input should be greater than or equal to 1 (got 0)"


# --- what is wrong with the arguments ---------------------------------------------------------------------------------


def test_each_fault_is_one_line_with_path_expectation_and_value() -> None:
    """Wrong, missing and unexpected arguments are all in one error, without links."""

    def book(day: date, seats: int, note: str = "") -> None: ...

    assert complaints(book, {"day": "soon", "seats": "two", "colour": [1]}) == [
        "day: Input should be a valid date or datetime, input is too short (got 'soon')",
        "seats: Input should be a valid integer, unable to parse string as an integer (got 'two')",
        "colour: Extra inputs are not permitted (got [1])",
    ]
    assert complaints(book, {}) == ["day: Field required", "seats: Field required"]


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
    """One error names every fault, whether the parameter has a name or comes under `**rest`."""

    def f(a: int, **rest: int) -> None: ...

    lines = complaints(f, {"a": "x", "b": "y"})
    assert [line.split(":")[0] for line in lines] == ["a", "b"]


# --- the text of the model --------------------------------------------------------------------------------------------


async def takes_anything(
    a: int,
    b: float = 1.0,
    c: str = "",
    d: list[int] | None = None,
    e: Any = None,
    f: Decimal = Decimal(1),
    g: date | None = None,
    h: bool = False,
    *,
    context_variables: dict[str, Any],
) -> None: ...


keys = st.sampled_from([*"abcdefghz", "context_variables"])
numbers = ["1", "1.0", "1e5", "-0", "1e400", "1E-7", "NaN", "-Infinity", "0.1000000000000000000000001", "1" * 5000]
words = ["true", "null", '"1"', '""', '"NaN"', '"2020-01-01"', r'"\ud800"', r'"\ud83d\ude00"']
containers = ["[]", '[1.0,"2"]', "{}", '{"a":1,"a":2}', "[" * 150 + "]" * 150]
values = st.sampled_from([*numbers, *words, *containers])


@given(st.lists(st.tuples(keys, values), max_size=5), st.sampled_from(["", " ", ",", "x"]))
def test_the_text_of_a_call_is_read_as_by_the_two_passes(pairs: list[tuple[str, str]], tail: str) -> None:
    """Valid arguments take one pass over the text. Values and errors are the same as with two passes."""
    tool = as_tool(takes_anything)
    text = "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}" + tail

    def outcome(read: Any) -> str:
        try:
            return repr(read())
        except ToolError as error:
            return f"{type(error)}: {error}"

    expected = outcome(lambda: tool._schema.validate(parse_arguments(text)))
    assert outcome(lambda: valid_arguments(tool, text)) == expected


@pytest.mark.parametrize("text", ["", " ", "[]", "null", "1", '"a"', "{"])
def test_a_text_that_is_no_object_is_read_as_before(text: str) -> None:
    async def no_arguments() -> None: ...

    tool = as_tool(no_arguments)
    if text.strip():
        with pytest.raises(ToolError, match="JSON"):
            valid_arguments(tool, text)
    else:
        assert valid_arguments(tool, text) == {}
