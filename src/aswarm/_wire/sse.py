"""The decoder of one answer: it takes bytes and yields JSON objects.

Sans-IO and incremental: `feed` takes the bytes in pieces of any length, `end` is called after the last one. Decides what
is an event, a whole JSON body, a comment, or garbage. The rules of the event stream are those of the HTML standard,
section 9.2.6 (lines end with CR, LF or CRLF; `data` lines of one event are joined; a colon starts a comment). An empty
`data:` is skipped, `[DONE]` ends the answer, a whole JSON completion in place of events is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from pydantic_core import from_json

from aswarm._errors import CompletionError, StreamInterrupted

_BOM = b"\xef\xbb\xbf"
# Servers in JavaScript cut an emoji between its surrogates. The grammar of JSON allows that, UTF-8 does not.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_SHOWN = 200  # how many bytes of a wrong body an error text quotes


class AnswerDecoder:
    """Decodes the body of one answer. `is_done` is true after `[DONE]`; later bytes are ignored."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []
        self._event = b""
        self._is_events: bool | None = None  # None until a byte has come that is no white space
        self._after_cr = False
        self._has_data = False
        self._odd = b""  # the first line that an event stream cannot have
        self.is_done = False

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Take bytes; yield the objects that are complete. Raises StreamInterrupted if one is not JSON."""
        self._buffer += piece
        if self._is_events is None:
            self._recognize()
        return self._events() if self._is_events else iter(())

    def end(self) -> Iterator[dict[str, Any]]:
        """Take the end of the body; yield the last objects. Raises StreamInterrupted if the body was cut or is not JSON."""
        if self._is_events:
            # The standard drops an event without its closing empty line, but some servers forget that line.
            self._buffer += b"\n\n"
            yield from self._events()
            if self._odd and not self._has_data:
                raise StreamInterrupted(f"the answer is not an event stream: {_quote(self._odd)}")
        elif self._buffer.strip():
            yield self._json(self._buffer)

    def _recognize(self) -> None:
        start = self._buffer.removeprefix(_BOM).lstrip()
        if start and not _BOM.startswith(start):  # which may be the beginning of a BOM
            self._buffer = start
            # No server begins a line of an event stream with these. HTML is then reported as not being JSON.
            self._is_events = start[:1] not in b"{[<"

    def _events(self) -> Iterator[dict[str, Any]]:
        *lines, self._buffer = self._split()
        for line in lines:
            if self.is_done:
                return
            if line.startswith(b"data:"):  # most lines
                self._data.append(line[5:])  # a blank after the colon is white space of JSON
                self._has_data = True
            elif line:
                self._line(line)
            elif (event := self._dispatch()) is not None:
                yield event

    def _split(self) -> list[bytes]:
        buffer = self._buffer
        if not buffer or not (self._after_cr or b"\r" in buffer):
            return buffer.split(b"\n")
        if self._after_cr:
            buffer = buffer.removeprefix(b"\n")  # the second half of a CRLF that was cut in two
        self._after_cr = buffer.endswith(b"\r")
        return buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"event":
            self._event = value.strip()
        elif name not in (b"", b"data", b"id", b"retry") and not self._odd:
            self._odd = line

    def _dispatch(self) -> dict[str, Any] | None:
        data, event = b"\n".join(self._data).strip(), self._event
        self._data, self._event = [], b""
        if data.startswith(b"[DONE]"):
            self.is_done = True
            return None
        if not data:
            return None
        decoded = self._json(data)
        return {"error": decoded} if event == b"error" and "error" not in decoded else decoded

    @staticmethod
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
        repaired = _LONE_SURROGATE.sub(rb"\\ufffd", data)
        if repaired == data:
            raise
        return from_json(repaired)


def _quote(data: bytes) -> str:
    text = data[:_SHOWN].decode(errors="replace")
    return repr(text if len(data) <= _SHOWN else text + "...")
