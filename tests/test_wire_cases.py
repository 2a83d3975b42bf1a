"""What real servers send and refuse: one test for each row of `wire-cases.md`, its number in the test's id.

End to end: the bytes of a server through a real `AsyncOpenAI`, in all three ways to run, which must agree. Where a
server refuses something, what was sent is asserted on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, Response, StreamInterrupted, Usage
from aswarm import _events as events
from aswarm.testing import Answer, Failure, RawAnswer, ScriptedModel, Step, call, check_history

Json = dict[str, Any]
WAYS = ("run", "run(stream=True)", "stream()")
LAST = "It is done."


# --- what a server says -----------------------------------------------------------------------------------------------


def chunk(delta: object = None, finish: str | None = None, **more: Any) -> Json:
    """One chunk with one choice."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def fragment(name: str | None = None, arguments: str | None = None, **more: Any) -> Json:
    """A tool-call fragment; what is None is left out."""
    given = {"name": name, "arguments": arguments}
    return {**more, "function": {key: value for key, value in given.items() if value is not None}}


def text(*pieces: str) -> list[Json]:
    """A text in chunks, the role first."""
    return [chunk({"role": "assistant", "content": piece}) for piece in pieces]


def asks(*fragments: Json) -> list[Json]:
    """Fragments, one in each chunk."""
    return [chunk({"tool_calls": [part]}) for part in fragments]


def end(reason: str = "stop") -> list[Json]:
    """The chunk that ends."""
    return [chunk({}, reason)]


def sse(*chunks: Json, done: bool = True) -> list[bytes]:
    """Chunks as an event stream."""
    sent = [f"data: {json.dumps(item)}\n\n".encode() for item in chunks]
    return [*sent, b"data: [DONE]\n\n"] if done else sent


class Breaking(Sequence[bytes]):
    """Pieces of a body whose connection then breaks."""

    def __init__(self, pieces: Sequence[bytes], error: Exception) -> None:
        self._pieces, self._error = pieces, error

    def __len__(self) -> int:
        return len(self._pieces) + 1

    def __getitem__(self, index: Any) -> Any:
        return self._pieces[index]

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        raise self._error


