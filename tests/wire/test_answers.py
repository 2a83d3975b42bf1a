"""Rows of `wire-cases.md`, end to end in all three ways to run: the shapes of answers without calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, TextDelta
from aswarm.errors import StreamInterrupted
from aswarm.events import ReasoningDelta
from aswarm.testing import RawAnswer, ScriptedModel
from tests.support.wire.wire_bodies import HELLO
from tests.support.wire.wire_cases import LAST, PARIS, Json, asks, chunk, end, fragment, sse, text, watch, ways

pytestmark = pytest.mark.asyncio


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


FULL = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}}
# Usages after the full usage. The counts stay (7, 2), with 3 cached tokens.
LATER: dict[str, list[Json]] = {
    "zeros": [dict.fromkeys(FULL, 0)],
    "nulls": [dict.fromkeys(FULL)],
    "only the output": [{"completion_tokens": 2}],
    "only a total of its own": [{"total_tokens": 2}],
    "details with zeros": [{"prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0}}],
    "texts": [{"prompt_tokens": "many", "completion_tokens": [2]}],
    "null, then zeros": [{"prompt_tokens": None}, dict.fromkeys(FULL, 0)],
}


@ways
@pytest.mark.parametrize("case", LATER)
async def test_row_4_usage_by_field(case: str, way: str) -> None:
    """4: of each field of the usage, also in its details, the last number counts that is neither null nor 0."""
    usages = [{"choices": [], "usage": usage} for usage in [{**FULL, "completion_tokens": 1}, FULL, *LATER[case]]]
    seen = await watch(way, [RawAnswer(sse(*text("a"), *end(), *usages))])
    usage = seen.response.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.requests) == (7, 2, 9, 1)
    assert usage.details["prompt_tokens_details"]["cached_tokens"] == 3


@ways
@pytest.mark.parametrize("names", [("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")])
async def test_row_4_a_total_that_is_less_than_its_parts(names: tuple[str, str], way: str) -> None:
    """4: such a total, or none, becomes the sum of its parts, also under Anthropic's names; a larger total stays."""
    for total, expected in ((None, 9), (0, 9), (2, 9), (12, 12)):
        usage = {**dict(zip(names, (7, 2), strict=True)), "total_tokens": total}
        seen = await watch(way, [RawAnswer(sse(*text("a"), *end(), {"choices": [], "usage": usage}))])
        counts = seen.response.usage
        assert (counts.prompt_tokens, counts.completion_tokens, counts.total_tokens) == (7, 2, expected)


@ways
async def test_the_usage_of_groq(way: str) -> None:
    """Older models of Groq report the usage of a stream only under "x_groq"."""
    done = {**end()[0], "x_groq": {"id": "r", "usage": {**FULL, "queue_time": 0.1}}}
    seen = await watch(way, [RawAnswer(sse({**text("a")[0], "x_groq": {"id": "r"}}, done))])
    usage = seen.response.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.requests) == (7, 2, 9, 1)
    seen = await watch(way, [RawAnswer(sse({**text("a")[0], "x_groq": "r"}, *end(), {"choices": [], "usage": FULL}))])
    assert seen.response.usage.total_tokens == 9


@ways
async def test_row_30_a_refusal(way: str) -> None:
    """30: the pieces of a refusal are joined and recorded, with null content; a refusal is not an error."""
    seen = await watch(way, [RawAnswer(sse(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), *end()))])
    message = seen.response.messages[0]
    assert (message["refusal"], message["content"], seen.response.stop) == ("I cannot.", None, "answer")


@ways
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking", "reasoning_opaque", "vendor_key"])
async def test_reasoning_and_unknown_keys(key: str, way: str) -> None:
    """The pieces of reasoning and of unknown keys are joined, and are in the events; in the next request, only reasoning is
    sent back."""
    thinks = [chunk({key: "Let me "}), chunk({key: "see."}), *asks(fragment("get_weather", PARIS, id="1", index=0))]
    seen = await watch(way, [RawAnswer(sse(*thinks, *end("tool_calls"))), LAST])
    assert seen.response.messages[0][key] == "Let me see."
    assert seen.model.requests[1].messages[-2].get(key) == (None if key == "vendor_key" else "Let me see.")
    if way == "run(stream=True)":
        assert "".join(item.get(key) or "" for item in seen.shown) == "Let me see."


async def test_reasoning_is_an_event() -> None:
    """Reasoning is yielded as `ReasoningDelta`s, under either of the two names that servers use."""
    for key in ("reasoning_content", "reasoning"):
        model = ScriptedModel([RawAnswer(sse(chunk({key: "Hm"}), *text("Hello"), *end()))])
        async with AsyncSwarm(client=model.client()).stream(Agent(), "Hi") as run:
            pieces = [event async for event in run if isinstance(event, ReasoningDelta | TextDelta)]
        assert pieces == [ReasoningDelta("Hm"), TextDelta("Hello")]


# --- shapes of recorded answers ---------------------------------------------------------------------------------------


