"""Decoder of one answer: bytes of server-sent events or of a JSON body become JSON objects.

Sans-IO and incremental: `feed` accepts pieces of any length; call `end` after the last piece. Events are parsed as in the HTML
standard: lines end with CR, LF or CRLF, the `data` lines of one event are joined, and a colon starts a comment. An event with
empty data is skipped, and `[DONE]` ends the answer.

See: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

Security: An event of a stream has at most 64 MiB, and its decoding takes time in proportion to its size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

from pydantic_core import from_json

from aswarm._values.errors import CompletionError, StreamInterrupted
from aswarm._values.json import is_array, is_object
from aswarm._values.text import whole_escapes

from .failures import failure_in

# The key of a chunk without choices, which reports the `[DONE]` of a stream to the accumulator.
DONE = "stream_done"
_TERMINATOR = b"[DONE]"
_ERROR_KEYS = frozenset({"error", "detail"})
_BOM = b"\xef\xbb\xbf"
_MAX_QUOTE = 200  # bytes of a wrong body that an error text quotes
_MAX_SIZE = 64 << 20  # the maximum of bytes of one event or a JSON body; an image has a few million bytes


def chunk_of(delta: Mapping[str, Any], **more: object) -> Mapping[str, Any]:
    """Return the chunk of Chat Completions with this delta. `more`: further keys of its choice."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]}


class AnswerDecoder:
    """Decoder of the body of one answer. `is_done` is true after `[DONE]`; later bytes are ignored.

    `reports_done`: whether `[DONE]` is a chunk too.
    """

    def __init__(self, *, reports_done: bool = False) -> None:
        self._reports_done = reports_done
        self._buffer: list[bytes] = []  # pieces of the unfinished line or JSON body; joined once, at its end
        self._size = 0  # bytes of the current event or JSON body
        self._data: list[bytes] = []
        self._event = b""
        self._is_events: bool | None = None  # None until the first byte that is no white space
        self._after_cr = False
        self._has_data = False
        self._invalid_line = b""  # the first line that is invalid in an event stream
        self.is_done = False

    def feed(self, piece: bytes) -> Iterator[Mapping[str, Any]]:
        """Add bytes; yield the complete objects. Raises StreamInterrupted if an event is too large or not JSON."""
        self._size += len(piece)
        if self._size > _MAX_SIZE:
            raise StreamInterrupted(f"the answer has an event of more than {_MAX_SIZE >> 20} MiB")
        self._buffer.append(piece)
        if self._is_events is None:
            data = self._take_buffer()
            start = data.removeprefix(_BOM).lstrip()
            if start and not _BOM.startswith(start):  # otherwise wait: the piece may be the start of a BOM
                # No line of an event stream starts with these characters. The body is JSON, or the HTML page of an error.
                self._is_events = start[:1] not in b"{[<"
                data = piece = start
            self._buffer.append(data if start else data[:4])  # no content yet: keep a BOM and a space at most (4 bytes)
        has_line = self._is_events and (b"\n" in piece or b"\r" in piece or self._after_cr)
        return self._events() if has_line else iter(())

    def end(self) -> Iterator[Mapping[str, Any]]:
        """Yield the last objects, at the end of the body. Raises StreamInterrupted if the body was cut or is not JSON."""
        if self._is_events:
            # By the standard, an event without an empty line at its end is ignored. But some servers forget this line.
            rest = self._take_buffer()
            self._buffer = [b"\n\n" if _is_cut_terminator(rest) else rest + b"\n\n"]
            yield from self._events()
            if self._invalid_line and not self._has_data:
                raise StreamInterrupted(f"the answer is not an event stream: {_quote(self._invalid_line)}")
        elif (body := self._take_buffer()).strip():
            yield whole(_json(body))

    def _take_buffer(self) -> bytes:
        pieces, self._buffer = self._buffer, []
        return b"".join(pieces)

    def _events(self) -> Iterator[dict[str, Any]]:
        buffer = b"".join(self._buffer)
        # Most answers have no CR, so the usual piece needs no call of `_split`.
        *lines, rest = self._split(buffer) if self._after_cr or b"\r" in buffer else buffer.split(b"\n")
        self._buffer = [rest]
        for line in lines:
            if self.is_done:
                return
            if line.startswith(b"data:"):  # most lines
                self._data.append(line[5:])  # JSON ignores the space after the colon
                self._has_data = True
            elif line:
                self._line(line)
            else:
                self._size = len(rest)
                if (event := self._dispatch()) is not None:
                    yield event

    def _split(self, buffer: bytes) -> list[bytes]:
        if not buffer:
            return [buffer]
        if self._after_cr:
            buffer = buffer.removeprefix(b"\n")  # the second half of a CRLF across two pieces
        self._after_cr = buffer.endswith(b"\r")
        return buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"event":
            self._event = value.strip()
        elif name.lower() == b"error" or _is_bare_error(line):
            raise _error_line(line if line.startswith(b"{") else value)
        elif name not in (b"", b"data", b"id", b"retry") and not self._invalid_line:
            self._invalid_line = line

    def _dispatch(self) -> dict[str, Any] | None:
        data, event = b"\n".join(self._data).strip(), self._event
        self._data, self._event = [], b""
        if data.startswith(_TERMINATOR):
            self.is_done = True
            return {"choices": [], DONE: True} if self._reports_done else None
        if not data:
            return None
        decoded = _json(data)
        return {"error": decoded} if event == b"error" and "error" not in decoded else decoded


