"""Recording completions to a file, and answering from it, as middleware: for tests without a network."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import anyio

from aswarm._errors import ConfigurationError
from aswarm._run.handlers import Handlers, Middleware
from aswarm._wire.request import CompletionRequest
from aswarm._wire.whole import as_one_chunk

from ._requests import asked_by, difference


def record(path: str | PathLike[str]) -> Middleware:
    """Middleware that writes each request and its completion to a file, a line of JSON for each.

    A file that is there already is replaced. Headers are not recorded; the messages are, as they are sent. Functions of
    tools run as always, here and in `replay`. Raises ConfigurationError for a file that cannot be written.
    """
    try:
        Path(path).write_bytes(b"")
    except OSError as error:
        raise ConfigurationError(f"the recording {path} cannot be written: {error.strerror}") from error

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            asked, received = asked_by(request.body), list[Mapping[str, Any]]()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    received.append(chunk)
                    yield chunk
            line = json.dumps({"request": asked, "completion": as_one_chunk(received)})
            async with await anyio.open_file(path, "a", encoding="utf-8") as file:
                await file.write(f"{line}\n")

        return replace(handlers, complete=complete)

    return wrap


def replay(path: str | PathLike[str]) -> Middleware:
    """Middleware that answers from a file of `record`, and never sends a request.

    Equal requests are answered in the order in which they were recorded. A request that is not in the file, or was asked
    more often, ends the run with a ConfigurationError that says in what it differs. Streams get their answer in one piece.

    Raises ConfigurationError for a file that cannot be read.
    """
    left = deque(_read(path))

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            asked = asked_by(request.body)
            known = next((line for line in left if line["request"] == asked), None)
            if known is None:
                why = difference(left[0]["request"], asked) if left else "all recorded completions were used"
                raise ConfigurationError(f"{path} has no answer to this request: {why}. Record it again with record()")
            left.remove(known)
            yield known["completion"]

        return replace(handlers, complete=complete)

    return wrap


def _read(path: str | PathLike[str]) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n") if line]
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the recording {path} cannot be read: {error}") from error
