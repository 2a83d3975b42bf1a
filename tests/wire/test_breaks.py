"""Rows of `wire-cases.md`, end to end in all three ways to run: errors inside answers, streams that break."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm, CompletionError
from aswarm.errors import StreamInterrupted
from aswarm.testing import Failure, RawAnswer
from tests.support.providers.loopback import Reply, serve
from tests.support.wire.wire_bodies import ERRORS, NO_ANSWERS
from tests.support.wire.wire_cases import HALF, Json, end, sse, text, watch, ways

pytestmark = pytest.mark.asyncio

# --- answers of a server ----------------------------------------------------------------------------------------------


class Breaking(Sequence[bytes]):
    """Pieces of a body whose connection then breaks."""

    def __init__(self, pieces: Sequence[bytes], error: Exception) -> None:
        self._pieces, self._error = pieces, error

    def __len__(self) -> int:
        return len(self._pieces) + 1

    def __getitem__(self, index: Any) -> Any:
        return self._pieces[index]

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        raise self._error


# --- streams that break -----------------------------------------------------------------------------------------------


@ways
@pytest.mark.parametrize("case", ERRORS)
async def test_errors_inside_an_answer(case: str, way: str) -> None:
    """An error inside an answer raises a CompletionError with its message and code; the text so far is kept."""
    seen = await watch(way, [RawAnswer(ERRORS[case])])
    assert seen.error is not None
    assert not isinstance(seen.error, StreamInterrupted)
    assert "the model is overloaded" in str(seen.error)
    assert (seen.error.status_code, seen.error.retryable) == (503, True)
    assert seen.partial == ("" if case in ("32 first", "32 as a JSON body") else "Hel")
    assert (seen.response.messages, seen.response.stop) == ([], "error")


BROKEN: dict[str, tuple[Sequence[bytes], str]] = {
    **NO_ANSWERS,
    "connection reset": (Breaking(HALF, httpx.ReadError("reset by peer")), "Hello"),
    "closed before the end": (Breaking(HALF, httpx.RemoteProtocolError("incomplete chunked read")), "Hello"),
    "stall": (Breaking(HALF, httpx.ReadTimeout("no data")), "Hello"),
    "reset before the first byte": (Breaking([], httpx.ReadError("reset by peer")), ""),
}


@ways
@pytest.mark.parametrize("case", BROKEN)
async def test_answers_that_break(case: str, way: str) -> None:
    """An answer that breaks off or cannot be read raises an error instead of giving an empty answer; a stream raises
    StreamInterrupted, and keeps the text so far."""
    pieces, partial = BROKEN[case]
    seen = await watch(way, [RawAnswer(pieces)])
    assert isinstance(seen.error, CompletionError)
    if way != "run":
        assert isinstance(seen.error, StreamInterrupted)
        assert (seen.error.retryable, seen.partial) == (True, partial)
    assert (seen.response.messages, seen.response.stop) == ([], "error")


@ways
async def test_a_body_that_cannot_be_read_is_quoted(way: str) -> None:
    """35: if a body is not a completion, the error quotes it, because it is the only information about the fault."""
    for body in (b"<title>502 Bad Gateway</title>", b'{"detail": "502 Bad Gateway"}', b"502 Bad Gateway"):
        seen = await watch(way, [RawAnswer([body])])
        assert "502 Bad Gateway" in str(seen.error)


@ways
async def test_an_unknown_object_before_a_cut_is_quoted(way: str) -> None:
    """If a stream ends without a finish reason, the error quotes the object in it that is no chunk."""
    seen = await watch(way, [RawAnswer([*HALF, b'data: {"detail": "502 Bad Gateway"}\n\n'])])
    assert isinstance(seen.error, StreamInterrupted)
    assert "502 Bad Gateway" in str(seen.error)


LINES = {
    "llama.cpp's line": b'error: {"error": {"message": "failed to decode", "code": 500}}\n\n',
    "with a detail beside it": b'error: {"detail": "failed", "error": {"message": "failed to decode"}}\n\n',
    "a text": b"error: failed to decode\n\n",
    "without a field": b'{"error": {"message": "failed to decode"}}\n\n',
    "without a field, with spaces": b'{ "error": {"message": "failed to decode"}}\n\n',
    "in capitals": b"ERROR: failed to decode\n\n",
}


@ways
@pytest.mark.parametrize("case", LINES)
async def test_a_line_with_an_error(case: str, way: str) -> None:
    """A line with an error ends a stream: the StreamInterrupted has the server's text, and the text so far is kept."""
    seen = await watch(way, [RawAnswer([*HALF, LINES[case]])])
    assert isinstance(seen.error, StreamInterrupted)
    assert "the provider ended the stream with an error: failed to decode" in str(seen.error)
    assert (seen.error.retryable, seen.partial) == (True, "" if way == "run" else "Hello")


