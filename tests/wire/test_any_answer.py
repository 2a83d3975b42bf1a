"""An answer of any shape is read or is a CompletionError, and its cost grows with its size, not with the square."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aswarm import CompletionError
from aswarm._values.messages import normalize
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.sse import AnswerDecoder
from aswarm.errors import StreamInterrupted
from aswarm.repl._rich import Blocks
from tests.support.wire.accumulated import Json, accumulate, deltas_of, json_values, whole
from tests.support.wire.wire_cases import chunk, fragment

_keys = [
    "choices",
    "delta",
    "message",
    "content",
    "tool_calls",
    "function",
    "custom",
    "arguments",
    "name",
    "id",
    "index",
]
_garbage = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "stop", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*_keys, "finish_reason", "usage", "type", "role", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
_garbled_calls = st.lists(
    st.dictionaries(st.sampled_from(["index", "id", "function", "x"]), _garbage, max_size=3) | _garbage, max_size=2
)
_garbled_deltas = st.fixed_dictionaries({}, optional={"content": _garbage, "tool_calls": _garbled_calls, "x": _garbage})
_garbled_choices = st.fixed_dictionaries({}, optional={"delta": _garbled_deltas | _garbage, "message": _garbled_deltas})
_garbled_chunks = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(_garbled_choices | _garbage, max_size=2) | _garbage, "usage": _garbage}
)


@pytest.mark.slow
@given(st.lists(_garbled_chunks, max_size=4))
def test_no_shape_escapes_as_an_internal_error(chunks: list[Json]) -> None:
    """Whatever JSON a server sends, accumulating it succeeds or raises a CompletionError, and nothing else."""
    accumulator = Accumulator()
    try:
        for item in chunks:
            accumulator.feed(item)
        accumulator.finish()
    except CompletionError:
        pass


_odd_texts = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a"])
_odd_texts |= st.lists(_odd_texts, max_size=2) | st.dictionaries(st.just("text"), _odd_texts, max_size=1)
_odd_parts = _odd_texts | st.fixed_dictionaries(
    {},
    optional={"type": st.sampled_from(["text", "thinking", "image_url"]), "text": _odd_texts, "thinking": _odd_texts},
)


@pytest.mark.slow
@given(st.lists(st.sampled_from(["a", None]) | _odd_texts | st.lists(_odd_parts, max_size=3), max_size=4))
def test_the_next_run_takes_what_was_recorded(contents: list[Any]) -> None:
    """Whatever content a server sends is an error at once, or a message of a valid history, whose chunks stay as they were."""
    sent = copy.deepcopy(contents)
    with suppress(CompletionError):
        message = accumulate([*(chunk({"content": content}) for content in sent), chunk({}, "stop")]).message
        normalize([message])
        assert isinstance(message["content"], str | list)
    assert sent == contents


@pytest.mark.slow
@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"content": json_values, "x": json_values, "y": json_values}), max_size=5
    )
)
def test_deltas_are_never_changed_later(deltas: list[Json]) -> None:
    """A delta that was handed out stays as it was, whatever comes after it and whatever the accumulator does."""
    accumulator = Accumulator()
    handed: list[tuple[Json | None, Json | None]] = []
    try:
        for delta in deltas:
            shown = accumulator.feed(chunk(delta))
            handed.append((shown, copy.deepcopy(shown)))
        accumulator.feed(chunk({}, "stop"))
        accumulator.finish()
    except (CompletionError, AttributeError, TypeError):
        pass  # the test above checks the errors
    assert [shown for shown, _ in handed] == [kept for _, kept in handed]


@pytest.mark.slow
def test_a_list_after_text_is_not_the_servers_own_list() -> None:
    """A key that is text first and lists later must not grow the list of a delta that was handed out."""
    _, second, _ = shown = deltas_of({"x": "text"}, {"x": [1]}, {"x": [2]})
    assert len(shown) == 3
    assert second is not None
    assert second["x"] == [1]


@pytest.mark.slow
@given(json_values)
def test_a_key_of_a_whole_message_stays_as_it_is(value: object) -> None:
    """A key that only the provider knows is kept unchanged when it comes whole."""
    message = accumulate([whole({"role": "assistant", "content": "a", "vendor": value})]).message
    assert message.get("vendor", []) == value


@pytest.mark.slow
def test_a_long_answer_costs_no_square() -> None:
    """Text, arguments and reasoning are joined late: thirty thousand pieces of each are nothing."""
    accumulator = Accumulator()
    for _ in range(30_000):
        accumulator.feed(
            chunk({"content": "x", "reasoning_content": "y", "tool_calls": [fragment(None, "z", index=0)]})
        )
    accumulator.feed(chunk({}, "length"))
    message = accumulator.finish().message
    assert len(message["content"]) == len(message["reasoning_content"]) == 30_000


def opcodes(work: Callable[[], object]) -> int:
    """Count the instructions of Python that the work takes. Copies by C code count as one."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def accumulated(deltas: Iterable[Json]) -> Json:
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.feed(chunk(delta))
    accumulator.feed(chunk({"content": "end"}, "stop"))
    return accumulator.finish().message


