"""Measures durable runs in this process, and prints a JSON object. `durable_runs.py` starts it.

    python durable_worker.py hold CONTENDER MODEL_URL DATABASE_URL SYNC CONVERSATIONS AT_ONCE   DATABASE_URL may be "none"
    python durable_worker.py fill DATABASE_URL RUNS      makes runs that wait for an approval
    python durable_worker.py open DATABASE_URL           measures a process that opens these runs

All contenders use DBOS with the same settings: SQLite in WAL mode with the same `synchronous` (SYNC: "normal" or "full"), and the
same numbers of threads and connections. Each call of a tool is a step.
"""

# ruff: noqa: PLC0415 - a process imports only the contender that it measures
from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from clients import openai_client
from instruments import Meter, proof, resident, trim
from scenario import ANSWER, QUESTION, Session, opener_of

Conversation = Callable[[], Awaitable[str]]


class Database(NamedTuple):
    """A database, and when SQLite waits for the disk: "normal" or "full"."""

    url: str
    sync: Any


# --- conversations ----------------------------------------------------------------------------------------------------


async def hold(contender: str, model_url: str, database: str, sync: str, total: int, at_once: int) -> dict[str, float]:
    """Measure the CPU and wall seconds of `total` conversations."""
    kind = contender if database != "none" else "plain"
    url = f"{model_url}/latency=0.02/v1"
    async with {"plain": plain, "aswarm_": aswarm, "pydantic_ai_": pydantic_ai, "openai_agents": openai_agents}[kind](
        contender, url, Database(database, sync), at_once
    ) as converse:
        await converse()  # not measured: it makes schemas, connections and caches
        with proof(model_url, lambda: total):
            meter, room = Meter(), asyncio.Semaphore(at_once)

            async def one() -> str:
                async with room:
                    return await converse()

            answers = await asyncio.gather(*(one() for _ in range(total)))
            cpu, wall = meter.read()
    if not all(answer and ANSWER.startswith(answer.strip()) for answer in answers):  # a streamed answer has ten words
        raise RuntimeError(f"the answers were {set(answers)}")
    return {"cpu": cpu, "wall": wall}


@asynccontextmanager
async def plain(contender: str, url: str, _: Database, at_once: int) -> Any:
    """Converse without durability."""
    session = await opener_of(contender)(url, at_once)
    past = session.prepare([])
    yield lambda: session.converse(past)
    await session.close()


@asynccontextmanager
async def aswarm(contender: str, url: str, database: Database, at_once: int) -> Any:
    """Converse with `DurableRuns`. Its runs have three more steps, because each call of a function is two steps."""
    from contenders.aswarm_ import A

    from aswarm import AsyncSwarm
    from aswarm.durable import DurableRuns

    async with (
        AsyncSwarm(client=openai_client(url, at_once)) as swarm,
        DurableRuns(swarm, agents=A, store=database.url, sync=database.sync, version="1", concurrency=at_once) as runs,
    ):

        async def converse() -> str:
            return (await (await runs.start("a", QUESTION)).result()).text

        yield converse


@asynccontextmanager
async def pydantic_ai(contender: str, url: str, database: Database, at_once: int) -> Any:
    """Converse with `DBOSDurability`, in a workflow that contains the conversation."""
    from contenders import pydantic_ai_
    from dbos import DBOS
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    launch(database)
    for name in ("get_weather", "get_time", "get_news"):
        setattr(pydantic_ai_, name, DBOS.step()(getattr(pydantic_ai_, name)))
    plain_agent = pydantic_ai_.Agent
    pydantic_ai_.Agent = lambda *args, **given: plain_agent(*args, **given, capabilities=[DBOSDurability()])
    session = await pydantic_ai_.open_session(url, at_once)
    yield launched(session)
    await session.close()


@asynccontextmanager
async def openai_agents(contender: str, url: str, database: Database, at_once: int) -> Any:
    """Converse with `DBOSRunner`, in a workflow that contains the conversation."""
    from contenders import openai_agents as module
    from dbos import DBOS
    from dbos_openai_agents import DBOSRunner

    launch(database)
    for name in ("get_weather", "get_time", "get_news"):
        setattr(module, name, DBOS.step()(getattr(module, name)))
    module.Runner = DBOSRunner
    session = await module.open_session(url, at_once)
    yield launched(session)
    await session.close()