def whole_answer(body: bytes) -> list[Mapping[str, Any]]:
    """Return the objects of a whole body. Raises the errors of the decoder."""
    if body.startswith(b"{") and len(body) <= _MAX_SIZE:  # the usual answer is one object
        return [whole(_json(body)) if b'"delta"' in body else _json(body)]
    decoder = AnswerDecoder(reports_done=True)
    return [*decoder.feed(body), *decoder.end()]


def _is_cut_terminator(line: bytes) -> bool:
    """Return whether the last line is the start of `data: [DONE]`. Nothing is lost if a connection is cut there."""
    data = line.removeprefix(b"data:").strip()
    return line.startswith(b"data:") and data != _TERMINATOR and _TERMINATOR.startswith(data)


def whole(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer that was not streamed. Its choices have no `delta`: Perplexity sends an empty one beside `message`."""
    choices: Any = answer.get("choices")
    for choice in choices if is_array(choices) else ():
        if is_object(choice) and "delta" in choice and choice.get("message"):
            return {**answer, "choices": [*map(_without_delta, choices)]}
    return answer


def _without_delta(choice: Any) -> Any:
    has_both = is_object(choice) and bool(choice.get("message"))
    return {key: choice[key] for key in choice if key != "delta"} if has_both else choice


def _is_bare_error(line: bytes) -> bool:
    """Return whether a line is the JSON of an error without a field name, as some proxies and FastAPI write it."""
    with suppress(ValueError):
        answer = _decoded(line) if line.startswith(b"{") else None
        return is_object(answer) and not _ERROR_KEYS.isdisjoint(answer)
    return False


def _error_line(value: bytes) -> StreamInterrupted:
    """Return the error for a line `error: {...}`, with which llama.cpp ends a stream."""
    try:
        error = _decoded(value)
    except ValueError:
        error = value.decode(errors="replace").strip()
    text, status, retryable = failure_in(error)
    retryable = retryable or status is None
    return StreamInterrupted(
        f"the provider ended the stream with an error: {text}", status_code=status, retryable=retryable
    )


def _json(data: bytes) -> dict[str, Any]:
    try:
        try:
            decoded = from_json(data)  # most data needs no other function
        except ValueError:
            decoded = _decoded(data)
    except ValueError as error:
        raise StreamInterrupted(f"the answer is not JSON ({error}): {_quote(data)}") from error
    if not isinstance(decoded, dict):
        raise CompletionError(f"the answer is not a completion: {_quote(data)}")
    return cast("dict[str, Any]", decoded)


def _decoded(data: bytes) -> Any:
    """Decode JSON that may have the halves of a surrogate pair. They are kept, because the next event may have the other half."""
    text = data.decode(errors="replace")
    if (whole := whole_escapes(text)) == text:
        return from_json(data)
    from_json(whole)  # raises for any other fault
    return json.loads(data)


def _quote(data: bytes) -> str:
    text = data[:_MAX_QUOTE].decode(errors="replace")
    return repr(text if len(data) <= _MAX_QUOTE else text + "...")
