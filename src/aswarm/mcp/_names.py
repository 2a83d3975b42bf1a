"""The name of a server in errors and logs.

Security: The name of a server in errors and logs contains no password, token or argument.
"""

from __future__ import annotations

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
