"""Plays recorded answers of providers over a socket, and compares what aswarm reads with the decoder. Exits with 1 after a fault.

    python -m tests.support.recorded.suite FOLDER [SEED]

FOLDER has `openai.jsonl.gz` and `anthropic.jsonl.gz`: one JSON object a line with `id`, `api`, `stream`, `request`, `status`,
`content_type`, `body` and `follow_up_of`. Each recording is played in one burst and in random pieces, and one of each shape on all
paths. A random part of each stream must be an error. Each follow-up is built from the message of the recording that it follows.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio.to_thread
import trio

from tests.support.recorded.comparison import differences
from tests.support.recorded.decoder import Answer, Json, decode
from tests.support.recorded.follow_ups import follow_up_differences
from tests.support.recorded.player import Player, is_stream, player, recordings, shape
from tests.support.recorded.reading import PATHS, PATHS_OF_CLAUDE, read, read_blocking

_SHOWN = 300


class Report:
    """The differences so far. `faults`: a line for each."""

    def __init__(self) -> None:
        self.plays = 0
        self.reasons: Counter[str] = Counter()
        self.faults: list[str] = []

    def add(self, recording: Json, path: str, found: list[tuple[str, Any, Any, str | None]]) -> None:
        self.plays += 1
        for name, want, got, reason in found:
            self.reasons[reason or "a fault"] += 1
            if reason is None:
                head = f"{recording['id']} {recording['provider']} {recording['api']}, {path}: {name}"
                self.faults.append(f"{head}\n  decoder: {str(want)[:_SHOWN]!r}\n  aswarm:  {str(got)[:_SHOWN]!r}")

    def show(self, name: str, seconds: float) -> None:
        print(f"{name}: {self.plays} plays in {seconds:.0f} s, {len(self.faults)} faults")
        for reason, count in self.reasons.most_common():
            print(f"  {count:5} {reason}")
        print("\n".join(self.faults))


async def play(server: Player, recording: Json, path: str, seed: int) -> tuple[Answer, Any]:
    """Return what aswarm reads on a path, and its message."""
    streamed = is_stream(recording) or bool(recording["stream"])
    url, api = server.url(recording, seed), recording["api"]
    model = "claude-opus-5" if api == "messages" else "gpt-4o"
    if path == "blocking":
        return await anyio.to_thread.run_sync(lambda: read_blocking(url, api, streamed=streamed, model=model))
    return await read(path, url, api, streamed=streamed, model=model)


def paths_of(recording: Json) -> tuple[str, ...]:
    """Return all paths for an API."""
    return PATHS_OF_CLAUDE if recording["api"] == "messages" else PATHS


async def play_all(server: Player, played: list[Json], seed: int, report: Report) -> None:
    """Play each recording twice, and its follow-up; one of each shape on all paths of asyncio."""
    shapes: set[Any] = set()
    messages: dict[str, Any] = {}
    for number, recording in enumerate(played):
        want = decode(recording["api"], recording["body"], recording["status"])
        for pieces in (0, seed + number):
            got, message = await play(server, recording, "httpx", pieces)
            report.add(recording, f"pieces {pieces}" if pieces else "one burst", differences(recording, want, got))
        messages[recording["id"]] = message
        if is_stream(recording) and (recording["status"] or 200) < 400:
            await play_cut(server, recording, seed + number, report)
        if (made := shape(recording)) not in shapes:
            shapes.add(made)
            for path in paths_of(recording):
                if path != "httpx" and not path.endswith("trio"):
                    got, _ = await play(server, recording, path, seed + number)
                    report.add(recording, path, differences(recording, want, got))
        if recording["earlier"] and messages.get(recording["earlier"]["id"]):
            found = await follow_up_differences(server, recording, messages[recording["earlier"]["id"]])
            report.add(recording, "follow-up", found)


async def play_cut(server: Player, recording: Json, seed: int, report: Report) -> None:
    """Play a part of a stream, up to a boundary of events. A part must never pass for a whole answer."""
    parts = recording["body"].split("\n\n")
    kept = random.Random(seed).randrange(1, len(parts)) if len(parts) > 1 else 0
    part = {**recording, "id": f"{recording['id']}-", "body": "\n\n".join([": cut", *parts[:kept], ""])}
    want = decode(part["api"], part["body"])
    got, _ = await play(server, part, "httpx", seed)
    passes = want.error and not got.error and not differences(part, want, got)[0][3]
    report.add(recording, f"{kept} of {len(parts)} events", [("error", want.error, got.error, None)] if passes else [])


async def play_on_trio(server: Player, played: list[Json], seed: int, report: Report) -> None:
    """Play one recording of each shape on the paths of trio."""
    one_each = {shape(recording): recording for recording in reversed(played)}
    for recording in one_each.values():
        want = decode(recording["api"], recording["body"], recording["status"])
        for path in paths_of(recording):
            if path.endswith("trio"):
                got, _ = await play(server, recording, path, seed)
                report.add(recording, path, differences(recording, want, got))


def main(folder: Path, seed: int) -> int:
    missing = [name for name in ("openai.jsonl.gz", "anthropic.jsonl.gz") if not (folder / name).exists()]
    if missing:
        print(f"missing in {folder}: {', '.join(missing)}. It needs recordings in the form of this module's docstring.")
    faults = 0
    for name in ("openai", "anthropic"):
        if f"{name}.jsonl.gz" in missing:
            continue
        played, report, begun = recordings(folder / f"{name}.jsonl.gz"), Report(), time.monotonic()
        with player() as server:
            asyncio.run(play_all(server, played, seed, report))
            trio.run(play_on_trio, server, played, seed, report)
        report.show(f"{name}, seed {seed}", time.monotonic() - begun)
        faults += len(report.faults)
    return 1 if faults or missing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
