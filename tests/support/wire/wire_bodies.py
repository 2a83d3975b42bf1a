"""Bodies of answers, named by their rows in `wire-cases.md`: plain answers, tool calls, errors, and bodies that are no answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.support.wire.wire_cases import HALF, PARIS, ROME, Json, asks, chunk, end, fragment, sse, text

# Each is the answer "Hello".
HELLO: dict[str, list[Json]] = {
    "1 first chunk has no choices": [
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]},
        *text("Hel", "lo"),
        *end(),
    ],
    "2 a choice without delta": [
        *text("Hello"),
        *end(),
        {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 1}}]},
    ],
    "2 delta null": [*text("Hello"), chunk(None), *end(), chunk(None, "stop")],
    "3 last chunk is usage": [
        *text("Hello"),
        *end(),
        {"choices": [], "usage": {"total_tokens": 9}, "timings": {"n": 1}},
    ],
    "5 no usage": [*text("Hello"), *end()],
    "6 role missing": [chunk({"content": "Hel"}), chunk({"content": "lo"}), *end()],
    "6 role null": [chunk({"role": None, "content": "Hello"}), *end()],
    "6 role repeated": [*text("H", "e", "llo"), chunk({"role": "assistant"}, "stop")],
    "7 choices missing": [{"id": "x"}, *text("Hello"), {"object": "keepalive"}, *end()],
    "7 choices null": [{"choices": None}, *text("Hello"), {"choices": None}, *end()],
    "24 empty tool_calls": [
        chunk({"content": "Hel", "tool_calls": []}),
        chunk({"content": "lo", "tool_calls": []}, "stop"),
    ],
    "24 null tool_calls": [chunk({"content": "Hello", "tool_calls": None, "function_call": None}, "stop")],
    "30 null refusal": [chunk({"content": "Hello", "refusal": None}), *end()],
    "36 no DONE": [*text("Hello"), *end()],
}

NO_CUSTOM = {"input": "", "name": ""}
ONE, TWO = [("get_weather", PARIS)], [("get_weather", PARIS), ("get_time", ROME)]
# With the calls of the message.
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
    "a custom of zero values beside the function": (
        [
            chunk({"tool_calls": [{**fragment("get_weather", "", id="1", index=0), "custom": NO_CUSTOM}]}),
            chunk({"tool_calls": [{**fragment("", PARIS, id="", index=0, type=""), "custom": NO_CUSTOM}]}),
            chunk({"tool_calls": [{**fragment("", "", id="", index=0, type=""), "custom": NO_CUSTOM}]}),
        ],
        ONE,
    ),
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

ERROR = {"message": "the model is overloaded", "code": 503, "type": "server_error"}
ERRORS: dict[str, list[bytes]] = {
    "32 first": sse({"error": ERROR}),
    "32 mid-stream": sse(*text("Hel"), {"error": ERROR}, done=False),
    "32 as an error event": [*sse(*text("Hel"), done=False), f"event: error\ndata: {json.dumps(ERROR)}\n\n".encode()],
    "32 as an object of vLLM": sse(*text("Hel"), {"object": "error", **ERROR}),
    "32 as a JSON body": [json.dumps({"error": ERROR}).encode()],
    "33 beside choices": sse(*text("Hel"), chunk({"content": ""}, "error", error=ERROR), done=False),
    "33 in the choice": sse(*text("Hel"), {"choices": [{"index": 0, "error": ERROR, "finish_reason": "error"}]}),
}

# With the text until then.
NO_ANSWERS: dict[str, tuple[Sequence[bytes], str]] = {
    "35 no finish reason": (HALF, "Hello"),
    "35 no finish reason and no usage, DONE": (sse(*text("Hel", "lo")), "Hello"),
    "35 a cut line": ([*HALF, b'data: {"choices": [{"del'], "Hello"),
    "35 cut within a character": ([*HALF, 'data: {"choices": [{"delta": {"content": "ü'.encode()[:-1]], "Hello"),
    "35 an empty 200": ([], ""),
    "35 only DONE": (sse(), ""),
    "35 a JSON body that is no completion": ([b'{"detail": "Not here"}'], ""),
    "35 a JSON body that is cut": ([b'{"choices": [{"message": {"content": "Hel'], ""),
    "35 HTML": ([b"<!doctype html><title>502 Bad Gateway</title>"], ""),
    "35 text": ([b"upstream connect error"], ""),
    "comments only": ([b": OPENROUTER PROCESSING\n\n"] * 3, ""),
    "malformed JSON": ([*HALF, b'data: {"choices": [}\n\n', *sse(*text("!"), *end())], "Hello"),
    "malformed JSON in the same piece": ([b"".join(HALF) + b'data: {"choices": [}\n\n'], "Hello"),
}
