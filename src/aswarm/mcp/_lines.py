"""An encoding for the output of a server process: UTF-8, decoded in whole lines.

The SDK reads 64 KiB at a time, appends them to the current line, and then searches the whole line again. So a line of 30 MB
blocks the event loop for seconds. This decoder passes only complete lines to the SDK.
"""

from __future__ import annotations

import codecs
from typing import Any

from mcp import StdioServerParameters

_NAME = "aswarm_utf_8_lines"


def readable(server: StdioServerParameters) -> StdioServerParameters:
    """Return the parameters with this encoding, unless the user has set another encoding.

    Bytes that are not UTF-8 become a replacement character, because an error would end the session.
    """
    ours: dict[str, Any] = {"encoding": _NAME, "encoding_error_handler": "replace"}
    return server.model_copy(update={key: value for key, value in ours.items() if key not in server.model_fields_set})


class _Lines(codecs.IncrementalDecoder):
    """Decodes whole lines, and keeps the unfinished line for the next read."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._rest: list[bytes] = []

    def decode(self, input: Any, final: bool = False) -> str:  # noqa: A002 - the names of the base class
        lines, newline, rest = bytes(input).rpartition(b"\n")
        if not (newline or final):
            self._rest.append(rest)
            return ""
        whole, self._rest = [*self._rest, lines, newline, *([rest] if final else [])], [] if final else [rest]
        return b"".join(whole).decode("utf-8", self.errors)

    def reset(self) -> None:
        self._rest = []


def _find(name: str) -> codecs.CodecInfo | None:
    if name != _NAME:
        return None
    return codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=_Lines, name=_NAME)


codecs.register(_find)
