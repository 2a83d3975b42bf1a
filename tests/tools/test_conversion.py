"""The text of arguments, and the text of a result."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from aswarm import Agent, Image, Result
from aswarm._tools.conversion import as_result, parse_arguments, to_text
from aswarm.errors import ToolArgumentsError

# --- arguments --------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_arguments_are_the_json_object_that_was_sent(arguments: dict[str, Any], ascii_only: bool) -> None:
    """Whatever the model writes as JSON arrives equal."""
    assert parse_arguments(json.dumps(arguments, ensure_ascii=ascii_only)) == arguments


@given(st.text())
def test_any_text_is_arguments_or_an_arguments_error(text: str) -> None:
    """Nothing that a model writes raises anything else."""
    try:
        assert isinstance(parse_arguments(text), dict)
    except ToolArgumentsError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("text", ['{"x": NaN}', '{"x": [Infinity]}', '{"x": -Infinity}'])
def test_numbers_that_json_lacks_are_told_to_the_model(text: str) -> None:
    """The model is asked to write them in another way: JSON has no such numbers."""
    with pytest.raises(ToolArgumentsError, match="the arguments are not JSON"):
        parse_arguments(text)


@pytest.mark.parametrize("text", ["", " ", "\n", "\t \r\n", "{}", " {} "])
def test_empty_arguments_are_no_arguments(text: str) -> None:
    """Several servers send "" for a call without arguments."""
    assert parse_arguments(text) == {}


@pytest.mark.parametrize("text", ['{"city": "Par', "{'city': 'Paris'}", "{city: 1}", '{"a": 1} extra', "{", "[" * 5000])
def test_what_is_no_json_is_told_with_the_parsers_reason(text: str) -> None:
    """The reason names the place, so that the model can mend it."""
    with pytest.raises(ToolArgumentsError, match=r"not JSON: .+ at line \d+ column \d+; you sent ") as raised:
        parse_arguments(text)
    assert repr(text)[:900] in str(raised.value)


@pytest.mark.parametrize("text", ["null", "[]", "5", '"city"', "true", '[{"city": "Paris"}]'])
def test_what_is_no_object_is_told(text: str) -> None:
    """Arguments have names."""
    with pytest.raises(ToolArgumentsError, match=f"object, not .+; you sent {re.escape(repr(text))}"):
        parse_arguments(text)


# --- results ----------------------------------------------------------------------------------------------------------


class Shade(enum.Enum):
    RED = "red"


class Size(enum.Enum):
    S = 1


class Corner(enum.Enum):
    TOP = (0, 1)


class StrShade(str, enum.Enum):  # noqa: UP042 - as people wrote it before StrEnum
    RED = "red"


@dataclasses.dataclass
class Point:
    x: Any
    when: date


class City(BaseModel, frozen=True):
    name: str
    founded: date | None = None


class Word(str):  # noqa: SLOT000 - only its __str__ matters
    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ("", ""),
        ("grüße", "grüße"),
        (StrShade.RED, "red"),
        (Word("kept"), "kept"),
        (None, "None"),
        (True, "True"),
        (7, "7"),
        (7.5, "7.5"),
        ((1, 2), "[1, 2]"),
        ({7}, "[7]"),
        (frozenset({"a"}), '["a"]'),
        (b"x", "x"),
        (date(2025, 1, 2), "2025-01-02"),
        (datetime(2025, 1, 2, 3, tzinfo=UTC), "2025-01-02T03:00:00Z"),
        (timedelta(days=1), "P1D"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/a/b"), "/a/b"),
        (Shade.RED, "red"),
        (Size.S, "1"),
        (Corner.TOP, "[0, 1]"),
        (math.nan, "nan"),
        ({"mean": math.nan, "all": [math.inf, -math.inf]}, '{"mean": "nan", "all": ["inf", "-inf"]}'),
        (Point(math.nan, date(2025, 1, 2)), '{"x": "nan", "when": "2025-01-02"}'),
        ("caf\udce9.txt", "caf\\udce9.txt"),
        ("half \ud83d\udc1d", "half 🐝"),
        (["caf\udce9.txt"], '["caf\\udce9.txt"]'),
        ({"caf\udce9": {"size": (1, {"\ud83d": 2})}}, '{"caf\\udce9": {"size": [1, {"\\ud83d": 2}]}}'),
        (Point("\udce9", date(2025, 1, 2)), '{"x": "\\udce9", "when": "2025-01-02"}'),
        ({City(name="Bern"): {"\udce9": 1}}, '{"name=\'Bern\' founded=None": {"\\udce9": 1}}'),
        ({"a": None, "b": True, "c": [1, 1.5]}, '{"a": null, "b": true, "c": [1, 1.5]}'),
        ({"ü": "é日"}, '{"ü": "é日"}'),
        ({1: date(2025, 1, 2)}, '{"1": "2025-01-02"}'),
        ([], "[]"),
        ([1, "a", None], '[1, "a", null]'),
        ([Point(1, date(2025, 1, 2))], '[{"x": 1, "when": "2025-01-02"}]'),
        (Point(1, date(2025, 1, 2)), '{"x": 1, "when": "2025-01-02"}'),
        (City(name="Zürich"), '{"name": "Zürich", "founded": null}'),
        ({"city": City(name="Bern")}, '{"city": {"name": "Bern", "founded": null}}'),
        (Counter("aab"), '{"a": 2, "b": 1}'),
        (defaultdict(list, a=[1]), '{"a": [1]}'),
        ({"shade": Shade.RED, "set": {1}}, '{"shade": "red", "set": [1]}'),
        (Point, str(Point)),
        (City, str(City)),
    ],
    ids=repr,
)
def test_a_result_as_text(value: object, text: str) -> None:
    """A value has the same text by itself as inside JSON, except for numbers, bool, None and unknown objects, as in Swarm."""
    assert to_text(value) == text
    assert type(to_text(value)) is str


@given(st.one_of(st.dictionaries(st.text(), json_values), st.lists(json_values)))
def test_data_can_be_read_back(value: object) -> None:
    """The text of a dict or a list is JSON with the same data."""
    assert json.loads(to_text(value)) == value


def test_an_image_inside_a_dict_is_told_apart() -> None:
    """JSON has no bytes; the error shows the places for an image."""
    with pytest.raises(ValueError, match="return an Image or a File, by itself or in a list"):
        as_result({"chart": Image(b"\xff\xd8")})


def test_an_agent_is_a_handoff() -> None:
    """Swarm's text, with the very agent that was returned."""
    agent = Agent(name="Zürich")
    result = as_result(agent)
    assert result.value == '{"assistant": "Zürich"}'
    assert result.agent is agent


def test_a_result_keeps_agent_and_context_and_its_value_becomes_text() -> None:
    """The function's own Result is not changed; agent and objects of the context are the very ones."""
    agent, client = Agent(), object()
    returned = Result(value={"a": [1]}, agent=agent, context_variables={"client": client})
    result = as_result(returned)
    assert (result.value, result.agent) == ('{"a": [1]}', agent)
    assert result.agent is agent
    assert result.context_variables["client"] is client
    assert returned.value == {"a": [1]}