# --- three ways to run ------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What one run led to: its response or its error, what was called, what was sent, and what was shown."""

    response: Response
    error: CompletionError | None = None
    called: list[str] = field(default_factory=list)
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel([]))
    partial: str = ""
    shown: list[Json] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of the calls of the first message."""
        made = self.response.messages[0]["tool_calls"] or ()
        return [(item["function"]["name"], item["function"]["arguments"]) for item in made]

    @property
    def told(self) -> list[str]:
        """What the model was told by tool messages."""
        return [message["content"] for message in self.response.messages if message["role"] == "tool"]


def functions(called: list[str]) -> list[Callable[..., Any]]:
    """The tools of these tests; each call is noted."""

    async def get_weather(city: str = "Nowhere") -> str:
        called.append(f"get_weather {city}")
        return f"sunny in {city}"

    async def get_time(city: str = "Nowhere") -> str:
        called.append(f"get_time {city}")
        return f"noon in {city}"

    return [get_weather, get_time]


async def watch(
    way: str, steps: Sequence[Step], messages: Any = "Hi", agent: Agent | None = None, **options: Any
) -> Seen:
    """Run in this way against a model that answers with these steps."""
    model, called = ScriptedModel(list(steps)), list[str]()
    agent = agent or Agent(name="A", functions=functions(called))
    swarm = AsyncSwarm(client=model.client(), **options)
    seen = Seen(Response(), called=called, model=model)
    try:
        if way == "run":
            seen.response = await swarm.run(agent, messages)
        elif way == "stream()":
            async with swarm.stream(agent, messages) as run:
                async for event in run:
                    seen.shown += [{"content": event.text}] if isinstance(event, events.TextDelta) else []
            seen.response = run.response
        else:
            async for item in swarm.run(agent, messages, stream=True):
                seen.shown += [item] if "content" in item else []
                seen.response = item.get("response", seen.response)
    except CompletionError as error:
        # No response would be no valid history below.
        seen.error, seen.response, seen.partial = error, error.response or Response(messages=[{}]), error.partial
    check_history(seen.response.messages)
    assert model.open_streams == 0
    return seen


ways = pytest.mark.parametrize("way", WAYS)

# --- chunks -----------------------------------------------------------------------------------------------------------

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


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("case", HELLO)
async def test_shapes_of_a_plain_answer(case: str, way: str) -> None:
    """Each of these shapes is the answer "Hello", with nothing else in the message."""
    seen = await watch(way, [RawAnswer(sse(*HELLO[case], done="no DONE" not in case))])
    expected = {"role": "assistant", "content": "Hello", "sender": "A", "tool_calls": None}
    assert seen.response.messages == [expected]
    assert (seen.response.text, seen.response.stop, seen.response.usage.requests) == ("Hello", "answer", 1)
    if way != "run":
        assert "".join(item["content"] or "" for item in seen.shown) == "Hello"
    if way == "run(stream=True)":
        assert [item["role"] for item in seen.shown] == ["assistant", *[None] * (len(seen.shown) - 1)]


PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
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
async def test_row_4_cumulative_usage(way: str) -> None:
    """4: of cumulative usage the last that is not null counts, and nothing is added up."""
    usages = ({"prompt_tokens": 3, "completion_tokens": n, "total_tokens": 3 + n} for n in (1, 2, 3))
    chunks = [{**item, "usage": usage} for item, usage in zip(text("a", "b", "c"), usages, strict=True)]
    seen = await watch(way, [RawAnswer(sse(*chunks, *end(), {"choices": [], "usage": None}))])
    assert seen.response.usage == Usage(3, 3, 6, requests=1)


@pytest.mark.asyncio
@ways
async def test_row_3_usage_with_details(way: str) -> None:
    """3: the usage chunk is taken, details and other numbers included; extra keys do no harm."""
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
    """29: a call of type "custom" is answered as unknown, replayed as it came, and the run goes on."""
    custom = {"index": 0, "id": "1", "type": "custom", "custom": {"name": "get_weather", "input": "Paris"}}
    seen = await watch(way, [RawAnswer(sse(*asks(custom), *end("tool_calls"))), LAST])
    assert seen.called == []
    assert seen.told == ["Error: Tool get_weather not found."]
    assert seen.model.requests[1].messages[-2]["tool_calls"] == [{key: custom[key] for key in ("id", "type", "custom")}]
    assert seen.response.text == LAST


@pytest.mark.asyncio
@ways
async def test_row_30_a_refusal(way: str) -> None:
    """30: a refusal is joined and kept, with null content, and is no error."""
    seen = await watch(way, [RawAnswer(sse(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), *end()))])
    message = seen.response.messages[0]
    assert (message["refusal"], message["content"], seen.response.stop) == ("I cannot.", None, "answer")


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "vendor_key"])
async def test_reasoning_and_unknown_keys(key: str, way: str) -> None:
    """Reasoning and keys that nobody listed are joined, passed on in the events, and echoed back."""
    thinks = [chunk({key: "Let me "}), chunk({key: "see."}), *asks(fragment("get_weather", PARIS, id="1", index=0))]
    seen = await watch(way, [RawAnswer(sse(*thinks, *end("tool_calls"))), LAST])
    assert seen.response.messages[0][key] == "Let me see."
    assert seen.model.requests[1].messages[-2][key] == "Let me see."
    if way == "run(stream=True)":
        assert "".join(item.get(key) or "" for item in seen.shown) == "Let me see."


@pytest.mark.asyncio
async def test_reasoning_is_an_event() -> None:
    """Reasoning comes as `ReasoningDelta`s, whichever of its two names the server uses."""
    for key in ("reasoning_content", "reasoning"):
        model = ScriptedModel([RawAnswer(sse(chunk({key: "Hm"}), *text("Hello"), *end()))])
        async with AsyncSwarm(client=model.client()).stream(Agent(), "Hi") as run:
            pieces = [event async for event in run if isinstance(event, events.ReasoningDelta | events.TextDelta)]
        assert pieces == [events.ReasoningDelta("Hm"), events.TextDelta("Hello")]


@pytest.mark.asyncio
@ways
async def test_calls_written_as_text(way: str) -> None:
    """A literal `<tool_call>` in the content is text, and never executed."""
    said = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    seen = await watch(way, [RawAnswer(sse(*text(said), *end()))])
    assert (seen.called, seen.response.text, seen.response.stop) == ([], said, "answer")


# --- streams that break -----------------------------------------------------------------------------------------------

ERROR = {"message": "the model is overloaded", "code": 503, "type": "server_error"}
ERRORS: dict[str, list[bytes]] = {
    "32 first": sse({"error": ERROR}),
    "32 mid-stream": sse(*text("Hel"), {"error": ERROR}, done=False),
    "32 as an error event": [*sse(*text("Hel"), done=False), f"event: error\ndata: {json.dumps(ERROR)}\n\n".encode()],
    "32 as a JSON body": [json.dumps({"error": ERROR}).encode()],
    "33 beside choices": sse(*text("Hel"), chunk({"content": ""}, "error", error=ERROR), done=False),
    "33 in the choice": sse(*text("Hel"), {"choices": [{"index": 0, "error": ERROR, "finish_reason": "error"}]}),
}


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("case", ERRORS)
async def test_errors_inside_an_answer(case: str, way: str) -> None:
    """An error inside an answer is a CompletionError with message and code, and the text so far is kept."""
    seen = await watch(way, [RawAnswer(ERRORS[case])])
    assert seen.error is not None
    assert not isinstance(seen.error, StreamInterrupted)
    assert "the model is overloaded" in str(seen.error)
    assert (seen.error.status_code, seen.error.retryable) == (503, True)
    assert seen.partial == ("" if case in ("32 first", "32 as a JSON body") else "Hel")
    assert (seen.response.messages, seen.response.stop) == ([], "error")


HALF = sse(*text("Hel", "lo"), done=False)
BROKEN: dict[str, tuple[Sequence[bytes], str]] = {
    "35 no finish reason": (HALF, "Hello"),
    "35 no finish reason, DONE": (sse(*text("Hel", "lo")), "Hello"),
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
    "connection reset": (Breaking(HALF, httpx.ReadError("reset by peer")), "Hello"),
    "closed before the end": (Breaking(HALF, httpx.RemoteProtocolError("incomplete chunked read")), "Hello"),
    "stall": (Breaking(HALF, httpx.ReadTimeout("no data")), "Hello"),
    "reset before the first byte": (Breaking([], httpx.ReadError("reset by peer")), ""),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("case", BROKEN)
async def test_answers_that_break(case: str, way: str) -> None:
    """An answer that breaks off or makes no sense is StreamInterrupted, never a silent empty answer; the text is kept."""
    pieces, partial = BROKEN[case]
    seen = await watch(way, [RawAnswer(pieces)])
    assert isinstance(seen.error, StreamInterrupted)
    assert seen.error.retryable
    assert seen.partial == partial
    assert (seen.response.messages, seen.response.stop) == ([], "error")


@pytest.mark.asyncio
@pytest.mark.parametrize("case", BROKEN)
async def test_whole_answers_that_break(case: str) -> None:
    """The same bodies in answer to `run()` are the same error."""
    seen = await watch("run", [RawAnswer(BROKEN[case][0])])
    assert isinstance(seen.error, CompletionError)
    assert (seen.response.messages, seen.response.stop) == ([], "error")


@pytest.mark.asyncio
@ways
async def test_what_makes_no_sense_is_quoted(way: str) -> None:
    """35: a body that is no completion is quoted in the error, for it is the only clue."""
    for body in (b"<title>502 Bad Gateway</title>", b'{"detail": "502 Bad Gateway"}', b"502 Bad Gateway"):
        seen = await watch(way, [RawAnswer([body])])
        assert "502 Bad Gateway" in str(seen.error)


@pytest.mark.asyncio
@ways
async def test_a_stream_that_breaks_in_the_second_turn(way: str) -> None:
    """Nothing is lost: the turns before the break are in the error's response, with the new agent and its context."""
    broken = RawAnswer(sse(*text("It is "), done=False))
    seen = await watch(way, [call("get_weather", city="Paris"), broken])
    assert isinstance(seen.error, StreamInterrupted)
    assert seen.told == ["sunny in Paris"]
    assert (seen.partial, len(seen.response.messages)) == ("It is ", 2)


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("finish", ["stop", None])
async def test_row_35_a_whole_completion_as_body(finish: str | None, way: str) -> None:
    """35: a whole JSON completion is accepted where a stream was asked for; it needs no finish reason to be whole."""
    message: Json = {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {"total_tokens": 4}}
    seen = await watch(way, [RawAnswer([json.dumps(body).encode()])])
    assert seen.error is None
    assert seen.response.messages == [{"role": "assistant", "content": "Hello", "sender": "A", "tool_calls": None}]
    assert seen.response.usage.total_tokens == 4


