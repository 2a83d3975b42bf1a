"""Annotations that are strings are resolved where they were written, or cost their parameter its type."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import functools
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from aswarm import tool
from tests.support.tools import annotated_functions
from tests.support.tools.hint_schemas import parameters_of, received, schema_of_hint


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
    valid = received(annotated_functions.book, {"day": "2025-01-02", "booking": sent, "seats": 1})
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
        parameters = parameters_of(annotated_functions.pay)
    assert parameters["properties"] == {"amount": {"type": "string"}, "card": {"type": "string"}}
    texts = [str(warning.message) for warning in caught]
    assert any("'pay'" in text and "'amount'" in text and "string" in text for text in texts)
    about_return = [text for text in texts if "'return'" in text]
    assert about_return and not any("the model is asked for" in text for text in about_return)


@pytest.mark.parametrize("hint", ["the city", "a.b.c", "1 +", "Missing", "list[Missing]"])
def test_a_text_as_annotation_is_a_string(hint: str) -> None:
    """`city: "the city"` is somebody's documentation, not an error."""
    with pytest.warns(UserWarning, match="'x'"):
        assert schema_of_hint(hint) == {"type": "string"}
