"""The decoder of one answer's bytes: the same objects, and the same fault, in every cut.

Lines end with LF, CR or CRLF (HTML standard, 9.2.6); comments and empty data are skipped; `[DONE]` ends; a whole JSON
body is accepted; everything else is a `StreamInterrupted` that quotes the body.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import CompletionError
from aswarm._wire.sse import AnswerDecoder
from aswarm.errors import StreamInterrupted

Json = dict[str, Any]
BOM = b"\xef\xbb\xbf"
A, B = {"n": 1}, {"text": "grüße 🙂 \n"}
A_DATA, B_DATA = b'data: {"n": 1}', b"data: " + json.dumps(B, ensure_ascii=False).encode()


def decode(pieces: Iterable[bytes]) -> tuple[list[Json], type[BaseException] | None]:
    """Return the decoded objects, and the type of the exception after them."""
    decoder = AnswerDecoder()
    found: list[Json] = []
    try:
        for piece in pieces:
            for item in decoder.feed(piece):
                found.append(item)  # noqa: PERF402 - what came before an exception must be kept
        for item in decoder.end():
            found.append(item)  # noqa: PERF402 - as above
    except CompletionError as error:
        return found, type(error)
    return found, None


def every_two(body: bytes) -> Iterable[list[bytes]]:
    """The body in two pieces, cut at every byte."""
    return ([body[:place], body[place:]] for place in range(len(body) + 1))


def by_byte(body: bytes) -> list[bytes]:
    """The body byte by byte, with nothing in between now and then."""
    return [piece for byte in body for piece in (bytes([byte]), b"")]


GOOD: dict[str, tuple[bytes, list[Json]]] = {
    "LF": (A_DATA + b"\n\n" + B_DATA + b"\n\ndata: [DONE]\n\n", [A, B]),
    "CR": (A_DATA + b"\r\r" + B_DATA + b"\r\rdata: [DONE]\r\r", [A, B]),
    "CRLF": (A_DATA + b"\r\n\r\n" + B_DATA + b"\r\n\r\ndata: [DONE]\r\n\r\n", [A, B]),
    "line ends mixed": (A_DATA + b"\n\r\n" + B_DATA + b"\r\r\n" + A_DATA + b"\r\n\n", [A, B, A]),
    "no DONE": (A_DATA + b"\n\n", [A]),
    "no last newline": (A_DATA + b"\n\n" + B_DATA, [A, B]),
    "one last newline": (A_DATA + b"\n\n" + B_DATA + b"\n", [A, B]),
    "ends with a CR": (A_DATA + b"\r\n\r\n" + B_DATA + b"\r", [A, B]),
    "ends with half a blank line": (A_DATA + b"\r\n\r", [A]),
    "comments": (b": hello\n\n" + A_DATA + b"\n: OPENROUTER PROCESSING\n\n:\n\n" + B_DATA + b"\n\n", [A, B]),
    "empty data": (b"data:\n\n" + A_DATA + b"\n\ndata: \n\ndata\n\n" + B_DATA + b"\n\n", [A, B]),
    "data in several lines": (b'data: {"n":\ndata: 1\ndata:}\n\n' + B_DATA + b"\n\n", [A, B]),
    "no blank after the colon": (b'data:{"n":1}\n\n', [A]),
    "data in several lines, line ends mixed": (
        b'data: {"n":\r\n: ping\r\ndata: 1}\n\n\r\n' + B_DATA + b'\r\rdata: {"n":\rdata: 1\ndata:}\n\r',
        [A, B, A],
    ),
    "an unknown field first": (b"X-Server: 1\n" + A_DATA + b"\n\n", [A]),
    "only other fields": (b"event: message\nid: 7\nretry: 10\n\n", []),
    "other fields": (b"event: message\nid: 7\nretry: 10\nodd\n" + A_DATA + b"\n\n", [A]),
    "a ping": (b"event: ping\ndata: {}\n\n" + A_DATA + b"\n\n", [{}, A]),
    "BOM": (BOM + A_DATA + b"\n\n", [A]),
    "BOM and JSON": (BOM + b'{"n": 1}', [A]),
    "blank lines first": (b"\r\n\n \n" + A_DATA + b"\n\n", [A]),
    "an escape that is only text": (rb'data: {"text": "\\ud83d"}' + b"\n\n", [{"text": "\\ud83d"}]),
    # A server may cut an emoji between its surrogates (JavaScript strings).
    "half a character in each event": (
        b'data: {"text": "a\\ud83d"}\n\ndata: {"text": "\\ude42b"}\n\n',
        [{"text": "a\ud83d"}, {"text": "\ude42b"}],
    ),
    "only DONE": (b"data: [DONE]\n\n", []),
    "nothing": (b"", []),
    "blank": (b" \r\n\t", []),
    "only comments": (b": ping\n\n: ping\n\n", []),
    "after DONE": (A_DATA + b"\n\ndata: [DONE]\n\n" + B_DATA + b"\n\ndata: {bad\n\n", [A]),
    "a whole JSON body": (b'\n {"n":\r\n 1}\n', [A]),
    "an error event": (b'event: error\ndata: {"message": "no"}\n\n', [{"error": {"message": "no"}}]),
    "an error event that says so": (b'event: error\ndata: {"error": "no"}\n\n', [{"error": "no"}]),
    "an error event is one event": (b'event: error\ndata: {"m": 1}\n\n' + A_DATA + b"\n\n", [{"error": {"m": 1}}, A]),
    "an event name with no data": (b"event: error\n\n" + A_DATA + b"\n\n", [A]),
}
BAD: dict[str, tuple[bytes, list[Json]]] = {
    "JSON cut": (A_DATA + b"\n\n" + B_DATA + b"\n\n" + b'data: {"n"', [A, B]),
    "a character cut": (A_DATA + b"\n\n" + 'data: {"n": "ü'.encode()[:-1], [A]),
    "malformed JSON": (A_DATA + b"\n\ndata: {bad}\n\n" + B_DATA + b"\n\n", [A]),
    "text as data": (A_DATA + b"\n\ndata: Internal Server Error\n\n", [A]),
    "an error event of text": (A_DATA + b"\n\nevent: error\ndata: overloaded\n\n", [A]),
    "HTML": (b"<!DOCTYPE html>\n<html><body>502</body></html>\n", []),
    "a JSON body cut": (b'{"choices": [{"message"', []),
    "two JSON bodies": (b'{"n": 1}\n{"n": 1}\n', []),
    "bytes that are no text": (b"data: \xff\xfe\n\n", []),
}
BODIES = {**GOOD, **BAD}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_has_its_objects_and_its_fault_in_every_cut(name: str) -> None:
    """In one piece, cut in two at every byte, and byte by byte: a body that is cut or makes no sense is StreamInterrupted, after
    the objects that were whole."""
    body, objects = BODIES[name]
    expected = (objects, None if name in GOOD else StreamInterrupted)
    for pieces in ([body], by_byte(body), *every_two(body)):
        assert decode(pieces) == expected, pieces


def test_every_line_may_end_differently_and_be_cut_at_its_end() -> None:
    """Only an empty line ends an event: half of a CRLF that comes with the next piece is no empty line."""
    lines = (b'data: {"n":', b"data: 1}", b"", b'data: {"n": 2}', b"")
    for ends in itertools.product([b"\n", b"\r", b"\r\n"], repeat=len(lines)):
        if (b"\r", b"\n") in (ends[1:3], ends[3:5]):
            continue  # an LF after a CR belongs to it, and the empty line is gone
        body = b"".join(line + end for line, end in zip(lines, ends, strict=True))
        assert decode(by_byte(body)) == ([{"n": 1}, {"n": 2}], None), body
        for pieces in every_two(body):
            assert decode(pieces) == ([{"n": 1}, {"n": 2}], None), pieces


_json = st.dictionaries(st.text(max_size=4), st.text(max_size=4) | st.integers(-9, 9) | st.none(), max_size=3)
_ends = st.sampled_from([b"\n", b"\r", b"\r\n"])


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes, list[Json]]:
    """A body of events with any line ends, comments and empty data in between, and the objects in it."""
    body, objects = draw(st.sampled_from([b"", BOM + b":\n"])), draw(st.lists(_json, max_size=4))
    for item in objects:
        end, noise = (
            draw(_ends),
            draw(st.lists(st.sampled_from([b": ping", b"data:", b"id: 1", b"", b":"]), max_size=2)),
        )
        for line in (*noise, b"", b"data: " + json.dumps(item, ensure_ascii=draw(st.booleans())).encode(), b""):
            body += line + end
        if body.endswith(b"\r"):
            body += b":\n"  # or the next line's LF would belong to this CR
    return body + draw(st.sampled_from([b"", b"data: [DONE]", b"data: [DONE]\n\n"])), objects


@pytest.mark.slow
@given(events(), st.data())
def test_any_body_in_any_cut(made: tuple[bytes, list[Json]], data: st.DataObject) -> None:
    """Any body of events, cut anywhere, gives the objects that were put into it."""
    body, objects = made
    places = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=8)))
    pieces = [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]
    assert decode([body]) == (objects, None)
    assert decode(pieces) == (objects, None)


@given(
    st.lists(
        st.binary(max_size=12) | st.sampled_from([b"data: ", b"{", b"}", b"\n\n", b"\r", b'"a":1', BOM, b"[DONE]"]),
        max_size=12,
    )
)
@pytest.mark.slow
def test_any_bytes_in_any_cut(pieces: list[bytes]) -> None:
    """Any bytes at all give the same in one piece and in many, and raise nothing but a CompletionError."""
    body = b"".join(pieces)
    assert decode(pieces) == decode([body]) == decode(by_byte(body))


def test_objects_come_as_soon_as_they_are_whole() -> None:
    """An object is given at its blank line, and the decoder waits for nothing more."""
    decoder = AnswerDecoder()
    assert list(decoder.feed(A_DATA + b"\n")) == []
    assert list(decoder.feed(b"\n")) == [A]
    assert list(decoder.feed(A_DATA + b"\r\n\r")) == [A]
    assert list(decoder.feed(b"\n" + A_DATA + b"\r\r")) == [A]


def test_done_is_told() -> None:
    """`is_done` is true after `[DONE]`, and only then."""
    decoder = AnswerDecoder()
    list(decoder.feed(A_DATA + b"\n\n"))
    assert decoder.is_done is False
    list(decoder.feed(b"data: [DONE]\n\n"))
    assert decoder.is_done


def test_a_json_body_comes_at_the_end() -> None:
    """A JSON body is one object, known when no more bytes will come."""
    decoder = AnswerDecoder()
    assert list(decoder.feed(b'{"n": 1}')) == []
    assert list(decoder.end()) == [A]


@pytest.mark.parametrize("body", [b"[1]", b"data: [1]\n\n", b"data: 7\n\n"])
def test_json_that_is_no_object(body: bytes) -> None:
    """JSON that is no object is a CompletionError that quotes it."""
    with pytest.raises(CompletionError, match=r"not a completion: '(\[1\]|7)'") as caught:
        feed_all(body)
    assert not isinstance(caught.value, StreamInterrupted)


@pytest.mark.parametrize(("length", "shown"), [(7, "x" * 7), (200, "x" * 200), (201, "x" * 200 + "...")])
def test_a_body_that_makes_no_sense_is_quoted_but_not_whole(length: int, shown: str) -> None:
    """The error quotes the first 200 bytes of a body, because they are the only clue, and marks that there are more."""
    with pytest.raises(StreamInterrupted, match="not JSON") as caught:
        feed_all(b"data: " + b"x" * length)
    assert str(caught.value).endswith(f": '{shown}'")
    with pytest.raises(StreamInterrupted, match="<html>"):
        feed_all(b"<html>" + b"x" * 10_000)


def test_a_body_that_is_no_event_stream_is_quoted_from_its_first_wrong_line() -> None:
    """The first line that no event stream has is quoted; fields of an event stream are not quoted."""
    with pytest.raises(StreamInterrupted, match=r"^the answer is not an event stream: 'Bad gateway'$"):
        feed_all(b"id: 1\nBad gateway\nPlease try later\n")


def test_bytes_that_are_no_text_are_quoted_as_far_as_they_can_be() -> None:
    """The quotation shows a sign in their place."""
    with pytest.raises(StreamInterrupted, match="\ufffdoops"):
        feed_all(b"data: \xffoops\n\n")


def feed_all(body: bytes) -> None:
    decoder = AnswerDecoder()
    list(decoder.feed(body))
    list(decoder.end())


@pytest.mark.parametrize(
    "fault", [b'{"text": "\\ud83d}', b'{"text": "\\ud83d", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}"]
)
def test_other_faults_beside_a_character_that_was_cut_are_errors(fault: bytes) -> None:
    """Only the half of the character is repaired."""
    with pytest.raises(StreamInterrupted, match="not JSON"):
        feed_all(b"data: " + fault + b"\n\n")
