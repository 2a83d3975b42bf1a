"""Rows of `wire-cases.md`, end to end in all three ways to run: the shapes of tool calls."""

from __future__ import annotations

import json

import pytest

from aswarm.errors import StreamInterrupted
from aswarm.testing import RawAnswer, check_history
from tests.support.wire.wire_bodies import CALLS, TWO
from tests.support.wire.wire_cases import HALF, LAST, WAYS, asks, end, fragment, sse, text, watch, ways


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("case", CALLS)
async def test_shapes_of_calls(case: str, way: str) -> None:
    """Each of these shapes is the same calls. Each call runs once, is answered once, in order, and is sent back whole."""
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
    """28: a call whose arguments were cut off by the length limit does not run, and the model reads the reason."""
    cut = [*asks(fragment("get_weather", '{"city": "Pa', id="1", index=0)), *end("length")]
    seen = await watch(way, [RawAnswer(sse(*cut)), LAST])
    assert seen.called == []
    assert seen.told[0].startswith("Error: ")
    assert "JSON" in seen.told[0]
    assert seen.response.text == LAST


@pytest.mark.asyncio
@ways
async def test_row_29_a_custom_call(way: str) -> None:
    """29: a call of type "custom" gets the answer that the tool is unknown, is sent back unchanged, and the run continues."""
    custom = {"index": 0, "id": "1", "type": "custom", "custom": {"name": "get_weather", "input": "Paris"}}
    seen = await watch(way, [RawAnswer(sse(*asks(custom), *end("tool_calls"))), LAST])
    assert seen.called == []
    assert seen.told == ["Error: Tool get_weather not found."]
    assert seen.model.requests[1].messages[-2]["tool_calls"] == [{key: custom[key] for key in ("id", "type", "custom")}]
    assert seen.response.text == LAST


@pytest.mark.asyncio
@ways
async def test_calls_written_as_text(way: str) -> None:
    """A literal `<tool_call>` in the content is text, and is not executed."""
    said = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    seen = await watch(way, [RawAnswer(sse(*text(said), *end()))])
    assert (seen.called, seen.response.text, seen.response.stop) == ([], said, "answer")


async def test_the_same_on_both_backends() -> None:
    """One of the difficult shapes has the same result on asyncio and on trio."""
    for way in WAYS:
        seen = await watch(way, [RawAnswer(sse(*CALLS["12 index 0 for all, in pieces"][0], *end("stop"))), LAST])
        assert (seen.calls, seen.response.text) == (TWO, LAST)
        broken = await watch(way, [RawAnswer(HALF)])
        assert isinstance(broken.error, StreamInterrupted)