@pytest.mark.asyncio
@ways
async def test_equal_ids_in_a_whole_completion(way: str) -> None:
    """Equal ids in one whole message are separate calls, each run and answered."""
    calls = [
        {"id": "x", "type": "function", "function": {"name": "get_weather", "arguments": where}}
        for where in (PARIS, ROME)
    ]
    body = {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "tool_calls": calls},
                "finish_reason": "tool_calls",
            }
        ]
    }
    seen = await watch(way, [RawAnswer([json.dumps(body).encode()]), LAST])
    assert seen.told == ["sunny in Paris", "sunny in Rome"]


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize(
    "noise",
    [b": OPENROUTER PROCESSING\n\n", b":\n\n", b"data:\n\n", b"data: \n\n", b"\n", b"event: ping\ndata: {}\n\n"],
)
async def test_keep_alives(noise: bytes, way: str) -> None:
    """Comments, empty data and pings between the events are skipped."""
    pieces = [part for piece in sse(*text("Hel", "lo"), *end()) for part in (noise, piece)]
    seen = await watch(way, [RawAnswer([*pieces, noise])])
    assert seen.response.text == "Hello"


@pytest.mark.asyncio
@ways
async def test_row_39_a_failed_generation(way: str) -> None:
    """39: Groq's 400 `tool_use_failed` is a CompletionError that is worth another try; any other 400 is not."""
    seen = await watch(way, [Failure(400, "Failed to call a function", code="tool_use_failed")])
    assert seen.error is not None
    assert (seen.error.status_code, seen.error.retryable) == (400, True)
    assert "Failed to call a function" in str(seen.error)
    seen = await watch(way, [Failure(400, "No.")])
    assert seen.error is not None
    assert not seen.error.retryable