@ways
async def test_an_error_line_of_a_permanent_failure(way: str) -> None:
    """A StreamInterrupted with a status of a permanent failure is not retryable."""
    line = b'error: {"error": {"message": "the context is full", "code": 400}}\n\n'
    seen = await watch(way, [RawAnswer([*HALF, line])])
    assert isinstance(seen.error, StreamInterrupted)
    assert (seen.error.status_code, seen.error.retryable) == (400, False)


@ways
async def test_a_connection_that_is_cut_within_its_done(way: str) -> None:
    """Nothing is lost then, if the finish reason has arrived."""
    for cut in (b"data:", b"data: [", b"data: [DONE"):
        seen = await watch(way, [RawAnswer([*sse(*text("Hello"), *end(), done=False), cut])])
        assert (seen.error, seen.response.text) == (None, "Hello")


@ways
@pytest.mark.parametrize("finish", ["stop", None])
async def test_row_35_a_whole_completion_as_body(finish: str | None, way: str) -> None:
    """35: a whole JSON completion is accepted as the answer to a streamed request; it needs no finish reason."""
    message: Json = {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {"total_tokens": 4}}
    seen = await watch(way, [RawAnswer([json.dumps(body).encode()])])
    assert seen.error is None
    assert seen.response.messages == [{"role": "assistant", "content": "Hello", "sender": "A", "tool_calls": None}]
    assert seen.response.usage.total_tokens == 4


@ways
@pytest.mark.parametrize(
    "noise",
    [b": OPENROUTER PROCESSING\n\n", b":\n\n", b"data:\n\n", b"data: \n\n", b"\n", b"event: ping\ndata: {}\n\n"],
)
async def test_keep_alives(noise: bytes, way: str) -> None:
    """Comments, empty data and pings between the events are ignored."""
    pieces = [part for piece in sse(*text("Hel", "lo"), *end()) for part in (noise, piece)]
    seen = await watch(way, [RawAnswer([*pieces, noise])])
    assert seen.response.text == "Hello"


@ways
async def test_row_39_a_failed_generation(way: str) -> None:
    """39: Groq's 400 `tool_use_failed` is a retryable CompletionError; any other 400 is not retryable."""
    seen = await watch(way, [Failure(400, "Failed to call a function", code="tool_use_failed")])
    assert seen.error is not None
    assert (seen.error.status_code, seen.error.retryable) == (400, True)
    assert "Failed to call a function" in str(seen.error)
    seen = await watch(way, [Failure(400, "No.")])
    assert seen.error is not None
    assert not seen.error.retryable


async def test_an_answer_that_ended_is_whole_even_if_the_connection_is_not_closed_cleanly() -> None:
    """Nothing is read after [DONE], so a missing last chunk of HTTP is not an error."""

    def cut(_: object) -> Reply:
        body = b"".join(sse(*text("hello"), *end()))
        framed = b"%x\r\n%b\r\n" % (len(body), body)  # the chunk of length 0 is missing
        return Reply([framed], headers={"transfer-encoding": "chunked"})

    async with serve(cut) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        async with client, AsyncSwarm(client).stream(Agent(), "Hi") as run:
            async for _ in run:
                pass
    assert run.response.text == "hello"
    assert run.response.stop == "answer"
