"""`aswarm batch --store URL`: each item is a durable run. Any process that shares the database may execute it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent, Response
from aswarm._values.errors import AswarmError
from aswarm._values.usage import Usage
from aswarm.batch import BatchResult, Item
from aswarm.batch._item import response_of
from aswarm.cli._load import extra

from .options import CommandOptions
from .readers import InputRecord

if TYPE_CHECKING:
    from aswarm.durable import DurableRuns
    from aswarm.runs import Run


@asynccontextmanager
async def durable_batch(
    swarm: AsyncSwarm, agent: Agent, items: AsyncIterable[Item], options: CommandOptions
) -> AsyncGenerator[AsyncGenerator[BatchResult, None]]:
    """Start the runs, and yield a generator of the outcomes. This process executes runs too."""
    with extra("durable", "durable runs need"):
        from aswarm.durable import DurableRuns  # noqa: PLC0415 - only once it is needed
        from aswarm.runs import Limits  # noqa: PLC0415 - as above
    limits, at_once = Limits(max_turns=options.max_turns), options.concurrency
    runs = DurableRuns(
        swarm, agents=agent, store=options.store, version=options.code_version, concurrency=at_once, limits=limits
    )
    async with runs:
        yield _DurableBatch(runs, agent, options).outcomes(items)


class _DurableBatch:
    """The runs of one batch. If the run of an item has failed in an earlier batch, the item gets another run."""

    def __init__(self, runs: DurableRuns, agent: Agent, options: CommandOptions) -> None:
        self._runs = runs
        self._agent = agent
        self._options = options
        self._items: dict[str, tuple[int, Item]] = {}  # run id: the position of the item, and the item
        self._is_stopped = False

    async def outcomes(self, items: AsyncIterable[Item]) -> AsyncGenerator[BatchResult, None]:
        """Run the items, and yield their outcomes when they finish."""
        context, at_once = self._options.context, self._options.concurrency
        async for run in self._runs.map(
            self._agent.name, self._with_ids(items), concurrency=at_once, context_variables=context
        ):
            outcome = await _outcome(await self._answered(run), *self._items.pop(run.id))
            self._is_stopped |= outcome.error is not None and self._options.on_error == "stop"
            yield outcome

    async def _with_ids(self, items: AsyncIterable[Item]) -> AsyncGenerator[Item, None]:
        index = 0
        async for item in items:
            if self._is_stopped:
                return
            run_id = await self._run_id(cast("InputRecord", item.metadata))
            self._items[run_id] = index, item
            index += 1
            yield replace(item, id=run_id)

    async def _run_id(self, record: InputRecord) -> str:
        """Return the id of the run for a line. The id is a hash, so a second batch finds the runs of the first batch.

        If the run with this id has failed, return another id.
        """
        from aswarm.runs import RunNotFound  # noqa: PLC0415 - only a durable batch needs the package

        named, failures = [self._agent.name, record.key, record.digest], 0
        while True:
            name = json.dumps([*named, failures] if failures else named)
            run_id = blake2b(name.encode(), digest_size=16).hexdigest()
            try:
                if (await self._runs.find_run(run_id)).record.status != "failed":
                    return run_id
            except RunNotFound:
                return run_id
            failures += 1

    async def _answered(self, run: Run) -> Run:
        """Return the last run of the conversation: this run, or a later run that answered its calls."""
        while run.record.reason in ("waiting", "continued"):
            (last,) = await self._runs.list(user=run.record.user, conversation=run.conversation, limit=1)
            if last.id == run.id:
                break
            run = await self._runs.find_run(last.id)
            await run.wait()
        return run


async def _outcome(run: Run, index: int, item: Item) -> BatchResult:
    record, line = run.record, cast("InputRecord", item.metadata)
    response: Response | None = None
    error: AswarmError | None = None
    try:
        response = await run.result()
    except AswarmError as failure:
        error = failure
    partial = response_of(response, error)
    return BatchResult(
        line.key,
        index,
        response,
        error,
        duration=((record.ended_ms or record.started_ms) - record.started_ms) / 1000,
        attempts=1,
        usage=Usage() if partial is None else partial.usage,
        metadata=item.metadata,
    )
