"""Answers of the Responses API, whole and in events, become the same completions as answers of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import CompletionError, ConfigurationError
from aswarm._values.wire_messages import OUTPUT_ITEMS
from aswarm._wire.accumulator import Accumulator, Completion
from aswarm._wire.responses_events import ResponseReader, responses_decoder
from aswarm._wire.responses_items import DONE_CALL, items_to_replay
from aswarm._wire.sse import AnswerDecoder
from aswarm.errors import StreamInterrupted
from aswarm.testing import ScriptedAnswer, call
from aswarm.testing._scripted_model import chunks, completion, response, response_events

Json = dict[str, Any]

texts = st.none() | st.text(max_size=20)
calls = st.lists(st.builds(lambda x: call("f", call_id="c1", x=x), st.text(max_size=8)), max_size=3)
answers = st.builds(
    lambda text, made, reasoning: ScriptedAnswer(text, made, {"reasoning_content": reasoning} if reasoning else {}),
    texts,
    calls,
    texts,
)
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
CALL = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
CUSTOM = {"id": "ct_1", "type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "raw"}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}


def encoded(events: Sequence[Json]) -> bytes:
    """The events as a server sends them."""
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def read(*pieces: bytes, decoder: Any = None) -> tuple[Completion, list[Json]]:
    """The completion that the pieces give, and the deltas that are shown on the way."""
    decoder, accumulator = decoder or responses_decoder(), Accumulator()
    deltas: list[Json | None] = []
    for piece in pieces:
        deltas += [accumulator.feed(chunk) for chunk in decoder.feed(piece)]
    deltas += [accumulator.feed(chunk) for chunk in decoder.end()]
    return accumulator.finish(), [delta for delta in deltas if delta is not None]


def done(*output: Json, status: str = "completed", **more: Any) -> Json:
    """The event that ends a response."""
    return {
        "type": f"response.{status}",
        "response": {"object": "response", "status": status, "output": list(output), **more},
    }


def plain(message: Json) -> Json:
    """Return the message without the items of the Responses API."""
    return {key: value for key, value in message.items() if key != OUTPUT_ITEMS}


@given(answers, st.integers(1, 4))
def test_both_apis_give_the_same_completion(answer: ScriptedAnswer, cut: int) -> None:
    """Message, finish reason and usage are equal, streamed and whole; the joined deltas are the same texts."""
    over_chat, _ = read(
        b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in chunks(answer, cut)), decoder=AnswerDecoder()
    )
    streamed, deltas = read(encoded(list(response_events(answer, cut))))
    whole, _ = read(json.dumps(response(answer)).encode())
    whole_chat, _ = read(json.dumps(completion(answer)).encode(), decoder=AnswerDecoder())
    assert plain(streamed.message) | {"content": None} == plain(over_chat.message) | {"content": None}
    for one in (streamed, whole, over_chat, whole_chat):
        assert (one.message["content"] or "", one.message["tool_calls"]) == (
            answer.text or "",
            streamed.message["tool_calls"],
        )
        assert (one.finish_reason, one.usage) == (answer.finish, streamed.usage)
    assert "".join(delta["content"] or "" for delta in deltas) == (answer.text or "")
    assert not any(OUTPUT_ITEMS in delta for delta in deltas)


@pytest.mark.parametrize(
    "left_out",
    [(), ("item.done",), ("arguments.done",), ("arguments.delta", "arguments.done"), ("item.added", "arguments.delta")],
    ids=" and ".join,
)
def test_each_call_is_marked_once_at_the_end_of_its_arguments(left_out: tuple[str, ...]) -> None:
    """A call has this mark even if a server omits some events. The mark is not shown, and calls of the last event have no mark."""
    made = [call("f", call_id=f"c{number}", x=number) for number in range(2)]
    events = [
        event for event in response_events(ScriptedAnswer(calls=made), 3) if not event["type"].endswith(left_out or "-")
    ]
    reader, accumulator = ResponseReader(), Accumulator()
    marked: list[int] = []
    for event in events:
        for chunk in reader.read(event):
            shown = accumulator.feed(chunk)
            if DONE_CALL in chunk["choices"][0]:
                marked.append(chunk["choices"][0][DONE_CALL])
                assert shown is None
                assert accumulator._calls.calls[marked[-1]].is_complete()
            assert [each.is_done for each in accumulator._calls.calls] == [
                at in marked for at in range(len(accumulator._calls.calls))
            ]
    assert marked == [0, 1]
    assert [each.message()["id"] for each in accumulator._calls.calls] == ["c0", "c1"]


def test_a_call_of_the_last_event_has_no_mark() -> None:
    """The turn of such a call starts at once."""
    reader, accumulator = ResponseReader(), Accumulator()
    *_, end = response_events(ScriptedAnswer(calls=[call("f", x=1)]))
    for chunk in reader.read(end):
        accumulator.feed(chunk)
    assert [each.is_done for each in accumulator._calls.calls] == [False]


@given(answers, st.integers(0))
def test_a_stream_that_ends_early_is_interrupted(answer: ScriptedAnswer, at: int) -> None:
    """Only the last event is the end of a response."""
    events = list(response_events(answer, 3))
    with pytest.raises(StreamInterrupted):
        read(encoded(events[: at % len(events)] or events[:1]))


SHELL = {"type": "shell_call_output", "id": "sho_1", "call_id": "call_1", "output": [{"stdout": "Linux"}]}
# Events inside a response with the same fields as a whole response or a failure.
OF_A_TOOL: dict[str, Json] = {
    "output": {"type": "response.shell_call_output_content.done", "output": SHELL["output"], "item_id": "sho_1"},
    "no output": {"type": "response.some_tool.done", "output": []},
    "object": {"type": "response.in_progress", "object": "response", "status": "in_progress", "output": []},
    "error": {
        "type": "response.mcp_call.failed",
        "error": {"code": 7, "message": "The tool failed."},
        "item_id": "mcp_1",
    },
    "status": {"type": "response.some_tool.done", "status": "failed", "output": [], "response": {"status": "failed"}},
    "choices": {"type": "response.some_tool.done", "choices": [{"message": {"content": "No"}}], "usage": {"total": 1}},
}


@pytest.mark.parametrize("case", OF_A_TOOL)
def test_the_fields_of_an_event_are_those_of_a_tool(case: str) -> None:
    """A list `output` or an `error` in an event of a hosted tool is neither the response nor its failure."""
    item = {"type": "response.output_item.done", "output_index": 0, "item": SHELL}
    delta = {"type": "response.output_text.delta", "output_index": 1, "item_id": "msg_1", "delta": "Hello"}
    usage = {"input_tokens": 20, "output_tokens": 12, "total_tokens": 32}
    body = encoded([item, OF_A_TOOL[case], delta, done(SHELL, MESSAGE, usage=usage)])
    for pieces in ([body], [bytes([byte]) for byte in body]):
        completion, _ = read(*pieces)
        assert (completion.message["content"], completion.usage.total_tokens) == ("Hello", 32)
        assert completion.message[OUTPUT_ITEMS] == [SHELL, MESSAGE]
    with pytest.raises(StreamInterrupted):
        read(encoded([item, OF_A_TOOL[case]]))


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"event: done\ndata: [DONE]\n\n", b'data: {"type": "response.cr'])
def test_the_rest_after_a_response_may_be_cut(end: bytes) -> None:
    """A piece that ends within `[DONE]`, or within another event, loses nothing."""
    body = encoded([done(MESSAGE)])
    for at in range(len(end) + 1):
        assert read(body + end[:at])[0].message["content"] == "Hello"
        decoder = responses_decoder()
        assert list(decoder.feed(body + end[:at]))
        assert decoder.is_done
    assert responses_decoder().whole(body + end)


def test_a_second_response_in_one_body_is_ignored() -> None:
    """A response ends with its last event; the next one would be another answer."""
    body = encoded([done(MESSAGE), done({**MESSAGE, "content": [{"type": "output_text", "text": "Other"}]})])
    for pieces in ([body], [bytes([byte]) for byte in body]):
        completion, _ = read(*pieces)
        assert (completion.message["content"], completion.message[OUTPUT_ITEMS]) == ("Hello", [MESSAGE])


def test_zero_values_of_a_response() -> None:
    """An error with the zero values of Go is no error."""
    zeros = {"error": {"code": "", "message": ""}, "incomplete_details": {"reason": ""}}
    response = {"object": "response", "status": "completed", "output": [MESSAGE], **zeros}
    accumulator = Accumulator()
    for chunk in responses_decoder().whole(json.dumps(response).encode()):
        accumulator.feed(chunk)
    assert accumulator.finish().message["content"] == "Hello"
    assert read(encoded([done(MESSAGE, **zeros)]))[0].finish_reason == "stop"


@pytest.mark.parametrize(("sends_items", "has_output"), [(True, True), (True, False), (False, True)])
def test_a_server_that_sends_no_deltas(sends_items: bool, has_output: bool) -> None:
    """If a server sends only whole items, or nothing before the end, the message is the same, and its parts are shown."""
    output = [REASONING, MESSAGE, CALL, CUSTOM]
    items = [{"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(output)]
    completion, deltas = read(encoded([*(items if sends_items else []), done(*(output if has_output else []))]))
    assert plain(completion.message) == {
        "role": "assistant",
        "content": "Hello",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "raw"}},
        ],
        "reasoning_content": "Hm.",
    }
    assert completion.message[OUTPUT_ITEMS] == output
    assert len(deltas) == len(output)


@pytest.mark.parametrize("quiet", [SEARCH, {**REASONING, "summary": []}], ids=["hosted", "encrypted reasoning"])
@pytest.mark.parametrize("end", [done(), {"type": "response.completed", "response": {"status": "completed"}}])
def test_an_end_without_output_stands_for_the_items_before_it(quiet: Json, end: Json) -> None:
    """The message has each item once, even an item without text."""
    items = [{"type": "response.output_item.done", "output_index": 0, "item": item} for item in (quiet, MESSAGE)]
    completion, _ = read(encoded([*items, end]))
    assert completion.message[OUTPUT_ITEMS] == [quiet, MESSAGE]


@pytest.mark.parametrize("has_items", [True, False])
@pytest.mark.parametrize("number", [lambda at: at, lambda _: 0], ids=["numbers", "always 0"])
def test_a_server_that_does_not_announce_its_calls(has_items: bool, number: Any) -> None:
    """Fragments of unknown calls are ignored; each call arrives once as a whole, with its name."""
    output = [CALL, {**CALL, "id": "fc_2", "call_id": "c2", "arguments": '{"y": 2}'}, CUSTOM]
    events: list[Json] = []
    for at, item in enumerate(output):
        kind, text = (
            ("custom_tool_call_input", "raw") if item is CUSTOM else ("function_call_arguments", item["arguments"])
        )
        place = {"output_index": number(at), "item_id": item["id"]}
        events.append({"type": f"response.{kind}.delta", **place, "delta": text})
        events += [{"type": "response.output_item.done", **place, "item": item}] if has_items else []
    end = done(*output)
    assert read(encoded([*events, end]))[0] == read(json.dumps(end["response"]).encode())[0]


def test_a_whole_call_without_any_id_is_there_once() -> None:
    """Neither the event nor the item has an id for the call."""
    nameless = {"type": "function_call", "name": "f", "arguments": ""}
    completion, _ = read(encoded([{"type": "response.output_item.done", "item": nameless}, done()]))
    assert [made["function"]["name"] for made in completion.message["tool_calls"]] == ["f"]


@pytest.mark.parametrize("changes", [{}, {"id": "fc_9", "call_id": "c9"}], ids=["same ids", "other ids"])
@pytest.mark.parametrize("is_first", [False, True])
def test_content_that_only_the_final_output_has_is_not_lost(changes: Json, is_first: bool) -> None:
    """This is tested with a call next to a streamed call, and with a message next to a streamed message."""
    late = {**CALL, "id": "fc_2", "call_id": "c2", "arguments": '{"y": 2}'}
    streamed = {"type": "response.output_item.done", "output_index": 0, "item": CALL}
    events = [{"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hello"}, streamed]
    other = {**CALL, **changes}
    calls = [late, other] if is_first and not changes else [other, late]
    more = {**MESSAGE, "id": "msg_2", "content": [{"type": "output_text", "text": "More"}]}
    completion, deltas = read(encoded([*events, done(MESSAGE, more, *calls)]))
    assert completion.message["content"] == "Hello\n\nMore" == "".join(each["content"] or "" for each in deltas)
    assert [(made["id"], made["function"]["arguments"]) for made in completion.message["tool_calls"]] == [
        ("c1", CALL["arguments"]),
        ("c2", late["arguments"]),
    ]


def test_a_final_text_that_differs_is_not_shown_twice() -> None:
    """The message has the streamed text."""
    events = [{"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hallo"}, done(MESSAGE)]
    assert read(encoded(events))[0].message["content"] == "Hallo"


@pytest.mark.parametrize(
    "number",
    [lambda at: 0, lambda at: at + 1, lambda at: 7 - at, lambda at: None],
    ids=["always 0", "from 1", "backwards", "none"],
)
@pytest.mark.parametrize("ids", ["item ids", "call ids", "ids that change"])
def test_servers_that_number_items_in_their_own_way(number: Any, ids: str) -> None:
    """The message has each item exactly once: a call that it had twice would run twice."""
    items = [REASONING, MESSAGE, CALL, {**CALL, "id": "fc_2", "call_id": "c2", "arguments": '{"y": 2}'}]
    if ids == "ids that change" and number(0) == number(1):
        items = items[:3]  # two calls cannot be distinguished there
    events: list[Json] = []
    for at, item in enumerate(items):
        name = item.get("call_id") if ids == "call ids" else item["id"]
        known = {key: value for key, value in item.items() if key != "id" or ids != "call ids"}
        empty = {"arguments": ""} if "arguments" in item else {}
        deltas = {
            "reasoning": "reasoning_summary_text",
            "message": "output_text",
            "function_call": "function_call_arguments",
        }
        text = item.get("arguments") or ("Hm." if item is REASONING else "Hello")
        parts = [
            {"type": "response.output_item.added", "item": {**known, **empty}},
            {"type": f"response.{deltas[item['type']]}.delta", "item_id": name, "delta": text},
            {"type": "response.output_item.done", "item": known},
        ]
        if ids == "ids that change":
            parts = [
                {**part, "item": {**part["item"], "id": f"{name}-{turn}"}} if "item" in part else part
                for turn, part in enumerate(parts)
            ]
        events += [{**part, "output_index": number(at)} for part in parts]
    made, _ = read(encoded([*events, done(*items)]))
    assert (made.message["content"], made.message["reasoning_content"]) == ("Hello", "Hm.")
    assert [each["function"]["arguments"] for each in made.message["tool_calls"]] == [
        item["arguments"] for item in items if "arguments" in item
    ]


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ("text text", "Hello\n\nHello"),
        ("text refusal", "Hello"),
        ("refusal text", "Hello"),
        ("text refusal text", "Hello\n\nHello"),
    ],
)
def test_texts_and_refusals_in_messages_of_their_own(kinds: str, text: str) -> None:
    """An empty line separates only two texts, so the streamed message equals the whole message, and its items are sent back."""
    items: list[Json] = []
    events: list[Json] = []
    for at, kind in enumerate(kinds.split()):
        part = MESSAGE["content"][0] if kind == "text" else {"type": "refusal", "refusal": "No."}
        items.append({**MESSAGE, "id": f"msg_{at}", "content": [part]})
        place = {"output_index": at, "item_id": f"msg_{at}"}
        delta = "response.output_text.delta" if kind == "text" else "response.refusal.delta"
        events.append({"type": "response.output_item.added", **place, "item": {**items[-1], "content": []}})
        events.append({"type": delta, **place, "delta": part.get("text") or part["refusal"]})
    end = done(*items)
    streamed, _ = read(encoded([*events, end]))
    whole, _ = read(json.dumps(end["response"]).encode())
    assert streamed.message == whole.message
    refusal = "No." if "refusal" in kinds else None
    assert (streamed.message["content"], streamed.message.get("refusal")) == (text, refusal)
    assert items_to_replay(streamed.message, ()) == items


@given(
    items=st.lists(st.tuples(*[st.lists(st.sampled_from(["", "One", "Two"]), max_size=2)] * 2), min_size=1, max_size=3),
    streamed=st.sampled_from([set[str](), {"summary"}, {"summary", "content"}]),
    has_done=st.booleans(),
)
def test_streamed_reasoning_equals_the_reasoning_of_the_whole_answer(
    items: list[tuple[list[str], list[str]]], streamed: set[str], has_done: bool
) -> None:
    """An empty line also separates summary and reasoning, but no empty line is next to a part without text. If a server streams
    only some of the reasoning, or nothing, the message still has all reasoning."""
    output: list[Json] = []
    events: list[Json] = []
    for at, both in enumerate(items):
        item: Json = {"id": f"rs_{at}", "type": "reasoning"}
        for (key, kind), parts in zip(
            {"summary": "summary_text", "content": "reasoning_text"}.items(), both, strict=True
        ):
            item[key] = [{"type": kind, "text": part} for part in parts]
            delta = {
                "type": "response.reasoning_summary_text.delta"
                if key == "summary"
                else "response.reasoning_text.delta",
                "output_index": at,
            }
            for number, part in enumerate(parts if key in streamed else ()):
                events += [{**delta, f"{key}_index": number, "delta": piece} for piece in (part[:1], part[1:])]
        output.append(item)
        events += [{"type": "response.output_item.done", "output_index": at, "item": item}] if has_done else []
    output.append(MESSAGE)
    events += [{"type": "response.output_text.delta", "output_index": len(items), "delta": "Hello"}, done(*output)]
    whole, _ = read(json.dumps(events[-1]["response"]).encode())
    if streamed != {"summary"} or len(items) == 1:  # else the summary of a later item was shown before this content
        assert read(encoded(events))[0].message == whole.message


@pytest.mark.parametrize(
    ("details", "finish"),
    [({"reason": "max_output_tokens"}, "length"), ({"reason": "content_filter"}, "content_filter"), (None, "length")],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_an_incomplete_response(details: Json | None, finish: str, is_whole: bool) -> None:
    """An incomplete response is a completion that was cut off; the finish reason is the cause."""
    end = done(MESSAGE, status="incomplete", incomplete_details=details)
    completion, _ = read(json.dumps(end["response"]).encode() if is_whole else encoded([end]))
    assert (completion.message["content"], completion.finish_reason) == ("Hello", finish)


def test_usage_has_cached_and_reasoning_tokens() -> None:
    """They have the names of Chat Completions."""
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }
    completion, _ = read(encoded([done(MESSAGE, usage=usage)]))
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        7,
        5,
        12,
    )
    assert completion.usage.details == {
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


@pytest.mark.parametrize(
    ("sent", "text", "retryable"),
    [
        (encoded([done(status="failed", error={"code": "server_error", "message": "Oh"})]), "Oh.*server_error", True),
        (
            encoded([done(status="failed", error={"code": "invalid_prompt", "message": "Oh"})]),
            "Oh.*invalid_prompt",
            False,
        ),
        (encoded([{"type": "error", "code": "rate_limit_exceeded", "message": "Slow"}]), "Slow.*rate_limit", True),
        (encoded([{"type": "error", "code": "server_is_overloaded", "message": "Oh"}]), "Oh.*overloaded", True),
        (encoded([done(status="failed", error={"code": "vector_store_timeout", "message": "Oh"})]), "Oh", True),
        (b'data: {"type": "error", "error": {"code": "server_error", "message": "Oh"}}\n\n', "Oh.*server_error", True),
        (b'{"object": "response", "status": "failed", "output": [], "error": {"message": "Oh"}}', "Oh", False),
        (b'{"object": "response", "status": "cancelled", "output": []}', "status 'cancelled'", False),
        (b'{"object": "response", "status": "queued", "output": []}', "status 'queued'.*background", False),
        (b'{"object": "response", "status": "in_progress", "output": []}', "status 'in_progress'", False),
        (b'{"error": {"message": "Oh"}}', "Oh", False),
    ],
)
def test_a_response_that_failed(sent: bytes, text: str, retryable: bool) -> None:
    """The run raises a CompletionError with the provider's text and code."""
    with pytest.raises(CompletionError, match=text) as raised:
        read(sent)
    assert raised.value.retryable is retryable


