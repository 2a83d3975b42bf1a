"""Recording completions to a file, and answering from it, as middleware: for tests without a network."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import anyio.to_thread
from pydantic_core import to_jsonable_python

from aswarm._errors import ConfigurationError
from aswarm._json import is_object
from aswarm._run.handlers import Handlers, Middleware
from aswarm._wire.request import CompletionRequest
from aswarm._wire.whole import as_one_chunk

from ._requests import asked_by, difference, likeness

_USED = "all recorded answers to it were used"


def record(path: str | PathLike[str]) -> Middleware:
    """Middleware that writes each request and its completion to a recording: a file with a line of JSON for each.

    The first request replaces a file that is there already. Headers are not recorded; the messages are, as they are sent.
    A completion that fails, or is left before its end, is not recorded. Functions of tools run as always, here and in
    `replay`. A file that cannot be written ends the run with a ConfigurationError: if it cannot be made, before anything is
    asked.
    """
    recording = _Recording(Path(path))

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            await anyio.to_thread.run_sync(recording.begin)
            asked, received = asked_by(request.body), list[Mapping[str, Any]]()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    received.append(chunk)
                    yield chunk
            entry = {"request": asked, "completion": as_one_chunk(received)}
            await anyio.to_thread.run_sync(recording.append, json.dumps(entry, default=to_jsonable_python) + "\n")

        return replace(handlers, complete=complete)

    return wrap


class _Recording:
    """The file of a recording. Its methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()  # runs begin at the same time, each in a thread
        self._has_begun = False

    def begin(self) -> None:
        with self._lock:
            if not self._has_begun:
                self._write("wb", "")
                self._has_begun = True

    def append(self, line: str) -> None:
        self._write("ab", line)

    def _write(self, mode: Literal["wb", "ab"], text: str) -> None:
        try:
            with self._path.open(mode, buffering=0) as file:  # one write for a line: runs record at the same time
                file.write(text.encode())
        except OSError as error:
            raise ConfigurationError(f"the recording {self._path} cannot be written: {error.strerror}") from error


def replay(path: str | PathLike[str]) -> Middleware:
    """Middleware that answers from a recording of `record`, and never sends a request.

    Equal requests are answered in the order in which they were recorded. A request that is not in the recording, or was
    asked more often, ends the run with a ConfigurationError. It names the line of the recorded request that is most like
    it, and says in what the two differ. Streams get their answer in one piece.

    Raises ConfigurationError for a file that cannot be read.
    """
    entries = _read(path)
    recorded: list[dict[str, Any]] = [entry["request"] for entry in entries]
    answers: dict[str, deque[Mapping[str, Any]]] = defaultdict(deque)
    for entry in entries:
        answers[_key(entry["request"])].append(entry["completion"])

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            asked = asked_by(request.body)
            if not (left := answers.get(_key(asked))):
                # In a thread: a long recording takes long to compare.
                why = _USED if left is not None else await anyio.to_thread.run_sync(_why_not, recorded, asked)
                raise ConfigurationError(f"{path} has no answer to this request: {why}. Record it again with record()")
            yield left.popleft()

        return replace(handlers, complete=complete)

    return wrap


def _key(asked: Mapping[str, Any]) -> str:
    """A text that is the same for equal requests."""
    return json.dumps(asked, sort_keys=True)


def _read(path: str | PathLike[str]) -> list[dict[str, Any]]:
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
        return [_entry(line, number) for number, line in enumerate(lines, 1) if line]
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the recording {path} cannot be read: {error}") from error


def _entry(line: str, number: int) -> dict[str, Any]:
    entry = json.loads(line)
    if not (is_object(entry) and is_object(entry.get("request")) and is_object(entry.get("completion"))):
        raise ValueError(f"line {number} is not an object with a request and a completion")
    return dict(entry)


def _why_not(recorded: list[dict[str, Any]], asked: dict[str, Any]) -> str:
    if not recorded:
        return "the recording is empty"
    line, nearest = max(enumerate(recorded, 1), key=lambda numbered: likeness(numbered[1], asked))
    return f"it is most like the one in line {line}, but {difference(nearest, asked)}"