# --- what servers refuse ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@ways
async def test_rows_40_and_41_no_tools(way: str) -> None:
    """40, 41: an agent without functions sends no tools, no parallel_tool_calls and no tool_choice."""
    seen = await watch(way, ["Hello"], agent=Agent(tool_choice="required"))
    expected = {"model", "messages", "stream", *(("stream_options",) if way != "run" else ())}
    assert set(seen.model.requests[0].body) == expected


@pytest.mark.asyncio
@ways
async def test_row_42_only_what_the_api_knows(way: str) -> None:
    """42: `sender`, `tool_name` and nulls never reach the API, in no turn; the recorded messages keep them."""
    seen = await watch(way, [call("get_weather", city="Paris"), LAST])
    history = [{"role": "user", "content": "Hi"}, *seen.response.messages, {"role": "user", "content": "And?"}]
    again = await watch(way, ["Yes."], history)
    assert [message.get("tool_name") for message in history] == [None, None, "get_weather", None, None]
    for request in (*seen.model.requests, *again.model.requests):
        for message in request.messages:
            assert not {"sender", "tool_name"} & message.keys()
            assert [key for key, value in message.items() if value is None] == ["content"] * ("tool_calls" in message)


@pytest.mark.asyncio
@ways
async def test_row_43_reasoning_is_echoed(way: str) -> None:
    """43: DeepSeek's reasoning_content goes back on the message it came with, in this run and in the next."""
    answer = Answer(calls=[call("get_weather")], extra={"reasoning_content": "Hm."})
    seen = await watch(way, [answer, LAST])
    assert seen.model.requests[1].messages[-2]["reasoning_content"] == "Hm."
    again = await watch(way, ["Yes."], [{"role": "user", "content": "Hi"}, *seen.response.messages])
    assert [
        message.get("reasoning_content")
        for message in again.model.requests[0].messages
        if message["role"] == "assistant"
    ] == ["Hm.", None]