@pytest.mark.parametrize(
    "sent",
    [
        b'{"choices": []}',
        b'{"type": "message"}',
        b'data: {"type": "response.output_text.delta"}\n\n',
        b'data: {"type": "response.output_item.done"}\n\n',
        b'data: {"type": "response.completed"}\n\n',
        b'data: {"type": "response.completed", "response": {"output": [7]}}\n\n',
        b"<html>",
        b"",
    ],
)
def test_a_body_that_is_not_a_response_is_a_completion_error(sent: bytes) -> None:
    """The error is a CompletionError, not a KeyError."""
    with pytest.raises(CompletionError):
        read(sent)


HOSTED = {"status": "completed", "call_id": "c1", "id": "x_1"}


@pytest.mark.parametrize(
    ("item", "advice"),
    [
        ({"type": "computer_call", "action": {"type": "screenshot"}}, "remove its tool"),
        ({"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}}, "remove its tool"),
        ({"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}}, "remove its tool"),
        ({"type": "shell_call", "action": {"commands": ["ls"]}, "environment": {"type": "local"}}, "a container"),
        ({"type": "shell_call", "action": {"commands": ["ls"]}}, "a container"),
        ({"type": "mcp_approval_request", "name": "f", "server_label": "l"}, '"require_approval": "never"'),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("beside", [[], [CALL]], ids=["alone", "beside a call"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_call_that_waits_for_this_program_is_refused(
    item: Json, advice: str, beside: list[Json], is_whole: bool
) -> None:
    """Without an error, the answer would seem empty, and the next request would be refused. The error names the call and the
    remedy."""
    end = done({**HOSTED, **item}, *beside)
    sent = json.dumps(end["response"]).encode() if is_whole else encoded([end])
    with pytest.raises(ConfigurationError, match=f"made a '{item['type']}', which needs a result.*{advice}"):
        read(sent)


@pytest.mark.parametrize(
    "item",
    [
        SEARCH,
        {"type": "tool_search_call", "arguments": {}, "execution": "server"},
        {"type": "shell_call", "environment": {"type": "container_reference", "container_id": "c"}},
        {"type": "mcp_call", "name": "f", "arguments": "{}", "server_label": "l"},
        {"type": "code_interpreter_call", "code": "1", "container_id": "c"},
        {"type": "program", "code": "1", "fingerprint": "x"},
    ],
    ids=lambda item: item["type"],
)
def test_a_call_that_the_provider_runs_is_kept(item: Json) -> None:
    """The answer may contain the result of such a call; otherwise only the provider knows the result."""
    completion, _ = read(encoded([done({**HOSTED, **item}, MESSAGE)]))
    assert completion.message[OUTPUT_ITEMS] == [{**HOSTED, **item}, MESSAGE]
