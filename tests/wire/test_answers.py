"""Rows of `wire-cases.md`, end to end in all three ways to run: the shapes of answers without calls."""

from __future__ import annotations

import pytest
from wire_bodies import HELLO
from wire_cases import LAST, PARIS, asks, chunk, end, fragment, sse, text, watch, ways

from aswarm import Agent, AsyncSwarm, Usage
from aswarm._values import events
from aswarm.testing import RawAnswer, ScriptedModel


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("case", HELLO)
async def test_shapes_of_a_plain_answer(case: str, way: str) -> None:
    """Each of these shapes is the answer "Hello"; the message contains nothing else."""
    seen = await watch(way, [RawAnswer(sse(*HELLO[case], done="no DONE" not in case))])
    expected = {"role": "assistant", "content": "Hello", "sender": "A", "tool_calls": None}
    assert seen.response.messages == [expected]
    assert (seen.response.text, seen.response.stop, seen.response.usage.requests) == ("Hello", "answer", 1)
    if way != "run":
        assert "".join(item["content"] or "" for item in seen.shown) == "Hello"
    if way == "run(stream=True)":
        assert [item["role"] for item in seen.shown] == ["assistant", *[None] * (len(seen.shown) - 1)]


@pytest.mark.asyncio
@ways
async def test_row_4_cumulative_usage(way: str) -> None:
    """4: if a server sends cumulative usage, only the last usage that is not null counts; usages are not added up."""
    usages = ({"prompt_tokens": 3, "completion_tokens": n, "total_tokens": 3 + n} for n in (1, 2, 3))
    chunks = [{**item, "usage": usage} for item, usage in zip(text("a", "b", "c"), usages, strict=True)]
    seen = await watch(way, [RawAnswer(sse(*chunks, *end(), {"choices": [], "usage": None}))])
    assert seen.response.usage == Usage(3, 3, 6, requests=1)


@pytest.mark.asyncio
@ways
async def test_row_3_usage_with_details(way: str) -> None:
    """3: the usage of the last chunk is recorded, with details and other numbers; unknown keys are ignored."""
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    seen = await watch(way, [RawAnswer(sse(*text("a"), *end(), {"choices": [], "usage": usage, "x_groq": {}}))])
    assert seen.response.usage == Usage(3, 2, 5, requests=1, details={"prompt_tokens_details": {"cached_tokens": 1}})


@pytest.mark.asyncio
@ways
async def test_row_30_a_refusal(way: str) -> None:
    """30: the pieces of a refusal are joined and recorded, with null content; a refusal is not an error."""
    seen = await watch(way, [RawAnswer(sse(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), *end()))])
    message = seen.response.messages[0]
    assert (message["refusal"], message["content"], seen.response.stop) == ("I cannot.", None, "answer")


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "vendor_key"])
async def test_reasoning_and_unknown_keys(key: str, way: str) -> None:
    """The pieces of reasoning and of unknown keys are joined, are in the events, and are sent back in the next request."""
    thinks = [chunk({key: "Let me "}), chunk({key: "see."}), *asks(fragment("get_weather", PARIS, id="1", index=0))]
    seen = await watch(way, [RawAnswer(sse(*thinks, *end("tool_calls"))), LAST])
    assert seen.response.messages[0][key] == "Let me see."
    assert seen.model.requests[1].messages[-2][key] == "Let me see."
    if way == "run(stream=True)":
        assert "".join(item.get(key) or "" for item in seen.shown) == "Let me see."


@pytest.mark.asyncio
async def test_reasoning_is_an_event() -> None:
    """Reasoning is yielded as `ReasoningDelta`s, under either of the two names that servers use."""
    for key in ("reasoning_content", "reasoning"):
        model = ScriptedModel([RawAnswer(sse(chunk({key: "Hm"}), *text("Hello"), *end()))])
        async with AsyncSwarm(client=model.client()).stream(Agent(), "Hi") as run:
            pieces = [event async for event in run if isinstance(event, events.ReasoningDelta | events.TextDelta)]
        assert pieces == [events.ReasoningDelta("Hm"), events.TextDelta("Hello")]
