"""Recording completions to a file, and answering from it, as middleware: for tests without a network."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic_core import to_jsonable_python

from aswarm._errors import ConfigurationError
from aswarm._run.handlers import Handlers, Middleware
from aswarm._wire.request import CompletionRequest
from aswarm._wire.whole import as_one_chunk

from ._requests import asked_by, difference, likeness


def record(path: str | PathLike[str]) -> Middleware:
    """Middleware that writes each request and its completion to a recording: a file with a line of JSON for each.

    The first request replaces a file that is there already. Headers are not recorded; the messages are, as they are sent.
    A completion that fails, or is left before its end, is not recorded. Functions of tools run as always, here and in
    `replay`. A file that cannot be written ends the run with a ConfigurationError, before anything is asked.
    """
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        try:
            if not has_begun:
                Path(path).write_bytes(b"")
        except OSError as error:
            raise ConfigurationError(f"the recording {path} cannot be written: {error.strerror}") from error
        has_begun = True

    def append(line: str) -> None:
        with Path(path).open("ab", buffering=0) as file:  # one write for a line: runs record at the same time
            file.write(line.encode())

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            begin()
            asked, received = asked_by(request.body), list[Mapping[str, Any]]()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    received.append(chunk)
                    yield chunk
            entry = {"request": asked, "completion": as_one_chunk(received)}
            await anyio.to_thread.run_sync(append, json.dumps(entry, default=to_jsonable_python) + "\n")

        return replace(handlers, complete=complete)

    return wrap


def replay(path: str | PathLike[str]) -> Middleware:
    """Middleware that answers from a recording of `record`, and never sends a request.

    Equal requests are answered in the order in which they were recorded. A request that is not in the recording, or was
    asked more often, ends the run with a ConfigurationError. It names the line of the recorded request that is most like
    it, and says in what the two differ. Streams get their answer in one piece.

    Raises ConfigurationError for a file that cannot be read.
    """
    recorded = _read(path)
    left = list(recorded)

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            asked = asked_by(request.body)
            entry = next((entry for entry in left if entry["request"] == asked), None)
            if entry is None:
                why = _why_not([each["request"] for each in recorded], asked)
                raise ConfigurationError(f"{path} has no answer to this request: {why}. Record it again with record()")
            left.remove(entry)
            yield entry["completion"]

        return replace(handlers, complete=complete)

    return wrap


def _read(path: str | PathLike[str]) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n") if line]
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the recording {path} cannot be read: {error}") from error


def _why_not(recorded: list[dict[str, Any]], asked: dict[str, Any]) -> str:
    if not recorded:
        return "the recording is empty"
    if asked in recorded:
        return "all recorded answers to it were used"
    line, nearest = max(enumerate(recorded, 1), key=lambda numbered: likeness(numbered[1], asked))
    return f"it is most like the one in line {line}, but {difference(nearest, asked)}"
