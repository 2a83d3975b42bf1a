"""Values as JSON data, and as text for people."""

from __future__ import annotations

import json
import math
from collections import UserDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from aswarm import File, Image, Response, RunFinished
from aswarm._values.content import described
from aswarm._values.json import jsonable, shown
from aswarm._values.text import clean, how_to_install, one_line, shortened
from aswarm.types import UnknownCall


class Silent:
    """A value whose text cannot be made."""

    def __str__(self) -> str:
        raise OSError("no text")

    __repr__ = __str__


class Looping:
    """A value whose text contains itself."""

    def __str__(self) -> str:
        return str(self)


class Broken(BaseModel):
    """A model that cannot be serialized."""

    part: int = 1

    @field_serializer("part")
    def _refuse(self, _: int) -> int:
        raise ValueError("no")


@dataclass
class Point:
    """A value with values inside."""

    x: float
    name: str


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"\x89PNG", "iVBORw=="),
        (Silent(), "<Silent>"),
        (Looping(), "a Looping that is nested too deeply"),
        (Broken(), "part=1"),
        ("half \ud83d", "half \ufffd"),
        ("\ud83d\udc1d", "🐝"),
        (math.nan, "nan"),
        (1 << 20_000, "0x1" + "0" * 5000),
        (Point(math.inf, "\ud83d"), {"x": "inf", "name": "\ufffd"}),
        ((1, {"a"}, frozenset({2})), [1, ["a"], [2]]),
        (defaultdict(list, a=[b"\xff"]), {"a": ["_w=="]}),
        (MappingProxyType({"a": b"\xff"}), {"a": "_w=="}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_json_lacks_changes_alone(value: object, data: object) -> None:
    """Its neighbours and its container stay, and so do the two ways to write a response."""
    expected = {"odd": data, "user": "ada", "deep": {"list": [data, 1, None, True]}}
    context = {"odd": value, "user": "ada", "deep": {"list": [value, 1, None, True]}}
    assert json.loads(json.dumps(jsonable(context), allow_nan=False)) == jsonable(context) == expected
    response = Response(context_variables=context)
    assert json.loads(response.model_dump_json())["context_variables"] == expected
    assert response.model_dump(mode="json")["context_variables"] == expected
    assert RunFinished(response).to_dict()["response"]["context_variables"] == expected


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, "None"),
        (True, "true"),
        (7, "7"),
        ((1, 2), "1,2"),
        (b"a", "YQ=="),
        ("\ud83d", "\ufffd"),
        (frozenset({1}), "frozenset({1})"),
        (Silent(), "<Silent>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_key_is_text(key: object, text: str) -> None:
    """Whatever it was before; the values stay."""
    assert jsonable({key: 1, "b": 2}) == {text: 1, "b": 2}


def test_a_container_that_cannot_be_read_is_text() -> None:
    """One of a class of its own may refuse to be read."""

    class Closed(UserDict[str, int]):
        def __iter__(self) -> Iterator[str]:
            raise OSError("closed")

        def __repr__(self) -> str:
            return "Closed"

    assert jsonable({"a": Closed(b=1)}) == "{'a': Closed}"


def test_calls_with_half_a_surrogate_pair_are_json() -> None:
    """The arguments of a call are text of the model, which need not be valid."""
    response = Response(unknown_calls=[UnknownCall("1", "pay", "\ud83d", "Buyer")])
    [call] = json.loads(response.model_dump_json())["unknown_calls"]
    assert call == {"id": "1", "name": "pay", "arguments": "\ufffd", "agent": "Buyer"}


def test_depth_is_bounded() -> None:
    """What is not too deep for a JSON encoder is data; anything deeper is text."""
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    stored = json.loads(Response(context_variables={"deep": deep}).model_dump_json())
    assert stored["context_variables"] == {"deep": deep}
    for _ in range(100):
        deep = [deep]
    stored = json.loads(Response(context_variables={"deep": deep}).model_dump_json())
    assert stored["context_variables"].startswith("{'deep': [[[")


# --- text for people ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a\nb"),
        ("\x1b[31mred\x07", "␛[31mred␇"),
        ("\x7f\x9b", "␡\ufffd"),
        ("\u202eabc\u2066", "\ufffdabc\ufffd"),
        ("half \ud83d", "half \ufffd"),
        ("Grüße 🎉", "Grüße 🎉"),
    ],
)
def test_control_characters_become_symbols(text: str, expected: str) -> None:
    """Line breaks and tabs stay, carriage returns go; any encoding of Unicode takes the result."""
    assert clean(text) == expected
    clean(text).encode()


def test_a_text_is_shortened() -> None:
    """A text that is too long ends with three dots, within the limit."""
    assert shortened("x" * 10, 10) == "x" * 10
    assert shortened("x" * 11, 10) == "x" * 7 + "..."


def test_one_line() -> None:
    """White space becomes single spaces; the line is clean, and has 300 characters at most."""
    assert one_line(" a\n\n b\t\x1bc ") == "a b ␛c"
    assert one_line("x" * 400) == "x" * 297 + "..."
    assert one_line(ValueError("no"), 5) == "no"


def test_a_value_is_shown_on_one_line() -> None:
    """A value in an error message is written as in Python."""
    assert shown({"a": "b\n"}, 60) == "{'a': 'b\\n'}"
    assert shown("x" * 100, 10) == "'xxxxxx..."


def test_how_to_install_an_extra() -> None:
    """There is no release yet, so it is installed from a clone."""
    assert how_to_install("cli") == 'install the extra "cli"; in a clone of aswarm: python -m pip install ".[cli]"'


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hello", "Hello"),
        ([], ""),
        (
            [{"type": "text", "text": "Look:"}, Image(b"").part, File(b"", name="a.pdf").part],
            "Look: [image] [file a.pdf]",
        ),
        (
            [{"type": "file", "file": {"file_id": "f"}}, {"type": "input_audio"}, {"type": "text"}, {}, "odd", 7],
            "[file] [input_audio]  [None] odd 7",
        ),
    ],
)
def test_a_content_as_text(content: Any, text: str) -> None:
    """Parts of any shape have a text: events and logs show it."""
    assert described(content) == text


@pytest.mark.parametrize(("depth", "is_kept"), [(199, True), (200, True), (201, False)])
def test_the_depth_decides_and_not_the_number_of_containers(depth: int, is_kept: bool) -> None:
    """Data of 200 levels stays; deeper data becomes a text. Many containers next to each other stay."""
    nested: list[object] = []
    for _ in range(depth - 1):
        nested = [nested, {"text": "NaN"}] if depth == 199 else [nested]
    assert (jsonable(nested) == nested) is is_kept
    assert jsonable([{"a": "Infinity"}] * 300) == [{"a": "Infinity"}] * 300
    assert jsonable([[math.inf, -math.inf, math.nan]] * 300) == [["inf", "-inf", "nan"]] * 300
