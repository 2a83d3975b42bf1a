"""The line of those who wait for their turn."""

from __future__ import annotations

import pytest

from aswarm._rate_limits.queue import Line

pytestmark = pytest.mark.anyio


async def test_the_lower_number_is_first_and_of_the_same_who_came_first() -> None:
    """A request that lets others by has the number of the last of them, and is behind it."""
    line = Line()
    second, first = line.join(7), line.join(3)
    behind = line.join(line.behind(2))
    assert (behind.number, line.is_first(first)) == (7, True)
    line.leave(first)
    assert line.is_first(second)


@pytest.mark.parametrize("leaving", [0, 1])
async def test_who_gives_up_leaves_the_place_of_nobody_else(leaving: int) -> None:
    """Also where another one has the same number: that one is first then, and is woken."""
    line = Line()
    waiting = [line.join(7), line.join(7)]
    gone = waiting.pop(leaving)
    assert line.leave(gone)
    assert line.is_first(waiting[0])
    assert waiting[0].wake.is_set()
    assert not line.leave(waiting[0])
