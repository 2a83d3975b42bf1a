"""Recordings of providers, and a server on loopback that plays them: in one burst, or in pieces of random sizes."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.recorded.decoder import Json, events

_SIZES = (1, 2, 3, 7, 20, 100, 1000)


def recordings(file: Path) -> list[Json]:
    """Return the recordings of a file, in order; `earlier` is the recording that a recording follows, or None."""
    by_id: dict[str, Json] = {}
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            recording = json.loads(line)
            recording["earlier"] = by_id.get(recording["follow_up_of"])
            by_id[recording["id"]] = recording
    return [*by_id.values()]


def is_stream(recording: Json) -> bool:
    """Whether the body has server-sent events."""
    return str(recording["body"]).lstrip()[:6].startswith(("data:", "event:", ":", "id:"))


def shape(recording: Json) -> tuple[object, ...]:
    """Return what makes two answers alike for a reader: API, status, and the paths of keys with the kinds of their values."""
    body = recording["body"]
    paths: set[str] = set()
    with suppress(ValueError):
        for value in events(body) if is_stream(recording) else [json.loads(body)]:
            _collect(value, "", paths)
    return recording["api"], recording["stream"], recording["status"], frozenset(paths)


def _collect(value: Any, path: str, into: set[str]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _collect(inner, f"{path}.{key}", into)
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, f"{path}[]", into)
    else:
        word = value if path.endswith((".type", ".finish_reason", ".stop_reason", ".status")) else ""
        into.add(f"{path} {type(value).__name__} {word}")


class Player:
    """A server of several recordings. `url(recording, seed)`: the address of a recording; the seed cuts it into pieces.

    `requests`: the bodies that arrived, by the id of the recording.
    """

    def __init__(self) -> None:
        self._recordings: dict[str, Json] = {}
        self._port = 0
        self.requests: dict[str, list[Any]] = {}

    def url(self, recording: Json, seed: int = 0) -> str:
        self._recordings[recording["id"]] = recording
        self.requests.pop(recording["id"], None)
        return f"http://127.0.0.1:{self._port}/{recording['id']}/{seed}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *lines = head.decode("latin-1").split("\r\n")
                fields = {
                    name.strip().lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)
                }
                sent = await reader.readexactly(int(fields.get("content-length", 0)))
                _, name, seed, *_ = line.split()[1].split("/")
                self.requests.setdefault(name, []).append(json.loads(sent))
                # The client continues a paused answer. The recording has only its first part.
                again = len(self.requests[name]) > 1 and '"pause_turn"' in self._recordings[name]["body"]
                await _answer(writer, _ended(self._recordings[name]) if again else self._recordings[name], int(seed))
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def player() -> Iterator[Player]:
    """Run a player in a thread, until the block ends."""
    made, loop = Player(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(made._serve, "127.0.0.1", 0), loop).result()
        made._port = server.sockets[0].getsockname()[1]
        yield made
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _ended(recording: Json) -> Json:
    message = {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": {}}
    events = [{"type": "message_start", "message": message}, {"type": "message_stop"}]
    body = (
        "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
        if is_stream(recording)
        else json.dumps(message)
    )
    return {**recording, "body": body}


async def _answer(writer: asyncio.StreamWriter, recording: Json, seed: int) -> None:
    guess = "text/event-stream" if is_stream(recording) else "application/json"
    lines = [f"HTTP/1.1 {recording['status'] or 200} Recorded", f"content-type: {recording['content_type'] or guess}"]
    for key, name in (("retry_after", "retry-after"), ("should_retry", "x-should-retry")):
        if recording.get(key) is not None:
            lines.append(f"{name}: {recording[key]}")
    writer.write("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode())
    for piece in _pieces(recording["body"].encode(), seed):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if seed:
            await writer.drain()
            await asyncio.sleep(0)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _pieces(body: bytes, seed: int) -> Iterator[bytes]:
    rng, at = random.Random(seed), 0
    while at < len(body):
        size = rng.choice(_SIZES) if seed else len(body)
        yield body[at : at + size]
        at += size
