"""Decoder of one answer: bytes of server-sent events or of a JSON body become JSON objects.

Sans-IO and incremental: `feed` accepts pieces of any length; call `end` after the last piece. Events are parsed as in the HTML
standard: lines end with CR, LF or CRLF, the `data` lines of one event are joined, and a colon starts a comment. An event with
empty data is skipped, and `[DONE]` ends the answer.

See: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

Security: An event of a stream has at most 64 MiB, and its decoding takes time in proportion to its size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from pydantic_core import from_json

from aswarm._values.errors import CompletionError, StreamInterrupted
from aswarm._values.text import whole_escapes

_BOM = b"\xef\xbb\xbf"
_MAX_QUOTE = 200  # bytes of a wrong body that an error text quotes
_MAX_SIZE = 64 << 20  # the maximum of bytes of one event or a JSON body; an image has a few million bytes


class AnswerDecoder:
    """Decoder of the body of one answer. `is_done` is true after `[DONE]`; later bytes are ignored."""

    def __init__(self) -> None:
        self._buffer: list[bytes] = []  # pieces of the unfinished line or JSON body; joined once, at its end
        self._size = 0  # bytes of the current event or JSON body
        self._data: list[bytes] = []
        self._event = b""
        self._is_events: bool | None = None  # None until the first byte that is no white space
        self._after_cr = False
        self._has_data = False
        self._invalid_line = b""  # the first line that is invalid in an event stream
        self.is_done = False

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
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

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the last objects, at the end of the body. Raises StreamInterrupted if the body was cut or is not JSON."""
        if self._is_events:
            # By the standard, an event without an empty line at its end is ignored. But some servers forget this line.
            self._buffer.append(b"\n\n")
            yield from self._events()
            if self._invalid_line and not self._has_data:
                raise StreamInterrupted(f"the answer is not an event stream: {_quote(self._invalid_line)}")
        elif (body := self._take_buffer()).strip():
            yield _json(body)

    def _take_buffer(self) -> bytes:
        pieces, self._buffer = self._buffer, []
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def _events(self) -> Iterator[dict[str, Any]]:
        *lines, rest = self._split(self._take_buffer())
        self._buffer.append(rest)
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
        if not buffer or not (self._after_cr or b"\r" in buffer):
            return buffer.split(b"\n")
        if self._after_cr:
            buffer = buffer.removeprefix(b"\n")  # the second half of a CRLF across two pieces
        self._after_cr = buffer.endswith(b"\r")
        return buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"event":
            self._event = value.strip()
        elif name not in (b"", b"data", b"id", b"retry") and not self._invalid_line:
            self._invalid_line = line

    def _dispatch(self) -> dict[str, Any] | None:
        data, event = b"\n".join(self._data).strip(), self._event
        self._data, self._event = [], b""
        if data.startswith(b"[DONE]"):
            self.is_done = True
            return None
        if not data:
            return None
        decoded = _json(data)
        return {"error": decoded} if event == b"error" and "error" not in decoded else decoded


def whole_answer(body: bytes) -> list[dict[str, Any]]:
    """Return the objects of a whole body. Raises the errors of the decoder."""
    if body.startswith(b"{") and len(body) <= _MAX_SIZE:  # the usual answer is one object
        return [_json(body)]
    decoder = AnswerDecoder()
    return [*decoder.feed(body), *decoder.end()]


def _json(data: bytes) -> dict[str, Any]:
    try:
        decoded = _decoded(data)
    except ValueError as error:
        raise StreamInterrupted(f"the answer is not JSON ({error}): {_quote(data)}") from error
    if not isinstance(decoded, dict):
        raise CompletionError(f"the answer is not a completion: {_quote(data)}")
    return cast("dict[str, Any]", decoded)


def _decoded(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        text = data.decode(errors="replace")
        if (whole := whole_escapes(text)) == text:
            raise
        from_json(whole)  # raises for any other fault
        return json.loads(data)  # keeps the halves, because the next event may have the other half


def _quote(data: bytes) -> str:
    text = data[:_MAX_QUOTE].decode(errors="replace")
    return repr(text if len(data) <= _MAX_QUOTE else text + "...")
