"""The server that a user names: its name in errors and logs, and the encoding of the output of its process.

The SDK reads 64 KiB at a time, appends them to the current line, and then searches the whole line again. So a line of 30 MB
blocks the event loop for seconds. The decoder of this module passes only complete lines to the SDK.

Security: The name of a server in errors and logs contains no password, token or argument.
"""

from __future__ import annotations

import codecs
import re
from itertools import dropwhile
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from mcp import StdioServerParameters

from aswarm._values.errors import ConfigurationError

_LAUNCHERS = ("npx", "bunx", "pnpx", "uvx", "pipx", "node", "bun", "deno", "python")
_MAY_BE_SECRET = re.compile(r"=|://|\s")  # a setting, a URL, or code


def name_of(server: Any) -> str:
    """Return the name of the server without passwords, queries and arguments, because the model also reads error texts.

    Raises ConfigurationError for a text that is not a URL.
    """
    if isinstance(server, StdioServerParameters):
        return _program_of([server.command, *server.args])
    if isinstance(server, str):
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https"):
            raise ConfigurationError(
                f"an MCP server must be a URL that starts with https:// or http://, or StdioServerParameters(command=...), not {server!r}"
            )
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return str(getattr(server, "name", None) or getattr(server, "__qualname__", None) or type(server).__name__)


def _program_of(words: list[str]) -> str:
    """Return the name of the program of a command. For a launcher such as `npx`, add the package or the file that it starts."""
    if PurePath(words[0]).name == "env":
        words = [*dropwhile(lambda word: word.startswith("-") or "=" in word, words[1:])] or words[:1]
    command, *arguments = words
    if PurePath(command).stem.rstrip("0123456789.") not in _LAUNCHERS:
        return command
    launched = next((argument for argument in arguments if not argument.startswith("-")), "")
    return command if not launched or _MAY_BE_SECRET.search(launched) else f"{command} {launched}"


# --- the encoding: UTF-8, decoded in whole lines ------------------------------------------------------------------------

_ENCODING = "aswarm_utf_8_lines"


def readable(server: StdioServerParameters) -> StdioServerParameters:
    """Return the parameters with this encoding, unless the user has set another encoding.

    Bytes that are not UTF-8 become a replacement character, because an error would end the session.
    """
    ours: dict[str, Any] = {"encoding": _ENCODING, "encoding_error_handler": "replace"}
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
    if name != _ENCODING:
        return None
    return codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=_Lines, name=_ENCODING)


codecs.register(_find)