@pytest.mark.asyncio
@ways
async def test_row_44_signatures_are_echoed(way: str) -> None:
    """44: Gemini's thought signature goes back on the call it came with."""
    signature = {"google": {"thought_signature": "c2ln"}}
    chunks = [
        *asks({**fragment("get_weather", PARIS, id="1", index=0), "extra_content": signature}),
        *end("tool_calls"),
    ]
    seen = await watch(way, [RawAnswer(sse(*chunks)), LAST])
    assert seen.model.requests[1].messages[-2]["tool_calls"][0]["extra_content"] == signature


@pytest.mark.asyncio
@ways
async def test_row_45_content_beside_calls(way: str) -> None:
    """45: the content beside calls is null by default, and "" where that is asked for; text stays text."""
    steps: list[Step] = [Answer(calls=[call("get_weather")]), Answer("Looking.", [call("get_time")]), LAST]
    for options, empty in ((dict[str, Any](), None), ({"empty_content": ""}, "")):
        seen = await watch(way, steps, **options)
        asking = [message["content"] for message in seen.model.requests[2].messages if message.get("tool_calls")]
        assert asking == [empty, "Looking."]


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("empty", [{"content": None}, {"content": ""}, {"content": "", "tool_calls": []}, {}])
async def test_row_46_an_assistant_message_with_nothing(empty: Json, way: str) -> None:
    """46: an assistant message with neither text nor calls is not sent."""
    user = {"role": "user", "content": "Hi"}
    seen = await watch(way, ["Hello"], [user, {"role": "assistant", "sender": "A", **empty}, user])
    assert seen.model.requests[0].messages[1:] == [user, user]


@pytest.mark.asyncio
@ways
async def test_row_49_every_call_is_answered_once(way: str) -> None:
    """49: of several handoffs in one turn every call is answered once, and the last wins."""
    b, c = Agent(name="B", model="b"), Agent(name="C", model="c")
    agent = Agent(name="A", functions=[b, c])
    seen = await watch(way, [[call("transfer_to_b"), call("transfer_to_c"), call("missing")], LAST], agent=agent)
    check_history(seen.model.requests[1].messages)
    assert seen.told[0] == '{"assistant": "B"}'
    assert seen.told[1].startswith('{"assistant": "C"}')
    assert "B" in seen.told[1]
    assert seen.told[2] == "Error: Tool missing not found."
    assert (seen.model.requests[1].body["model"], seen.response.agent) == ("c", c)


