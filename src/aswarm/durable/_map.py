"""Starts a run for each of many items. All processes execute these runs.

If the caller stops reading, started runs continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from itertools import count
from typing import Any, TypeVar

from aswarm._values.errors import ConfigurationError
from aswarm._values.run_keywords import Messages
from aswarm.batch import Item

T = TypeVar("T")


async def run_all(
    items: AsyncIterator[tuple[str, Item]], run: Callable[[str, Item], Coroutine[Any, Any, T]], concurrency: int
) -> AsyncGenerator[T, None]:
    """Run the items concurrently, and yield each result when it is ready. `items`: pairs of a run id and an item."""
    reading: set[asyncio.Task[tuple[str, Item] | None]] = set()  # at most one task, which reads the next item
    running: set[asyncio.Task[T]] = set()
    is_open = True
    try:
        while is_open or running:
            if is_open and not reading and len(running) < concurrency:
                reading.add(asyncio.create_task(_next(items)))
            done, _ = await asyncio.wait({*running, *reading}, return_when=asyncio.FIRST_COMPLETED)
            for task in reading & done:
                reading.remove(task)
                if (item := task.result()) is None:
                    is_open = False
                else:
                    running.add(asyncio.create_task(run(*item)))
            for finished in running & done:
                running.remove(finished)
                yield finished.result()
    finally:
        remaining: list[asyncio.Task[Any]] = [*running, *reading]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def named(
    items: Iterable[Messages | Item] | AsyncIterable[Messages | Item],
    run_ids: Iterable[str] | Callable[[int], str] | None,
) -> AsyncGenerator[tuple[str, Item]]:
    """Yield pairs of a run id and an item. For the parameters, see `DurableRuns.map`."""
    ids = None if run_ids is None else map(run_ids, count()) if callable(run_ids) else iter(run_ids)
    async for value in items if isinstance(items, AsyncIterable) else _each(items):
        item = value if isinstance(value, Item) else Item(value)
        yield _id_of(item, ids), item


def _id_of(item: Item, ids: Iterator[str] | None) -> str:
    if item.resume is not False:
        raise ConfigurationError("an item of map cannot have resume=; call answer() of the waiting run")
    run_id = item.id if ids is None else next(ids, None)
    if run_id is None:
        raise ConfigurationError("map needs an id for each item: pass run_ids=, or Item(..., id=...)")
    return str(run_id)


async def _each(items: Iterable[Messages | Item]) -> AsyncGenerator[Messages | Item]:
    for item in items:
        yield item