def body(message: object, finish: str | None = "stop", **choice: Any) -> list[bytes]:
    """Return a completion that is not streamed."""
    choices = [{"index": 0, "message": message, "finish_reason": finish, **choice}]
    return [json.dumps({"id": "c1", "object": "chat.completion", "choices": choices, "usage": FULL}).encode()]


EMPTY = {"role": "assistant", "content": ""}
BOTH: dict[str, list[bytes]] = {
    "whole": body({"role": "assistant", "content": "Hello"}, delta=EMPTY),
    "whole, no finish reason": body({"role": "assistant", "content": "Hello"}, None, delta=EMPTY),
    "whole, the same in both": body({"role": "assistant", "content": "Hello"}, delta={"content": "Hello"}),
    "streamed": sse(
        chunk({"content": "Hel"}),
        *(
            {"choices": [{"delta": {"content": new}, "message": {"content": so_far}}]}
            for new, so_far in [("lo", "Hello")]
        ),
        {"choices": [{"delta": EMPTY, "message": {"content": "Hello"}, "finish_reason": "stop"}]},
        done=False,
    ),
    "streamed, zero values in message": sse(
        *({"choices": [{"delta": {"content": new}, "message": EMPTY, "finish_reason": ""}]} for new in ("Hel", "lo")),
        {"choices": [{"delta": {}, "message": EMPTY, "finish_reason": "stop"}]},
    ),
    "one chunk": sse({"choices": [{"delta": EMPTY, "message": {"content": "Hello"}, "finish_reason": "stop"}]}),
}


@ways
@pytest.mark.parametrize("case", BOTH)
async def test_a_delta_beside_a_message(case: str, way: str) -> None:
    """Perplexity sends both in each choice: the message is read from a whole answer, and the deltas from a stream."""
    seen = await watch(way, [RawAnswer(BOTH[case])])
    assert (seen.response.text, seen.error) == ("Hello", None)
    if way != "run":
        assert "".join(item["content"] or "" for item in seen.shown) == "Hello"


@ways
async def test_a_cut_stream_with_a_message_in_each_chunk(way: str) -> None:
    """Such a stream is not complete before its finish reason."""
    chunks = [{"choices": [{"delta": {"content": "Hel"}, "message": {"content": "Hel"}, "finish_reason": None}]}]
    for cut in (chunks, [{"choices": [{"delta": EMPTY, "message": EMPTY}]}, *chunks]):
        seen = await watch(way, [RawAnswer(sse(*cut, done=False))])
        assert isinstance(seen.error, StreamInterrupted)
        assert seen.partial == "Hel"


@ways
async def test_a_stream_that_ends_with_its_usage(way: str) -> None:
    """A stream with an answer, its usage and [DONE] is whole without a finish reason (Snowflake, Novita)."""
    usage = {"choices": [], "usage": FULL}
    seen = await watch(way, [RawAnswer(sse(*text("Hel", "lo"), usage))])
    assert (seen.error, seen.response.text, seen.response.usage.total_tokens) == (None, "Hello", 9)
    for cut in (
        sse(*text("Hel"), usage, done=False),
        sse(*text("Hel"), {"choices": [], "usage": dict.fromkeys(FULL, 0)}),
        *(sse(*({**piece, "usage": FULL} for piece in text(*pieces))) for pieces in (("Hel",), ("Hel", "l"))),
        sse(*text("Hel"), {"choices": [], "usage": {**FULL, "completion_tokens": 0}}),
    ):
        assert isinstance((await watch(way, [RawAnswer(cut)])).error, StreamInterrupted)
    assert isinstance((await watch(way, [RawAnswer(sse(*text(""), usage))])).error, StreamInterrupted)


SUMMARY = {"type": "reasoning.summary", "summary": "Ask the tool.", "format": "xai-responses-v1", "index": 0}
ENCRYPTED = {"type": "reasoning.encrypted", "data": "AAA", "format": "xai-responses-v1", "id": "rs_1", "index": 0}
# With the items that are sent back.
DETAILS: dict[str, tuple[list[list[Json]], list[Json]]] = {
    "a summary and an encrypted item": ([[SUMMARY], [ENCRYPTED]], [SUMMARY, ENCRYPTED]),
    "in one chunk": ([[SUMMARY, ENCRYPTED]], [SUMMARY, ENCRYPTED]),
    "the encrypted item between the pieces": (
        [[{**SUMMARY, "summary": "Ask "}], [ENCRYPTED], [{**SUMMARY, "summary": "the tool."}]],
        [SUMMARY, ENCRYPTED],
    ),
    "signatures of two calls": (
        [[{**ENCRYPTED, "id": id_}] for id_ in "ab"],
        [{**ENCRYPTED, "id": id_} for id_ in "ab"],
    ),
    "encrypted items without ids": (
        [[{"type": "reasoning.encrypted", "data": data, "index": 0}] for data in ("AAA", "BBB", "BBB")],
        [{"type": "reasoning.encrypted", "data": data, "index": 0} for data in ("AAA", "BBB")],
    ),
    "a repeated encrypted item": ([[ENCRYPTED], [ENCRYPTED]], [ENCRYPTED]),
    "the same text in two formats": (
        [[{"type": "reasoning.text", "text": "Hm.", "format": kind, "index": 0}] for kind in ("a", "b")],
        [{"type": "reasoning.text", "text": "Hm.", "format": kind, "index": 0} for kind in ("a", "b")],
    ),
    "the signature at the end": (
        [
            [{"type": "reasoning.text", "text": "Hm", "index": 0, "id": None}],
            [{"type": "reasoning.text", "text": "m.", "index": 0, "id": "r"}],
            [{"type": "reasoning.text", "signature": "sig", "index": 0}],
            [{"type": "reasoning.text", "text": "Next.", "index": 0}],
        ],
        [
            {"type": "reasoning.text", "text": "Hmm.", "index": 0, "id": "r", "signature": "sig"},
            {"type": "reasoning.text", "text": "Next.", "index": 0},
        ],
    ),
}


