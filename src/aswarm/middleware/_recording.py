"""Recording of completions in a file, and replay of the file, as middleware: for tests without a network."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from aswarm._runtime import seams
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object, shown
from aswarm.extensions import Accumulator, CompletionRequest, Handlers, Middleware

# Settings of the transport, which are not recorded. Headers may contain a key.
_NOT_RECORDED = frozenset({"extra_headers", "extra_query", "stream", "stream_options", "timeout"})
_OPAQUE = frozenset({"id", "tool_call_id", "call_id", "encrypted_content", "signature", "thought_signature"})
_SHOWN = 60
_USED = "all recorded answers to it were used"


def record(path: str | PathLike[str]) -> Middleware:
    """Return middleware that records each request and its completion in a file, as one line of JSON.

    The first request makes the file, with its folder, or replaces it. Headers are not recorded. Messages are recorded as they are sent. Failed or
    interrupted completions are not recorded. The functions of tools run as always, even in `replay`. If the file cannot be
    written, the run ends with a ConfigurationError. If the file cannot be created, no request is sent.
    """
    recording = _Recording(Path(path))

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            await seams.run_sync(recording.start)
            question, received = question_of(request.body), list[Mapping[str, Any]]()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    received.append(chunk)
                    yield chunk
            entry = {"request": question, "completion": as_one_chunk(received)}
            await seams.run_sync(recording.write, "ab", json.dumps(entry, default=to_jsonable_python) + "\n")

        return replace(handlers, complete=complete)

    return wrap


class _Recording:
    """The file of a recording. Its methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()  # several threads may call `start` at the same time
        self._has_started = False

    def start(self) -> None:
        with self._lock:
            if not self._has_started:
                self.write("wb", "")
                self._has_started = True

    def write(self, mode: Literal["wb", "ab"], text: str) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode, buffering=0) as file:  # one write for each line: runs record concurrently
                file.write(text.encode())
        except OSError as error:
            raise ConfigurationError(f"the recording {self._path} cannot be written: {error.strerror}") from error


def replay(path: str | PathLike[str]) -> Middleware:
    """Return middleware that answers from a recording of `record`, and never sends a request.

    Equal requests are answered in the order of their recording. Ids, signatures and encrypted reasoning are compared by their
    order in the request: if two runs start with the same request, each may get the other's answer. If the recording has no
    answer to a request, or no further answer, the run ends with a ConfigurationError. It names the line of the most similar
    request, and the first difference. A stream gets its answer in one piece.

    Raises ConfigurationError for a file that cannot be read, with the line of the fault.
    """
    entries = _read(path)
    recorded = [_with_numbered_ids(entry["request"]) for entry in entries]
    answers: dict[str, deque[Mapping[str, Any]]] = defaultdict(deque)
    for question, entry in zip(recorded, entries, strict=True):
        answers[_key(question)].append(entry["completion"])

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            question = _with_numbered_ids(question_of(request.body))
            if not (left := answers.get(_key(question))):
                # In a thread, because the comparison with a long recording would block the event loop.
                why = _USED if left is not None else await seams.run_sync(_why_not, recorded, question)
                raise ConfigurationError(f"{path} has no answer to this request: {why}. Record it again with record()")
            yield left.popleft()

        return replace(handlers, complete=complete)

    return wrap


def _key(question: Mapping[str, Any]) -> str:
    return json.dumps(question, sort_keys=True)


def _with_numbered_ids(question: dict[str, Any]) -> dict[str, Any]:
    """Return a request with a number in place of each text that only its provider understands, in order of appearance."""
    numbers: dict[str, str] = {}

    def numbered(value: Any) -> Any:
        if is_array(value):
            return [numbered(item) for item in value]
        if not is_object(value):
            return value
        opaque = {key for key in _OPAQUE & value.keys() if type(value[key]) is str}
        return {
            key: numbers.setdefault(value[key], f"id {len(numbers)}") if key in opaque else numbered(value[key])
            for key in sorted(value)
        }

    return {**question, **{key: numbered(question[key]) for key in ("messages", "input") if key in question}}


def question_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a request's body that affects the answer. Raises ValueError for a value that is not JSON."""
    question: dict[str, Any] = to_jsonable_python({key: body[key] for key in sorted(body) if key not in _NOT_RECORDED})
    return question


def _read(path: str | PathLike[str]) -> list[dict[str, Any]]:
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
        return [_entry(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"the recording {path} cannot be read: {reason}") from error


def _entry(line: str, number: int) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise ValueError(f"line {number} is nested too deep") from error
    if not (is_object(entry) and is_object(entry.get("request")) and is_object(entry.get("completion"))):
        raise ValueError(f"line {number} is not an object with a request and a completion")
    return dict(entry)


def _why_not(recorded: list[dict[str, Any]], question: dict[str, Any]) -> str:
    if not recorded:
        return "the recording is empty"
    line, nearest = max(enumerate(recorded, 1), key=lambda numbered: _similarity(numbered[1], question))
    return f"the most similar request is in line {line}, but {_difference(nearest, question)}"


def _similarity(recorded: Any, current: Any) -> int:
    """Return the number of equal values in the same places of two requests."""
    if is_object(recorded) and is_object(current):
        return sum(_similarity(recorded[key], current[key]) for key in recorded if key in current)
    if is_array(recorded) and is_array(current):
        return sum(map(_similarity, recorded, current))
    return int(recorded == current)


def _difference(recorded: Any, current: Any, place: str = "the request") -> str:
    """Return the first difference of two requests, with both values; empty if they are equal."""
    if is_object(recorded) and is_object(current):
        keys = [*recorded, *(key for key in current if key not in recorded)]
        differences = (_difference(recorded.get(key), current.get(key), f"{place}[{key!r}]") for key in keys)
        return next(filter(None, differences), "")
    if is_array(recorded) and is_array(current):
        pairs = zip(recorded, current, strict=False)
        differences = (_difference(*pair, f"{place}[{at}]") for at, pair in enumerate(pairs))
        lengths = f"{place} has {len(current)} items, and {len(recorded)} in the recording"
        return next(filter(None, differences), "" if len(recorded) == len(current) else lengths)
    if recorded == current:
        return ""
    return f"{place} is {shown(current, _SHOWN)}, and {shown(recorded, _SHOWN)} in the recording"


# --- whole completions: the chunks of one completion as one chunk ---


def as_one_chunk(chunks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a completion as one chunk. Every accumulator makes the same message from this chunk.

    A single whole chunk is returned unchecked, with all its keys. Raises CompletionError if the chunks are not a completion.
    """
    if len(chunks) == 1 and _is_complete(chunks[0]):
        return chunks[0]
    accumulator = Accumulator()
    for chunk in chunks:
        accumulator.feed(chunk)
    return accumulator.finish().as_chunk()


def _is_complete(chunk: Mapping[str, Any]) -> bool:
    """Return whether the chunk is a whole completion with all call ids. Each reader would make another id for a missing id."""
    message = whole_message(chunk)
    calls: Any = () if message is None else message.get("tool_calls") or ()
    return message is not None and is_array(calls) and all(is_object(call) and bool(call.get("id")) for call in calls)


def whole_message(chunk: object) -> Mapping[str, Any] | None:
    """Return the message of a chunk that is a whole completion with one choice; None for any other chunk."""
    if not is_object(chunk) or chunk.get("error"):
        return None
    choices = chunk.get("choices")
    choice = choices[0] if is_array(choices) and len(choices) == 1 else None
    if not is_object(choice) or choice.get("error") or choice.get("index") not in (None, 0) or choice.get("delta"):
        return None
    message = choice.get("message")
    return message if message and is_object(message) else None