def call(index: int | None, identity: str | None, arguments: str) -> Json:
    """A fragment with a name."""
    return {"index": index, "id": identity, **fragment("f", arguments)}


ANSWERS: dict[str, Callable[[int], list[Json]]] = {
    "items": lambda size: [{"details": [{"text": "word"}]} for _ in range(size)],
    "items with an index": lambda size: [{"details": [{"index": at, "text": "word"}]} for at in range(size)],
    "keys of an object": lambda size: [{"details": {f"key {at}": "word"}} for at in range(size)],
    "arguments with brackets": lambda size: [
        {"tool_calls": [call(0, "c", text)]} for text in ['{"a": "', *["}"] * size, '"}']
    ],
    "calls with an index": lambda size: [{"tool_calls": [call(at, f"c{at}", "{}")]} for at in range(size)],
    "calls with an id": lambda size: [{"tool_calls": [call(None, f"c{at}", "{}")]} for at in range(size)],
    "calls of one delta": lambda size: [{"tool_calls": [call(None, None, "{}") for _ in range(size)]}],
    "thinking": lambda size: [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]}] * size,
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_completion_of_twice_the_size_takes_twice_the_work(kind: str) -> None:
    half, whole = ANSWERS[kind](100), ANSWERS[kind](200)
    assert opcodes(lambda: accumulated(whole)) < 2.1 * opcodes(lambda: accumulated(half))


def test_a_block_of_code_of_twice_the_size_takes_twice_the_work() -> None:
    """At a terminal. A block of a few lines is parsed at each of them."""

    def show(lines: int) -> int:
        text = "```python\n" + "x = 1  # a comment of some length\n" * lines

        def feed() -> None:
            blocks = Blocks()
            for start in range(0, len(text), 40):
                blocks.feed(text[start : start + 40])

        return opcodes(feed)

    assert show(1600) < 2.5 * show(800)


class CountingDecoder(AnswerDecoder):
    """Counts the bytes of the lines that it has joined."""

    joined = 0

    def _take_buffer(self) -> bytes:
        data = super()._take_buffer()
        self.joined += len(data)
        return data


@pytest.mark.parametrize("form", ["data: %s\n\n", "data: %s\r\n\r\n", "%s"], ids=["event", "crlf", "json"])
def test_each_byte_is_joined_once(form: str) -> None:
    body = (form % json.dumps({"text": "a" * 100_000})).encode()
    decoder = CountingDecoder()
    objects = [each for start in range(0, len(body), 100) for each in decoder.feed(body[start : start + 100])]
    objects += decoder.end()
    assert objects == [{"text": "a" * 100_000}]
    assert decoder.joined < 1.1 * len(body)


@pytest.mark.parametrize("start", [b"data: ", b'{"text": "'])
def test_an_event_has_a_largest_size(start: bytes) -> None:
    """Endless data is an error that can be retried, and not all of the memory."""
    decoder, piece = AnswerDecoder(), b"a" * (1 << 20)
    list(decoder.feed(start))
    for _ in range(63):
        list(decoder.feed(piece))
    with pytest.raises(StreamInterrupted, match="more than 64 MiB"):
        decoder.feed(piece)


def test_many_events_have_no_largest_size() -> None:
    decoder, event = AnswerDecoder(), b'data: {"text": "' + b"a" * (1 << 20) + b'"}\n\n: a comment\n\n'
    assert sum(len(list(decoder.feed(event))) for _ in range(70)) == 70


def parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return text.rstrip().endswith("}")


@given(
    st.lists(st.sampled_from(["{", "}", "[", "]", '"', "\\", '"a"', ":", "1", " ", ",", "{}", '{"a":1}']), max_size=9)
)
@example(["{}", '"a"', "{:}"])
def test_a_call_with_an_equal_id_starts_after_whole_arguments(pieces: list[str]) -> None:
    """Compared with a parser that reads everything again at each fragment."""
    message = accumulated({"tool_calls": [call(0, "c", piece)]} for piece in pieces)
    expected: list[str] = []
    for piece in pieces:
        if not expected or (piece.strip() and parses(expected[-1])):
            expected.append("")
        expected[-1] += piece
    assert [each["function"]["arguments"] for each in message["tool_calls"] or ()] == expected