@pytest.mark.asyncio
@ways
async def test_row_49_open_calls_in_the_middle(way: str) -> None:
    """49: open calls followed by other messages are answered as interrupted."""
    asking = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}],
    }
    seen = await watch(way, ["Hello"], [asking, {"role": "user", "content": "Hi"}])
    sent = seen.model.requests[0].messages[1:]
    assert sent[1] == {"role": "tool", "tool_call_id": "1", "content": "not run: interrupted"}
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.asyncio
@ways
async def test_row_50_a_tool_message_without_its_call(way: str) -> None:
    """50: a tool message whose call was trimmed away is not sent, at the start and in the middle."""
    user, orphan = {"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "1", "content": "x"}
    seen = await watch(way, ["Hello"], [orphan, user, orphan, {"role": "assistant", "content": "Yes"}, orphan, user])
    assert [message["content"] for message in seen.model.requests[0].messages[1:]] == ["Hi", "Yes", "Hi"]


@pytest.mark.asyncio
@ways
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("where", ["agent", "settings"])
async def test_row_51_a_forced_choice_never_loops(choice: Any, where: str, way: str) -> None:
    """51: a server that obeys a forced choice each time is not asked for ever: after a result the choice is "auto"."""

    def obedient(request: Any) -> Step:
        forced = request.body.get("tool_choice") not in (None, "auto")
        return call("get_weather") if forced and len(model.requests) < 5 else LAST

    model = ScriptedModel(obedient)
    given: Json = {"tool_choice": choice} if where == "agent" else {"model_settings": {"tool_choice": choice}}
    swarm, agent = AsyncSwarm(client=model.client()), Agent(functions=functions([]), **given)
    if way == "run":
        await swarm.run(agent, "Hi")
    elif way == "stream()":
        async with swarm.stream(agent, "Hi") as run:
            _ = [event async for event in run]
    else:
        _ = [event async for event in swarm.run(agent, "Hi", stream=True)]
    assert [request.body["tool_choice"] for request in model.requests] == [choice, "auto"]


@pytest.mark.asyncio
@ways
async def test_row_51_a_refused_choice(way: str) -> None:
    """51: a server that refuses tool_choice ends the run with its own words; one that ignores it has answered."""
    agent = Agent(functions=functions([]), tool_choice="required")
    seen = await watch(way, [Failure(400, "tool_choice must be a string")], agent=agent)
    assert "tool_choice must be a string" in str(seen.error)
    assert len(seen.model.requests) == 1
    seen = await watch(way, ["I would rather not."], agent=agent)
    assert (seen.response.stop, len(seen.model.requests)) == ("answer", 1)


def numbered(number: int) -> Callable[..., Any]:
    """A function of its own name."""

    async def made() -> str:
        return str(number)

    made.__name__ = f"function_{number}"
    return made


@pytest.mark.asyncio
@ways
async def test_row_53_more_than_128_tools(way: str) -> None:
    """53: 130 tools are passed on, and the provider's refusal is told as it is."""
    agent = Agent(functions=[numbered(number) for number in range(130)])
    seen = await watch(way, [Failure(400, "Invalid 'tools': array too long")], agent=agent)
    assert len(seen.model.requests[0].tool_names) == 130
    assert "array too long" in str(seen.error)


@pytest.mark.asyncio
async def test_usage_is_asked_for_in_streams_only() -> None:
    """Streams ask for usage, which can be switched off; whole completions do not ask."""
    for way, options, expected in (
        ("run", dict[str, Any](), None),
        ("stream()", dict[str, Any](), {"include_usage": True}),
        ("stream()", {"include_usage": False}, None),
    ):
        seen = await watch(way, ["Hello"], **options)
        assert seen.model.requests[0].body.get("stream_options") == expected


@pytest.mark.anyio
async def test_the_same_on_both_backends() -> None:
    """The shapes do not depend on the event loop: one of the worse ones, on asyncio and on trio."""
    for way in WAYS:
        seen = await watch(way, [RawAnswer(sse(*CALLS["12 index 0 for all, in pieces"][0], *end("stop"))), LAST])
        assert (seen.calls, seen.response.text) == (TWO, LAST)
        broken = await watch(way, [RawAnswer(HALF)])
        assert isinstance(broken.error, StreamInterrupted)