@ways
@pytest.mark.parametrize("case", DETAILS)
async def test_items_of_reasoning(case: str, way: str) -> None:
    """Only the pieces of one item are joined: items with the same index but another type, id or format stay apart, in their
    order."""
    pieces, items = DETAILS[case]
    asking = asks(fragment("get_weather", PARIS, id="1", index=0))
    chunks = [*(chunk({"reasoning_details": piece}) for piece in pieces), *asking, *end("tool_calls")]
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": PARIS}}
    whole = body({"role": "assistant", "content": None, "reasoning_details": items, "tool_calls": [call]}, "tool_calls")
    for raw in (sse(*chunks), whole):
        seen = await watch(way, [RawAnswer(raw), LAST])
        assert seen.model.requests[1].messages[-2]["reasoning_details"] == items


ZEROS = {
    "refusal": "",
    "audio": {"data": "", "expires_at": 0, "id": "", "transcript": ""},
    "function_call": {"arguments": "", "name": ""},
    "annotations": None,
}


@ways
async def test_zero_values(way: str) -> None:
    """Fields with the zero values of Go count as absent, whole and streamed (Snowflake): also an error without content, and an
    empty finish reason."""
    message = {"role": "assistant", "content": "Hello", "tool_calls": None}
    error = {"code": "", "message": "", "param": None}
    raws = [
        [json.dumps({"error": error, "choices": [{"message": {**message, **ZEROS}, "finish_reason": ""}]}).encode()],
        sse(*(chunk({**ZEROS, "role": "", "content": new}, "", error=error) for new in ("Hel", "lo")), *end()),
    ]
    for raw in raws:
        seen = await watch(way, [RawAnswer(raw)])
        assert seen.error is None
        assert seen.response.messages == [{**message, "sender": "A"}]


@ways
@pytest.mark.parametrize("answer", [{"title": "Apples", "pages": [1]}, {"type": "fruit", "name": "apple"}])
async def test_an_object_as_content(answer: Json, way: str) -> None:
    """An object as content is its JSON text (Cloudflare)."""
    seen = await watch(way, [RawAnswer(body({"role": "assistant", "content": answer}))])
    assert seen.response.text == json.dumps(answer)
    if way != "run":
        assert "".join(item["content"] or "" for item in seen.shown) == json.dumps(answer)


@ways
async def test_keys_that_are_repeated(way: str) -> None:
    """A key that a server repeats in its chunks is recorded once: Groq's channel and hosted tools, and unknown keys."""
    started = {"index": 0, "type": "search", "arguments": "{}", "search_results": {"results": []}}
    finished = {**started, "output": "Sunny.", "search_results": {"results": [{"url": "a"}]}}
    deltas = [
        {"channel": "analysis", "executed_tools": [started], "cites": [{"url": "a"}], "vendor": "x"},
        {"channel": "analysis", "executed_tools": [finished], "cites": [{"url": "a"}, {"url": "b"}], "vendor": "x"},
        {"channel": "final", "content": "Hello"},
    ]
    seen = await watch(way, [RawAnswer(sse(*map(chunk, deltas), *end()))])
    message = seen.response.messages[0]
    assert (message["channel"], message["executed_tools"], message["vendor"]) == ("final", [finished], "x")
    assert message["cites"] == [{"url": "a"}, {"url": "b"}]


@ways
async def test_a_call_in_the_deprecated_form(way: str) -> None:
    """A `function_call` without `tool_calls`, for a request with the deprecated `functions`, is in the message as a whole, and no
    function runs."""
    pieces = [{"name": "get_weather", "arguments": ""}, {"arguments": PARIS[:5]}, {"arguments": PARIS[5:]}]
    seen = await watch(
        way, [RawAnswer(sse(*(chunk({"function_call": piece}) for piece in pieces), *end("function_call")))]
    )
    message = seen.response.messages[0]
    assert (message["function_call"], message["tool_calls"]) == ({"name": "get_weather", "arguments": PARIS}, None)
    assert (seen.error, seen.response.stop, len(seen.response.messages)) == (None, "answer", 1)
