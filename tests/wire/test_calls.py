"""Rows of `wire-cases.md`, end to end in all three ways to run: the shapes of tool calls."""

from __future__ import annotations

import json

import pytest
from wire_cases import HALF, LAST, PARIS, ROME, WAYS, Json, asks, chunk, end, fragment, sse, text, watch, ways

from aswarm import StreamInterrupted
from aswarm.testing import RawAnswer, check_history

ONE, TWO = [("get_weather", PARIS)], [("get_weather", PARIS), ("get_time", ROME)]
CALLS: dict[str, tuple[list[Json], list[tuple[str, str]]]] = {
    "10 no index, one per chunk": (
        asks(
            fragment("get_weather", '{"city": ', id="1"), fragment(None, '"Paris"}'), fragment("get_time", ROME, id="2")
        ),
        TWO,
    ),
    "10 no index, several in one delta": (
        [chunk({"tool_calls": [fragment("get_weather", PARIS, id="1"), fragment("get_time", ROME, id="2")]})],
        TWO,
    ),
    "11 index null": (
        asks(
            fragment("get_weather", "", id="1", index=None),
            fragment(None, PARIS, index=None),
            fragment("get_time", ROME, id="2", index=None),
        ),
        TWO,
    ),
    "12 index 0 for all": (
        asks(fragment("get_weather", PARIS, id="1", index=0), fragment("get_time", ROME, id="2", index=0)),
        TWO,
    ),
    "12 index 0 for all, in pieces": (
        asks(
            fragment("get_weather", "", id="1", index=0),
            fragment(None, PARIS, index=0),
            fragment("get_time", "", id="2", index=0),
            fragment(None, ROME, index=0),
        ),
        TWO,
    ),
    "12 index 0 for all, the same function": (
        asks(fragment("get_weather", PARIS, id="1", index=0), fragment("get_weather", PARIS, id="2", index=0)),
        ONE * 2,
    ),
    "13 the first index is 1": (
        asks(
            fragment("get_weather", "", id="1", index=1),
            fragment(None, PARIS, index=1),
            fragment("get_time", ROME, id="2", index=2),
        ),
        TWO,
    ),
    "15 id and name empty in continuations": (
        asks(
            fragment("get_weather", "", id="1", index=0),
            fragment("", '{"city": ', id="", index=0),
            fragment("", '"Paris"}', id="", index=0),
        ),
        ONE,
    ),
    "15 id and name null in continuations": (
        asks(
            fragment("get_weather", "", id="1", index=0),
            {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": PARIS}},
        ),
        ONE,
    ),
    "16 the same id in every fragment": (
        asks(
            fragment("get_weather", "", id="1", index=0, type="function"),
            fragment(None, '{"city": ', id="1", index=0, type="function"),
            fragment(None, '"Paris"}', id="1", index=0, type="function"),
        ),
        ONE,
    ),
    "17 the full name in every fragment": (
        asks(
            fragment("get_weather", '{"city": ', id="1", index=0),
            fragment("get_weather", '"Paris"', id="1", index=0),
            fragment("get_weather", "}", id="1", index=0),
        ),
        ONE,
    ),
    "17 the full name in every fragment, no ids": (
        asks(
            fragment("get_weather", '{"city": ', index=0),
            fragment("get_weather", '"Paris"', index=0),
            fragment("get_weather", "}", index=0),
        ),
        ONE,
    ),
    "18 the name in pieces": (
        asks(fragment("get_", "", id="1", index=0), fragment("weather", "", index=0), fragment(None, PARIS, index=0)),
        ONE,
    ),
    "21 interleaved, no ids": (
        asks(
            fragment("get_weather", '{"city": ', index=0),
            fragment("get_time", '{"city": ', index=1),
            fragment(None, '"Paris"}', index=0),
            fragment(None, '"Rome"}', index=1),
        ),
        TWO,
    ),
    "22 a whole call in one chunk": (
        [chunk({"content": "", "tool_calls": [fragment("get_weather", PARIS, id="1", index=0)]}, "tool_calls")],
        ONE,
    ),
    "23 no id at all": (asks(fragment("get_weather", PARIS, index=0), fragment("get_time", ROME, index=1)), TWO),
    "26 empty arguments": (asks(fragment("get_weather", "", id="1", index=0)), [("get_weather", "")]),
    "26 no arguments": (asks(fragment("get_weather", None, id="1", index=0)), [("get_weather", "")]),
    "27 finish stop": ([*asks(fragment("get_weather", PARIS, id="1", index=0)), *end("stop")], ONE),
    "28 finish length, the call whole": ([*asks(fragment("get_weather", PARIS, id="1", index=0)), *end("length")], ONE),
    "30 function_call beside it": (
        [
            chunk(
                {
                    "function_call": {"name": "get_weather", "arguments": "{"},
                    "tool_calls": [fragment("get_weather", "{", id="1", index=0)],
                }
            ),
            chunk(
                {
                    "function_call": {"name": "get_weather", "arguments": PARIS[1:]},
                    "tool_calls": [fragment("get_weather", PARIS[1:], id="1", index=0)],
                }
            ),
        ],
        ONE,
    ),
}


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("case", CALLS)
async def test_shapes_of_calls(case: str, way: str) -> None:
    """Each of these shapes is these calls: run once each, answered once each in order, and replayed whole."""
    chunks, expected = CALLS[case]
    chunks = chunks if any(item["choices"][0]["finish_reason"] for item in chunks) else [*chunks, *end("tool_calls")]
    seen = await watch(way, [RawAnswer(sse(*chunks)), LAST])
    assert seen.calls == expected
    cities = [json.loads(arguments or "{}").get("city", "Nowhere") for _, arguments in expected]
    assert sorted(seen.called) == sorted(f"{name} {city}" for (name, _), city in zip(expected, cities, strict=True))
    said = {"get_weather": "sunny", "get_time": "noon"}
    assert seen.told == [f"{said[name]} in {city}" for (name, _), city in zip(expected, cities, strict=True)]
    made = seen.response.messages[0]["tool_calls"]
    assert all(item["id"] and item["type"] == "function" for item in made)
    assert "function_call" not in seen.response.messages[0]
    replayed = seen.model.requests[1].messages
    assert [item["function"]["arguments"] for item in replayed[-len(made) - 1]["tool_calls"]] == [
        a or "{}" for _, a in expected
    ]
    assert [message["tool_call_id"] for message in replayed[-len(made) :]] == [item["id"] for item in made]
    check_history(replayed)
    assert seen.response.text == LAST


@pytest.mark.asyncio
@ways
async def test_row_28_cut_arguments(way: str) -> None:
    """28: arguments that were cut by the length are told to the model and not run."""
    cut = [*asks(fragment("get_weather", '{"city": "Pa', id="1", index=0)), *end("length")]
    seen = await watch(way, [RawAnswer(sse(*cut)), LAST])
    assert seen.called == []
    assert seen.told[0].startswith("Error: ")
    assert "JSON" in seen.told[0]
    assert seen.response.text == LAST


@pytest.mark.asyncio
@ways
async def test_row_29_a_custom_call(way: str) -> None:
    """29: a call of type "custom" is answered as unknown, replayed as it came, and the run continues."""
    custom = {"index": 0, "id": "1", "type": "custom", "custom": {"name": "get_weather", "input": "Paris"}}
    seen = await watch(way, [RawAnswer(sse(*asks(custom), *end("tool_calls"))), LAST])
    assert seen.called == []
    assert seen.told == ["Error: Tool get_weather not found."]
    assert seen.model.requests[1].messages[-2]["tool_calls"] == [{key: custom[key] for key in ("id", "type", "custom")}]
    assert seen.response.text == LAST


@pytest.mark.asyncio
@ways
async def test_calls_written_as_text(way: str) -> None:
    """A literal `<tool_call>` in the content is text, and never executed."""
    said = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    seen = await watch(way, [RawAnswer(sse(*text(said), *end()))])
    assert (seen.called, seen.response.text, seen.response.stop) == ([], said, "answer")


@pytest.mark.anyio
async def test_the_same_on_both_backends() -> None:
    """The shapes do not depend on the event loop: one of the worse ones, on asyncio and on trio."""
    for way in WAYS:
        seen = await watch(way, [RawAnswer(sse(*CALLS["12 index 0 for all, in pieces"][0], *end("stop"))), LAST])
        assert (seen.calls, seen.response.text) == (TWO, LAST)
        broken = await watch(way, [RawAnswer(HALF)])
        assert isinstance(broken.error, StreamInterrupted)
