"""Python frames that start or resume, by package: a served message, a stored conversation, a durable run.

Each has two completions, one call, and an answer of one delta. A profile function in all threads counts; the first rounds warm up. The
second line of each is the work after the last byte, or after the result: all frames of one second, minus an idle second.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import common

import aswarm
from aswarm.testing import ScriptedModel, call

PACKAGES = ("aswarm", "dbos", "sqlalchemy")
_WARM, _ROUNDS = 3, 9
_ANSWER = "It is sunny."
Once = Callable[[int], Awaitable[object]]


class Frames:
    """A profile function that counts if `is_counting`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_counting = False
        self._packages: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count a frame that starts or resumes."""
        if self.is_counting and event == "call":
            code = frame.f_code
            if code not in self._packages:
                self._packages[code] = _package(code.co_filename)
            if package := self._packages[code]:
                self.counts[package] += 1

    async def count(self, work: Awaitable[object], seconds: float = 0) -> Counter[str]:
        """Return the frames of the work, or of the given seconds if they are longer."""
        self.counts, self.is_counting = Counter(), True
        timer = asyncio.create_task(asyncio.sleep(seconds))
        await work
        if seconds:
            await timer
        self.is_counting = False
        return self.counts


def _package(path: str) -> str | None:
    if path.startswith(str(Path(aswarm.__file__).parent / "testing")):
        return None
    if path.startswith(str(Path(aswarm.__file__).parent)):
        return "aswarm"
    return next((name for name in PACKAGES[1:] if f"site-packages/{name}/" in path), None)


async def count(once: Once, frames: Frames) -> dict[str, list[int]]:
    """Return the counts of each round, by package: up to the result, and in a second minus an idle second."""
    for at in range(_WARM):
        await once(at)
    found: dict[str, list[int]] = {}
    for at in range(_WARM, _WARM + _ROUNDS):
        await asyncio.sleep(0.3)
        for name, number in (await frames.count(once(at))).items():
            found.setdefault(name, []).append(number)
    for at in range(_ROUNDS):
        await asyncio.sleep(0.3)
        idle = await frames.count(asyncio.sleep(0), seconds=1)
        busy = await frames.count(once(at + 100), seconds=1)
        for name in busy:
            found.setdefault(f"{name}, a second less an idle one", []).append(busy[name] - idle[name])
    return found


def _client() -> Any:
    def answer(request: Any) -> Any:
        last = request.messages[-1]["role"]
        return call("get_weather", city="Oslo") if last == "user" else _ANSWER

    return ScriptedModel(answer).client()


async def served(frames: Frames, folder: Path) -> dict[str, list[int]]:
    """Count from POST to the last byte of the answer."""
    async with common.serving(folder / "served.db", _client()) as app:
        return await count(
            lambda at: common.request(app, "POST", f"/conversations/c{at}/runs", {"text": "Oslo?"}), frames
        )


async def conversation(frames: Frames, folder: Path) -> dict[str, list[int]]:
    """Count `Conversation.run`."""
    from aswarm.conversations import Conversation, SQLiteStore  # noqa: PLC0415 - not every figure needs it

    async with aswarm.AsyncSwarm(client=_client()) as swarm, SQLiteStore(folder / "conversations.db") as store:
        return await count(lambda at: Conversation(store, f"c{at}", swarm, agent=common.WEATHER).run("Oslo?"), frames)


async def durable(frames: Frames, folder: Path) -> dict[str, list[int]]:
    """Count a durable run, from `start` to its result."""
    async with common.durable(f"sqlite:///{folder}/durable.db", _client()) as runs:

        async def once(_: int) -> None:
            await (await runs.start("weather", "Oslo?")).result()

        return await count(once, frames)


def counts(name: str) -> dict[str, list[int]]:
    """Count in this process."""
    frames = Frames()
    threading.setprofile(frames)
    sys.setprofile(frames)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(globals()[name](frames, Path(folder)))


def measure(_: Any) -> None:
    """Print a line for each system and package."""
    titles = {"served": "POST to the last byte", "conversation": "Conversation.run", "durable": "durable run, SQLite"}
    for name, title in titles.items():
        for package, numbers in common.child("frames:counts", name).items():
            common.line(f"frames, {title}: {package}", numbers)
