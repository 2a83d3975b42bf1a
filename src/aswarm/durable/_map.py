"""Runs of many items, in all processes together.

Decides how many runs are started at once, and which id an item has. A run that is started is not stopped when the caller leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from aswarm._errors import ConfigurationError
from aswarm._run.options import Messages
from aswarm.batch import Item

from ._durable_run import DurableRun

if TYPE_CHECKING:
    from ._durable_runs import DurableRuns

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What all items have in common, see `DurableRuns.map`."""

    agent: str
    run_ids: Iterable[str] | Callable[[int], str] | None
    concurrency: int
    context_variables: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, not {self.concurrency!r}")


async def run_all(
    runs: DurableRuns, plan: Plan, items: Iterable[Messages | Item] | AsyncIterable[Messages | Item]
) -> AsyncGenerator[DurableRun, None]:
    """Start a run for each item, and yield the runs as they end."""
    given = _named(items, plan.run_ids)
    reader: asyncio.Task[tuple[str, Item] | None] | None = None  # reads the next item
    running: set[asyncio.Task[DurableRun]] = set()
    is_open = True
    try:
        while is_open or running:
            if is_open and reader is None and len(running) < plan.concurrency:
                reader = asyncio.create_task(_next(given))
            done, _ = await asyncio.wait({*running, *_present(reader)}, return_when=asyncio.FIRST_COMPLETED)
            if reader is not None and reader in done:
                found, reader = reader.result(), None
                is_open = found is not None
                if found is not None:
                    running.add(asyncio.create_task(_ended(runs, plan, *found)))
            for ended in running & done:
                running.remove(ended)
                yield ended.result()
    finally:
        left: list[asyncio.Task[Any]] = [*running, *_present(reader)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _present(reader: asyncio.Task[T] | None) -> list[asyncio.Task[T]]:
    return [] if reader is None else [reader]


async def _next(given: AsyncIterator[T]) -> T | None:
    return await anext(given, None)


async def _ended(runs: DurableRuns, plan: Plan, run_id: str, item: Item) -> DurableRun:
    agent = plan.agent if item.agent is None else item.agent.name
    context = {**plan.context_variables, **(item.context_variables or {})}
    run = await runs.start(agent, item.messages, context, run_id=run_id)
    await run.wait()
    return run


async def _named(
    items: Iterable[Messages | Item] | AsyncIterable[Messages | Item],
    run_ids: Iterable[str] | Callable[[int], str] | None,
) -> AsyncGenerator[tuple[str, Item]]:
    """The items with the ids of their runs."""
    ids = None if run_ids is None else map(run_ids, count()) if callable(run_ids) else iter(run_ids)
    async for given in items if isinstance(items, AsyncIterable) else _each(items):
        item = given if isinstance(given, Item) else Item(given)
        yield _id_of(item, ids), item


def _id_of(item: Item, ids: Iterator[str] | None) -> str:
    if item.resume is not False:
        raise ConfigurationError("an item of map cannot have resume=; call answer() of the run that waits")
    run_id = item.id if ids is None else next(ids, None)
    if run_id is None:
        raise ConfigurationError("map needs an id for each item: pass run_ids=, or Item(..., id=...)")
    return str(run_id)


async def _each(items: Iterable[Messages | Item]) -> AsyncGenerator[Messages | Item]:
    for item in items:
        yield item
