"""`aswarm batch --store`: each item is a durable run, which any process that shares the database executes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from aswarm._agent import Agent
from aswarm._errors import AswarmError
from aswarm._swarm import AsyncSwarm
from aswarm._text import how_to_install
from aswarm._usage import Usage
from aswarm.batch import Item, Outcome
from aswarm.cli._exits import SetupError

from ._options import CommandOptions
from ._records import InputRecord

if TYPE_CHECKING:
    from aswarm.durable import DurableRun


@asynccontextmanager
async def durable_batch(
    swarm: AsyncSwarm, agent: Agent, items: AsyncIterable[Item], options: CommandOptions
) -> AsyncGenerator[AsyncGenerator[Outcome, None]]:
    """The outcomes of the items. This process executes runs too."""
    try:
        from aswarm.durable import DurableRuns  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise SetupError(f"durable runs need the package {error.name}: {how_to_install('durable')}") from error
    at_once, version = cast("int", options.concurrency), cast("str", options.code_version)
    runs = DurableRuns(swarm, agents=agent, store=cast("str", options.store), version=version, concurrency=at_once)
    runs.limits = runs.drivers.limits = replace(runs.limits, max_turns=options.max_turns)
    began: dict[str, tuple[int, Item]] = {}

    async def named() -> AsyncGenerator[Item, None]:
        async for item in items:
            run_id = _run_id(agent, cast("InputRecord", item.metadata))
            began[run_id] = len(began), item
            yield replace(item, id=run_id)

    async def outcomes() -> AsyncGenerator[Outcome, None]:
        async for run in runs.map(agent.name, named(), concurrency=at_once, context_variables=options.context):
            yield await _outcome(run, *began[run.id])

    async with runs:
        yield outcomes()


def _run_id(agent: Agent, record: InputRecord) -> str:
    """The same for the same line: so a second batch finds the runs of the first."""
    return blake2b(json.dumps([agent.name, record.key, record.digest]).encode(), digest_size=16).hexdigest()


async def _outcome(run: DurableRun, index: int, item: Item) -> Outcome:
    record = run.record
    seconds = ((record.ended or record.started) - record.started) / 1000
    try:
        response = await run.result()
    except AswarmError as error:
        left = error.response
        usage = Usage() if left is None else left.usage
        return Outcome(
            str(item.id), index, error=error, duration=seconds, attempts=1, usage=usage, metadata=item.metadata
        )
    return Outcome(
        str(item.id), index, response, duration=seconds, attempts=1, usage=response.usage, metadata=item.metadata
    )
