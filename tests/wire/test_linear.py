"""The cost of an answer grows with its size, and not with the square: an answer of any size must not stop the event loop."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import StreamInterrupted
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.sse import AnswerDecoder
from aswarm.repl._markdown import Blocks
from tests.support.wire.accumulated import Json
from tests.support.wire.wire_cases import chunk, fragment


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
def test_a_call_with_an_equal_id_starts_after_whole_arguments(pieces: list[str]) -> None:
    """Compared with a parser that reads everything again at each fragment."""
    message = accumulated({"tool_calls": [call(0, "c", piece)]} for piece in pieces)
    expected: list[str] = []
    for piece in pieces:
        if not expected or (piece.strip() and parses(expected[-1])):
            expected.append("")
        expected[-1] += piece
    assert [each["function"]["arguments"] for each in message["tool_calls"] or ()] == expected
