"""Whether calls pass: those that a model made, compared with those that a case expects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm.evals import Case, CaseCall
from aswarm.evals._calls import calls_of, unexpected


def calls(*made: str | tuple[str, dict[str, Any]]) -> list[CaseCall]:
    return [CaseCall(one, "{}") if isinstance(one, str) else CaseCall(one[0], json.dumps(one[1])) for one in made]


PARIS = ("book", {"city": "Paris", "nights": 2})
ROME = ("book", {"city": "Rome"})


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({"judge": "Is it?"}, ["f"]),
        ({"judge": "Is it?"}, []),
        ({"function": None}, []),
        ({"function": "None"}, []),
        ({"function": []}, []),
        ({"function": "f"}, ["f"]),
        ({"function": "f"}, ["f", "g"]),
        ({"function": ["f"]}, ["f"]),
        ({"function": ["f", "g"]}, ["g", "f"]),
        ({"function": ["f", "f"]}, ["f", "f"]),
        ({"function": "f", "run": "whole"}, ["transfer_to_sales", "f"]),
        ({"function": ["f"], "run": "whole", "arguments": {}}, ["f"]),
        ({"function": "book", "arguments": {"city": "Paris"}}, [PARIS]),
        ({"function": "book", "arguments": {"city": "Paris", "nights": 2.0}}, [PARIS]),
        ({"function": ["book"], "arguments": {"city": "Rome"}}, [ROME]),
        ({"function": "book", "arguments": {"city": "Rome"}, "run": "whole"}, [PARIS, ROME]),
        ({"arguments": {"city": "Rome"}}, [ROME]),
        ({"arguments": {"city": lambda city: "om" in city}}, [ROME]),
        ({"arguments": {"a": [1, {"b": None}]}}, [("f", {"a": [1, {"b": None}]})]),
    ],
)
def test_what_passes(fields: dict[str, Any], made: list[Any]) -> None:
    """First call by name, all calls by a list, arguments by those that are named; in a whole run, some call."""
    assert unexpected(Case("Hi", **fields), calls(*made)) is None


@pytest.mark.parametrize(
    ("fields", "made", "says"),
    [
        ({"function": None}, ["f"], "expected no call"),
        ({"function": "None"}, ["f"], "expected no call"),
        ({"function": "f"}, [], "expected f"),
        ({"function": "f"}, ["g", "f"], "expected f"),
        ({"function": ["f"]}, ["f", "f"], "expected exactly these calls: f"),
        ({"function": ["f"]}, [], "expected exactly these calls: f"),
        ({"function": ["f"]}, ["f", "g"], "expected exactly these calls: f"),
        ({"function": ["f", "g"]}, ["f"], "expected exactly these calls: f, g"),
        ({"function": "f", "run": "whole"}, ["g"], "expected f"),
        ({"function": "book", "arguments": {"city": "Paris"}}, [ROME], 'expected book with city="Paris"'),
        ({"function": "book", "arguments": {"city": "Rome"}}, [PARIS, ROME], 'expected book with city="Rome"'),
        ({"function": "book", "arguments": {"nights": 1}}, [ROME], "expected book with nights=1"),
        ({"function": "book", "arguments": {"nights": "2"}}, [PARIS], 'expected book with nights="2"'),
        ({"arguments": {"a": True}}, [("f", {"a": 1})], "expected a call with a=true"),
        ({"arguments": {"a": [1]}}, [("f", {"a": [1, 2]})], "expected a call with a=[1]"),
        ({"arguments": {"a": {"b": 1}}}, [("f", {"a": {"b": 1, "c": 1}})], 'expected a call with a={"b": 1}'),
        ({"arguments": {"a": str.isupper, "é": "ü"}}, [("f", {"a": "b"})], 'expected a call with a=<isupper>, é="ü"'),
        ({"function": "f", "arguments": {"a": 1}}, [("g", {"a": 1})], "expected f with a=1"),
    ],
)
def test_what_fails(fields: dict[str, Any], made: list[Any], says: str) -> None:
    """The words are those of the report."""
    assert unexpected(Case("Hi", **fields), calls(*made)) == says


def test_arguments_that_are_no_json_have_no_values() -> None:
    """They fail where one is expected; without an expectation, the name decides."""
    broken = [CaseCall("f", '{"a": ')]
    assert unexpected(Case("Hi", function="f", arguments={"a": 1}), broken) == "expected f with a=1"
    assert unexpected(Case("Hi", function="f"), broken) is None


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (CaseCall("f", ""), "f()"),
        (CaseCall("f", " {} "), "f()"),
        (CaseCall("f", '{"a":\n  1}'), 'f({"a": 1})'),
        (CaseCall("f", '{"a": '), 'f({"a":)'),
        (CaseCall("f", "[" * 100_000), f"f({'[' * 100_000})"),
    ],
)
def test_a_call_is_shown_on_one_line(call: CaseCall, shown: str) -> None:
    """As the model wrote it."""
    assert str(call) == shown


def test_calls_of_a_history() -> None:
    """All of its assistant messages, in order, whatever type a call has."""
    messages = [
        {"role": "user", "content": "Hi", "tool_calls": [{"id": "0", "function": {"name": "no"}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "2", "custom": {"name": "g", "input": "x"}}]},
        {"role": "assistant", "content": "Done", "tool_calls": None},
    ]
    assert calls_of(messages) == [CaseCall("f", "{}"), CaseCall("g", "")]
