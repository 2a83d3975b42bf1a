"""The validator of the requests of `benchmarks/promises`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "promises"))  # at the end: its modules have short names

from validator import faults_of, items_of

Json = dict[str, Any]
USER: Json = {"role": "user", "content": "Go on."}


def chat_call(call_id: str, arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": "book", "arguments": arguments}}


def asked(*calls: Json) -> Json:
    return {"role": "assistant", "tool_calls": list(calls)}


def result(call_id: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "booked"}


def item(call_id: str, arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "book", "arguments": arguments}


def output(call_id: str) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": "booked"}


CHAT = {
    "no calls": ([USER], None),
    "each call has its result": ([USER, asked(chat_call("a"), chat_call("b")), result("b"), result("a"), USER], None),
    "an id is used again": ([asked(chat_call("a")), result("a"), asked(chat_call("a")), result("a"), USER], None),
    "a call without a result": (
        [USER, asked(chat_call("a"), chat_call("b")), result("a"), USER],
        "'b' of 'book' has no result",
    ),
    "the last call has no result": ([USER, asked(chat_call("a"))], "'a' of 'book' has no result"),
    "a result comes too late": ([asked(chat_call("a")), USER, result("a")], "'a' follows no message"),
    "a result without a call": ([USER, result("a")], "'a' follows no message"),
    "two results": ([asked(chat_call("a")), result("a"), result("a")], "'a' follows no message"),
    "the same id twice in a message": (
        [asked(chat_call("a"), chat_call("a")), result("a")],
        "two calls of one message",
    ),
    "half of the arguments": ([asked(chat_call("a", '{"roo')), result("a")], "no JSON object"),
    "the arguments are a list": ([asked(chat_call("a", "[1]")), result("a")], "no JSON object"),
    "an unknown role": ([{"role": "robot", "content": "Hi"}], "role: Input should be"),
    "a tool message without an id": ([{"role": "tool", "content": "booked"}], "tool_call_id: Field required"),
}
RESPONSES = {
    "a text": ("Go on.", None),
    "each call has its result": ([USER, item("a"), item("b"), output("a"), output("b"), USER], None),
    "a message stands between a call and its result": ([item("a"), USER, output("a")], None),
    "parts of an assistant without an id": (
        [{"role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}, USER],
        None,
    ),
    "a call without a result": ([USER, item("a"), USER], "'a' of 'book' has no result"),
    "a result without a call": ([USER, output("a")], "'a' has no call before it"),
    "a result before its call": ([output("a"), item("a")], "'a' has no call before it"),
    "the same id twice": ([item("a"), item("a"), output("a")], "two calls"),
    "half of the arguments": ([item("a", '{"roo'), output("a")], "no JSON object"),
    "a call without arguments": (
        [{"type": "function_call", "call_id": "a", "name": "book"}],
        "arguments: Field required",
    ),
}


def check(body: Json, expected: str | None) -> None:
    faults = faults_of(body)
    if expected is None:
        assert faults == []
    else:
        assert any(expected in fault for fault in faults), faults


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("case", CHAT)
def test_a_request_to_chat_completions_has_the_faults_that_the_provider_refuses(case: str, stream: bool) -> None:
    """Each fault is named, and a valid request has none."""
    messages, expected = CHAT[case]
    check({"model": "m", "messages": messages, "stream": stream}, expected)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("case", RESPONSES)
def test_a_request_to_the_responses_api_has_the_faults_that_the_provider_refuses(case: str, stream: bool) -> None:
    """Each fault is named, and a valid request has none."""
    given, expected = RESPONSES[case]
    check({"model": "m", "input": given, "stream": stream}, expected)


@pytest.mark.parametrize(("function", "expected"), [({"name": "book"}, None), ({}, "name: Field required")])
def test_a_function_of_the_responses_api_needs_a_name_but_not_strict(function: Json, expected: str | None) -> None:
    """OpenAI's server accepts a function without `strict`, although the type of the client requires it."""
    tool = {"type": "function", "parameters": {"type": "object", "properties": {}}, **function}
    check({"model": "m", "input": [USER], "tools": [tool]}, expected)


def test_both_apis_have_the_same_items() -> None:
    """Scripts and judges read the same history from both APIs."""
    chat = {
        "messages": [
            {"role": "system", "content": "Be kind."},
            USER,
            asked(chat_call("a"), chat_call("b")),
            result("a"),
            result("b"),
        ]
    }
    responses = {"instructions": "Be kind.", "input": [USER, item("a"), item("b"), output("a"), output("b")]}

    def seen(body: Json) -> list[tuple[str, str, str, str]]:
        return [(each.kind, each.text, each.call_id, each.name) for each in items_of(body)]

    assert seen(chat) == seen(responses)
