"""What is told of a batch while it runs, and at its end."""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter
from collections.abc import Generator
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from aswarm import Usage
from aswarm.cli.batch import _progress
from aswarm.cli.batch._progress import Lines, Tally, duration, teller
from aswarm.cli.batch._threads import in_thread


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def tally(total: int | None = 100, seconds: float = 10, **more: Any) -> Tally:
    """A batch that has been running for so long."""
    return Tally(total, time.monotonic() - seconds, **more)


def test_durations() -> None:
    """Two units at most."""
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3599.7, 7800)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "1 h 0 min",
        "2 h 10 min",
    ]


def test_the_words() -> None:
    """Rate and time to go count what ran, not what was there before or is bad."""
    now = tally(statuses=Counter(answer=18, error=2), before=30, bad=10, usage=Usage(total_tokens=4321))
    assert (now.done, now.progress()) == (60, "60/100")
    assert now.words() == "2.0/s, 20 s left, 4,321 tokens, 2 failed, 10 bad lines"


def test_the_end_of_a_pipe_is_not_known() -> None:
    """Then there is no time to go; neither before anything has ended."""
    assert tally(None, statuses=Counter(answer=20)).words() == "2.0/s, 0 tokens, 0 failed"
    assert tally(None, statuses=Counter(answer=2000)).progress() == "2,000"
    assert tally().words() == "0.0/s, 0 tokens, 0 failed"


def test_more_than_was_counted() -> None:
    """A file that grew meanwhile takes no negative time."""
    assert tally(1, statuses=Counter(answer=20)).left == 0


def test_the_summary() -> None:
    """What came of the items, what was there before, and what it took."""
    now = tally(statuses=Counter(max_turns=1, answer=17, error=2, cancelled=1), before=3, usage=Usage(7, 5, 12, 4))
    assert now.summary() == [
        "21 items in 10 s (2.1/s): 17 answered, 1 cancelled, 2 failed, 1 ended by --max-turns",
        "3 were there before",
        "12 tokens (7 in, 5 out) in 4 completions",
    ]
    assert tally().summary()[0] == "0 items in 10 s (0.0/s): nothing to do"


def test_plain_lines() -> None:
    """Where there is no terminal: now and then a line; trouble at once, on one line, and not for ever."""
    stream = io.StringIO()
    with teller(Tally(2000), stream) as told:
        told.update()
        for number in range(25):
            told.trouble("bad lines", f"line {number}:\n\x1b[31mno")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["line 0: [31mno", "line 1: [31mno"]
    assert lines[19:] == ["line 19: [31mno", "(more bad lines are counted, and not told)"]
    stream = io.StringIO()
    lines_now = Lines(tally(2000, statuses=Counter(answer=1000)), stream, every=0)
    lines_now.update()
    assert stream.getvalue() == "1,000/2,000 done, 100.0/s, 10 s left, 0 tokens, 0 failed\n"


def test_a_bar_in_a_terminal() -> None:
    """With rich: a bar that moves, and what is told above it."""
    stream, now = Terminal(), Tally(4)
    with teller(now, stream) as told:
        now.statuses["answer"] += 4
        told.update()
        told.say("line 3: [bold]no")
    assert "4/4" in stream.getvalue()
    assert "━" in stream.getvalue()
    assert "line 3: [bold]no" in stream.getvalue()


def test_a_terminal_that_is_the_output_has_no_bar() -> None:
    """It would be drawn over the outcomes; nor is there one without rich."""
    with teller(Tally(4), Terminal(), bar=False) as told:
        assert isinstance(told, Lines)


def test_a_terminal_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain lines."""

    def nothing(_: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(_progress, "find_spec", nothing)
    with teller(Tally(4), Terminal()) as told:
        assert isinstance(told, Lines)


# --- reading in a thread ---


class Source:
    """A generator that notes how far it was read, and whether it was closed."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False

    def items(self, most: int, error: Exception | None = None) -> Generator[int]:
        try:
            while self.given < most:
                self.given += 1
                yield self.given
            if error is not None:
                raise error
        finally:
            self.closed = True


async def until_closed(source: Source) -> None:
    for _ in range(1000):
        if source.closed:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it was not closed")


@pytest.mark.asyncio
async def test_all_items_come_in_order() -> None:
    """And the generator is closed."""
    source = Source()
    assert [item async for item in in_thread(source.items(300))] == list(range(1, 301))
    await until_closed(source)


@pytest.mark.asyncio
async def test_only_so_many_are_read_ahead() -> None:
    """What is not taken is not read; leaving early closes the generator."""
    source = Source()
    items = in_thread(source.items(1000), ahead=5)
    assert await anext(items) == 1
    await asyncio.sleep(0.05)
    assert source.given <= 7
    await items.aclose()
    await until_closed(source)


@pytest.mark.asyncio
async def test_what_reading_raises() -> None:
    """It is raised where the items are asked for, after those before it."""
    items = in_thread(Source().items(1, OSError("gone")))
    assert await anext(items) == 1
    with pytest.raises(OSError, match="gone"):
        await anext(items)


def test_a_read_that_hangs_does_not_hold_the_end() -> None:
    """The event loop may end before the thread comes back with something."""
    source = Source()
    hanging = iter(lambda: time.sleep(0.05), None)

    def items() -> Generator[int]:
        try:
            for number, _ in enumerate(hanging):
                yield number
        finally:
            source.closed = True

    async def leave() -> None:
        numbers = in_thread(items())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(numbers)

    asyncio.run(leave())
    asyncio.run(until_closed(source))
