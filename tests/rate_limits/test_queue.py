"""The queue of the requests that wait in one event loop."""

from __future__ import annotations

import pytest

from aswarm._rate_limits.rate_limiter import WaitQueue

pytestmark = pytest.mark.anyio


async def test_the_lower_number_is_first_and_of_equal_numbers_the_one_that_came_first() -> None:
    """A request that yields has the number of the last request that goes before it, and is behind it."""
    queue = WaitQueue()
    second, first = queue.join(7), queue.join(3)
    behind = queue.join(queue.number_behind(2))
    assert (behind.number, queue.is_first(first)) == (7, True)
    queue.remove(first)
    assert queue.is_first(second)


@pytest.mark.parametrize("leaving", [0, 1])
async def test_a_request_that_leaves_takes_no_other_with_it(leaving: int) -> None:
    """This holds for equal numbers too: the other request is first then, and is woken."""
    queue = WaitQueue()
    waiting = [queue.join(7), queue.join(7)]
    gone = waiting.pop(leaving)
    assert queue.remove(gone)
    assert queue.is_first(waiting[0])
    assert waiting[0].wake.is_set()
    assert not queue.remove(waiting[0])