def launch(database: Database) -> None:
    """Launch DBOS with the settings of aswarm."""
    import sqlalchemy
    from dbos import DBOS

    engine = None
    if database.url.startswith("sqlite"):
        engine = sqlalchemy.create_engine(database.url, pool_size=20, max_overflow=4)

        def prepare(connection: Any, _: Any) -> None:
            connection.isolation_level = "IMMEDIATE"
            for pragma in ("busy_timeout=30000", "journal_mode=WAL", f"synchronous={database.sync}"):
                connection.execute(f"PRAGMA {pragma}").close()

        sqlalchemy.event.listen(engine, "connect", prepare)
    DBOS(config={"name": "peer", "system_database_url": database.url, "system_database_engine": engine,
                 "max_executor_threads": 32, "sys_db_pool_size": 20, "log_level": "ERROR"})  # fmt: skip


def launched(session: Session) -> Conversation:
    """Return a workflow that contains the conversation, and launch DBOS."""
    from dbos import DBOS

    @DBOS.workflow()
    async def converse() -> str:
        return await session.converse([])

    DBOS.launch()
    return converse


# --- runs that wait ---------------------------------------------------------------------------------------------------


def waiting_agent() -> Any:
    """Return an agent whose only function waits for an approval."""
    from aswarm import Agent, tool

    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    return Agent(name="Cashier", functions=[pay])


@asynccontextmanager
async def waiting_runs(database: str) -> Any:
    """Open the `DurableRuns`, with a scripted model that needs no server."""
    from aswarm import AsyncSwarm
    from aswarm.durable import DurableRuns
    from aswarm.testing import ScriptedAnswer, ScriptedModel, call

    def answer(request: Any) -> Any:
        return call("pay") if request.body["messages"][-1]["role"] == "user" else ScriptedAnswer("Done.")

    async with (
        AsyncSwarm(ScriptedModel(answer).client()) as swarm,
        DurableRuns(swarm, agents=waiting_agent(), store=database, version="1") as runs,
    ):
        yield runs


async def fill(database: str, total: int) -> dict[str, float]:
    """Make `total` waiting runs."""
    begun = time.perf_counter()
    async with waiting_runs(database) as runs:
        async for _ in runs.map("Cashier", ["Pay!"] * total, run_ids=lambda at: f"waiting-{at}", concurrency=100):
            pass
    return {"wall": time.perf_counter() - begun}


async def open_beside(database: str) -> dict[str, float]:
    """Measure the seconds to open and use the store, and the growth of the process in MiB one second after opening."""
    import aswarm.testing  # noqa: F401 - so that its import is not measured

    for name in ("dbos", "psycopg", "sqlalchemy", "aswarm.durable", "dbos._sys_db_postgres", "dbos._sys_db_sqlite"):
        importlib.import_module(name)
    trim()
    before, begun = resident(), time.perf_counter()
    async with waiting_runs(database) as runs:
        opened = time.perf_counter() - begun
        await asyncio.sleep(1)
        grown = (resident() - before) / 2**20
        begun = time.perf_counter()
        await runs.records(limit=100)
        listed = time.perf_counter() - begun
        begun = time.perf_counter()
        await runs.records(status="waiting", limit=100)
        listed_waiting = time.perf_counter() - begun
        run = await runs.start("Cashier", "Pay!")
        await run.wait()
        (left,) = (await run.result()).open_calls
        begun = time.perf_counter()
        await (await run.answer({left.id: True})).result()
        answered = time.perf_counter() - begun
    return {"open": opened, "grown": grown, "list": listed, "list waiting": listed_waiting, "answer": answered}


def main(what: str, *given: str) -> None:
    """Run a command, and print its result."""
    if what == "hold":
        found = asyncio.run(hold(*given[:4], int(given[4]), int(given[5])))
    elif what == "fill":
        found = asyncio.run(fill(given[0], int(given[1])))
    else:
        found = asyncio.run(open_beside(given[0]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
