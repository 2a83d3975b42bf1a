"""A hundred shapes of answers, as providers send them: the decoder and aswarm read the same, whole and in random pieces.

The shapes are written anew, from the kinds of answers that providers were recorded with.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.anthropic_rules import events_of, text, thinking, use
from tests.support.recorded.comparison import ROWS, differences
from tests.support.recorded.decoder import decode
from tests.support.recorded.player import Player, player
from tests.support.recorded.suite import paths_of, play

Json = dict[str, Any]

# --- Chat Completions ---------------------------------------------------------------------------------------------------

USED = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
ARGUMENTS = '{"city": "Oslo"}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}


def d(finish: str | None = None, /, **delta: Any) -> Json:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(arguments: str, /, index: int | None = 0, **head: Any) -> Json:
    named = {"name": head.pop("name")} if "name" in head else {}
    place = {} if index is None else {"index": index}
    return d(tool_calls=[{**place, **head, "function": {**named, "arguments": arguments}}])


def w(finish: str | None = "stop", /, usage: Any = USED, **message: Any) -> Json:
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": usage,
    }


U, STOP, CALLS = {"choices": [], "usage": USED}, d("stop"), d("tool_calls")
OPENED = piece("", id="call_1", name="look")
DETAIL = {"type": "reasoning.text", "text": "Hm.", "index": 0, "format": "x"}
CHAT: dict[str, Json | list[Any]] = {
    "a text": w(content="Hi"),
    "no usage": w(content="Hi", usage=None),
    "usage with details": w(content="Hi", usage={**USED, "prompt_tokens_details": {"cached_tokens": 3}}),
    "usage of reasoning": w(content="Hi", usage={**USED, "completion_tokens_details": {"reasoning_tokens": 2}}),
    "usage with null details": w(content="Hi", usage={**USED, "prompt_tokens_details": None}),
    "an empty text": w(content=""),
    "null content": w(content=None),
    "no finish reason": w(None, content="Hi"),
    "length": w("length", content="Hi"),
    "content_filter": w("content_filter", content="Hi"),
    "eos": w("eos", content="Hi"),
    "null lists": w(content="Hi", tool_calls=None, annotations=None, audio=None, function_call=None, refusal=None),
    "empty lists": w(content="Hi", tool_calls=[], annotations=[], reasoning_details=[]),
    "a refusal": w(content=None, refusal="No."),
    "reasoning_content": w(content="Hi", reasoning_content="Hm."),
    "reasoning": w(content="Hi", reasoning="Hm."),
    "reasoning with its details": w(content="Hi", reasoning="Hm.", reasoning_details=[DETAIL]),
    "only the details": w(content="Hi", reasoning_details=[DETAIL]),
    "an encrypted detail": w(
        content="Hi", reasoning_details=[{"type": "reasoning.encrypted", "data": "x", "index": 0}]
    ),
    "parts of Mistral": w(
        content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Hi"}]
    ),
    "parts of text": w(content=[{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]),
    "an object": w(content={"name": "Ada", "age": 36}),
    "a call": w("tool_calls", content=None, tool_calls=[CALL]),
    "a call beside a text": w("tool_calls", content="Let me look.", tool_calls=[CALL]),
    "a call with stop": w(content=None, tool_calls=[CALL]),
    "two calls": w("tool_calls", content=None, tool_calls=[CALL, {**CALL, "id": "call_2"}]),
    "a call without arguments": w("tool_calls", tool_calls=[{**CALL, "function": {"name": "look", "arguments": ""}}]),
    "a call with extra content": w(
        "tool_calls", tool_calls=[{**CALL, "extra_content": {"google": {"thought_signature": "s"}}}]
    ),
    "two choices": {
        "choices": [*w(content="Hi")["choices"], {"index": 1, "message": {"content": "Ho"}}],
        "usage": USED,
    },
    "choices in another order": {"choices": [{"index": 1, "message": {"content": "Ho"}}, *w(content="Hi")["choices"]]},
    "an error": {"error": {"message": "Too many words", "type": "invalid_request_error", "code": None}},
    "an error that is a text": {"error": "Too many words"},
    "a stream": [d(role="assistant", content=""), d(content="H"), d(content="i"), STOP, U],
    "a stream with its usage at the end": [d(content="Hi"), {**STOP, "usage": USED}],
    "usage in each chunk": [
        {**d(content="Hi"), "usage": {**USED, "completion_tokens": 1, "total_tokens": 10}},
        {**STOP, "usage": USED},
    ],
    "usage of groq": [d(content="Hi"), {**STOP, "x_groq": {"id": "r", "usage": USED}}],
    "usage in the choice": [d(content="Hi"), {"choices": [{**STOP["choices"][0], "usage": USED}]}],
    "a null usage before the last": [{**d(content="Hi"), "usage": None}, STOP, U],
    "a comment before": [": PROCESSING", d(content="Hi"), STOP],
    "a filter before": [{"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}, d(content="Hi"), STOP],
    "null content beside reasoning": [
        d(content=None, reasoning_content="Hm"),
        d(content=None, reasoning_content="."),
        d(content="Hi"),
        STOP,
    ],
    "reasoning under both names": [d(reasoning="Hm.", reasoning_content="Hm."), d(content="Hi"), STOP],
    "details in pieces": [
        d(reasoning_details=[{**DETAIL, "text": "H"}]),
        d(reasoning_details=[{**DETAIL, "text": "m."}]),
        d(content="Hi"),
        STOP,
    ],
    "a refusal in pieces": [d(refusal="N"), d(refusal="o."), STOP],
    "a streamed call": [OPENED, piece('{"city": '), piece('"Oslo"}'), CALLS],
    "a whole call in a chunk": [d(tool_calls=[{"index": 0, **CALL}]), CALLS],
    "a call in the last chunk": [d("tool_calls", tool_calls=[{"index": 0, **CALL}])],
    "calls without an index": [d(tool_calls=[CALL]), d(tool_calls=[{**CALL, "id": "call_2"}]), CALLS],
    "calls with the index 0": [
        piece(ARGUMENTS, id="call_1", name="look"),
        piece("{}", id="call_2", name="look"),
        CALLS,
    ],
    "two streamed calls": [OPENED, piece(ARGUMENTS), piece("", 1, id="call_2", name="find"), piece("{}", 1), CALLS],
    "names in each piece": [
        OPENED,
        piece('{"city":', id="call_1", name="look"),
        piece(' "Oslo"}', id="call_1", name="look"),
        CALLS,
    ],
    "empty names in the rest": [OPENED, piece(ARGUMENTS, id="", name=""), CALLS],
    "an error in a stream": [d(content="Hi"), {"error": {"message": "Overloaded", "code": 502}}],
    "a stream that is cut": [d(content="Hi")],
    "a chunk after the end": [d(content="Hi"), STOP, d(content="")],
}

# --- Responses ----------------------------------------------------------------------------------------------------------

R_USED = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13, "input_tokens_details": {"cached_tokens": 2}}


def m(words: str, /, **more: Any) -> Json:
    part = {"type": "output_text", "text": words, "annotations": []}
    return {
        "type": "message",
        "id": f"msg_{words}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        **more,
    }


def thought(*summary: str, **more: Any) -> Json:
    return {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": each} for each in summary],
        **more,
    }


def r(*output: Json, **more: Any) -> Json:
    return {"object": "response", "status": "completed", "output": [*output], "usage": R_USED, **more}


def s(*output: Json, finals: bool = True, deltas: bool = True, **more: Any) -> list[Any]:
    """A stream with these items."""
    events: list[Any] = [{"type": "response.created", "response": r(status="in_progress")}]
    for index, item in enumerate(output):
        place = {"output_index": index, "item_id": item.get("id")}
        events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
        for part in (item.get("content") or []) if deltas and item["type"] == "message" else []:
            events += [{"type": "response.output_text.delta", **place, "delta": each} for each in part["text"]]
        if deltas and item["type"] == "function_call":
            events[-1]["item"] = {**item, "arguments": ""}
            events.append({"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*events, {"type": "response.completed", "response": r(*(output if finals else ()), **more)}]


ASK = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "look",
    "arguments": ARGUMENTS,
    "status": "completed",
}
ASK_2 = {**ASK, "id": "fc_2", "call_id": "call_2", "name": "find"}
SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
NO = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
CUSTOM = {"type": "custom_tool_call", "id": "ct", "call_id": "call_1", "name": "sql", "input": "select 1"}
RESPONSES: dict[str, Json | list[Any]] = {
    "a response": r(m("Hi")),
    "a response with nulls": r(m("Hi"), error=None, incomplete_details=None),
    "a response without usage": r(m("Hi"), usage=None),
    "two parts": r(m("", content=[{"type": "output_text", "text": "H"}, {"type": "output_text", "text": "i"}])),
    "two messages": r(m("One", phase="commentary"), m("Two", phase="final_answer")),
    "a refused response": r(NO),
    "reasoning and a text": r(thought("Hm."), m("Hi")),
    "encrypted reasoning": r(thought(encrypted_content="x"), m("Hi")),
    "two summaries": r(thought("One", "Two"), m("Hi")),
    "open reasoning": r(thought(content=[{"type": "reasoning_text", "text": "Hm."}]), m("Hi")),
    "a function call": r(ASK),
    "two function calls": r(thought(encrypted_content="x"), ASK, ASK_2),
    "a text and a call": r(m("Let me look."), ASK),
    "a custom call": r(CUSTOM),
    "a search": r(SEARCHED, m("Hi")),
    "a search for tools by the program": r(
        {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {"q": "x"}}
    ),
    "a search for tools by the server": r(
        {"type": "tool_search_call", "id": "ts", "execution": "server", "arguments": {"q": "x"}}, m("Hi")
    ),
    "an unknown item": r({"type": "moon_call", "id": "x", "status": "completed"}, m("Hi")),
    "an incomplete response": r(m("Hi"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    "a filtered response": r(m("Hi"), status="incomplete", incomplete_details={"reason": "content_filter"}),
    "a queued response": r(status="queued", usage=None),
    "a failed response": r(status="failed", error={"code": "server_error", "message": "It broke"}),
    "a streamed response": s(m("Hi")),
    "no items at the end": s(thought("Hm."), m("Hi"), finals=False),
    "no deltas": s(thought("Hm."), m("Hi"), deltas=False),
    "a streamed call beside a text": s(m("Look"), ASK),
    "streamed calls": s(ASK, ASK_2),
    "calls without deltas": s(ASK, ASK_2, deltas=False),
    "streamed messages": s(m("One"), SEARCHED, m("Two")),
    "a cut response": s(m("Hi"))[:-1],
    "an error event": [
        *s(m("Hi"))[:-1],
        {"type": "error", "code": "server_error", "message": "It broke", "param": None},
    ],
    "a failed stream": [
        {"type": "response.failed", "response": r(status="failed", error={"code": "x", "message": "It broke"})}
    ],
    "a keepalive": [{"type": "keepalive", "sequence_number": 1}, *s(m("Hi"))],
    "a comment": [": ping", *s(m("Hi")), "data: [DONE]"],
}

# --- Messages -----------------------------------------------------------------------------------------------------------

C_USED = {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1}
QUOTED = {**text("Oslo."), "citations": [{"type": "char_location", "cited_text": "Oslo", "document_index": 0}]}
SERVER = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "title": "T"}],
}
SIGNED = {**thinking("Hm."), "signature": "abc"}


def a(*blocks: Json, stop: str = "end_turn", **more: Any) -> Json:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [*blocks],
    }
    return {**message, "stop_reason": stop, "stop_sequence": None, "usage": C_USED, **more}


WHOLE: dict[str, Json] = {
    "a message": a(text("Hi")),
    "nothing": a(),
    "thought": a(SIGNED, text("Hi")),
    "hidden thinking": a({**SIGNED, "thinking": ""}, text("Hi")),
    "redacted thinking": a({"type": "redacted_thinking", "data": "abc"}, text("Hi")),
    "a use": a(use("look", city="Oslo"), stop="tool_use"),
    "a use without input": a(use("look"), stop="tool_use"),
    "a text and two uses": a(text("Look"), use("look", 1, city="Oslo"), use("look", 2), stop="tool_use"),
    "interleaved thinking": a(SIGNED, text("One"), SIGNED, use("look"), stop="tool_use"),
    "citations": a(text("It is "), QUOTED, text(" Yes.")),
    "a tool of the server": a(text("I search."), SERVER, RESULT, text("Found.")),
    "a length": a(text("Hi"), stop="max_tokens"),
    "a stop sequence": a(text("Hi"), stop="stop_sequence", stop_sequence="END"),
    "a window that is full": a(text("Hi"), stop="model_context_window_exceeded"),
    "an unknown block": a({"type": "moon", "light": 1}, text("Hi")),
    "letters beyond ASCII": a(text("Grüße 🌙"), use("look", city="Tromsø"), stop="tool_use"),
}
BROKEN: dict[str, Json | list[Any]] = {
    "an error of Claude": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "an event with an error": [
        *[*events_of(a(text("Hi")))][:3],
        {"type": "error", "error": {"type": "api_error", "message": "It broke"}},
    ],
    "[DONE] of a gateway": [*events_of(a(text("Hi"))), "event: data\ndata: [DONE]"],
    "a message that is cut": [*events_of(a(text("Hi")))][:-1],
    "the usage only at the start": [
        {**each, "usage": {"output_tokens": 4}} if each["type"] == "message_delta" else each
        for each in events_of(a(text("Hi")))
    ],
}
MESSAGES: dict[str, Json | list[Any]] = {
    **WHOLE,
    **{f"{name}, streamed": [*events_of(message, 3)] for name, message in WHOLE.items()},
    **BROKEN,
}

SHAPES = [
    (api, name) for api, shapes in (("chat", CHAT), ("responses", RESPONSES), ("messages", MESSAGES)) for name in shapes
]


def recording(api: str, name: str) -> Json:
    """A shape in the form of a recording."""
    shape = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}[api][name]
    # The client of Anthropic reads only events with a name.
    named = {True: "event: {type}\ndata: ", False: "data: "}[api == "messages"]
    is_whole = isinstance(shape, dict)
    lines = [
        each if isinstance(each, str) else named.format(**each) + json.dumps(each)
        for each in (() if is_whole else shape)
    ]
    body = json.dumps(shape) if is_whole else "\n\n".join([*lines, ""])
    ended = "data: [DONE]\n\n" if api == "chat" and not is_whole and "cut" not in name else ""
    facts = {"provider": "", "status": 200, "content_type": None, "stream": not is_whole}
    return {"id": f"{zlib.crc32(f'{api} {name}'.encode()):012x}", "api": api, "body": body + ended, **facts}


@pytest.fixture(scope="module")
def server() -> Iterator[Player]:
    with player() as made:
        yield made


def test_there_are_a_hundred_shapes() -> None:
    """And no two of them have one body."""
    assert len({recording(*each)["body"] for each in SHAPES}) == len(SHAPES) >= 100


def test_each_reason_is_a_line_of_the_dialects() -> None:
    """So no difference is explained by a rule that a reader cannot find."""
    page = (Path(__file__).parents[2] / "docs/proof/dialects.md").read_text("utf-8")
    assert [row for row in ROWS if f"- **{row}.**" not in page] == []


@pytest.mark.asyncio
@pytest.mark.parametrize(("api", "name"), SHAPES)
async def test_a_shape_is_read_as_the_decoder_reads_it(api: str, name: str, server: Player) -> None:
    """In one burst and in random pieces; a difference has a line in the dialects."""
    played = recording(api, name)
    want = decode(api, played["body"])
    for path, seed in (("httpx", 0), (paths_of(played)[1 + len(name) % 3], len(name))):
        got, _ = await play(server, played, path, seed)
        assert [each for each in differences(played, want, got) if each[3] is None] == []
    assert (
        want.error
        or want.text
        or want.calls
        or want.refusal
        or want.reasoning
        or "nothing" in name
        or "null" in name
        or "empty" in name
    )
