"""A day of a service in some minutes, in one process, and whether its memory, handles, rows and files stay flat.

    nox -s deep -- soak MINUTES SEED [--durable sqlite] [--leak] [--samples FILE]

The process has a service over `LocalRuns` on a SQLite file, conversations in SQLite and in PostgreSQL, durable runs, batches with
journals, MCP in both directions, code mode, eager tools, tracing and rate limits. Its clients and its model are real sockets of
the same process. Old data is purged each hour. The exit status is 1 if a measure grows, or if something unexpected happened. In a
day of less than 24 minutes, `LocalRuns` deletes old runs less than once in an hour of the day, and the files are still filling up
to their usual sizes: both are a growth too.

`--leak`: keep the responses of the conversations, and a file handle for each fifth of them, to see that the verdicts detect it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.requests import Request

from aswarm import AsyncSwarm, RateLimits, Response
from aswarm.conversations import PostgresStore, SQLiteStore
from aswarm.durable import DurableRuns
from aswarm.mcp import MCPServer, serve_agents
from aswarm.middleware import retry
from aswarm.otel import otel
from aswarm.runs import Limits, LocalRuns
from aswarm.serve import Service
from tests.support.conversations.stores import emptied_database, empty_schema
from tests.support.providers import loopback
from tests.support.serve.served import listening
from tests.support.sql.postgres import postgres_server
from tests.support.testing import soak_measures
from tests.support.testing.soak_agents import Model, agents
from tests.support.testing.soak_browsers import Browsers
from tests.support.testing.soak_day import Day
from tests.support.testing.soak_measures import ALLOWANCES
from tests.support.testing.soak_verdict import Sample, table, verdicts
from tests.support.testing.soak_work import Batches, Chats, Durable, Sessions, Work

SAMPLES_PER_HOUR = 4
_KEPT_HOURS = 2


class Soak:
    """One soak. Its parts are open from `opened` until the block ends."""

    def __init__(self, options: argparse.Namespace, day: Day, folder: Path, server: str) -> None:
        self.day = day
        self.folder = folder
        self.is_leaking = options.leak
        self._samples: list[
            str
        ] = []  # as JSON, because the samples themselves would be a growth of ten thousand blocks
        self.logged: Counter[str] = Counter()
        self.model = Model(day.rand)
        self.chats_url = empty_schema(server)
        self.durable_url = emptied_database(server)
        self.durable_store = (
            f"sqlite:///{folder / 'durable.sqlite'}" if options.durable == "sqlite" else self.durable_url
        )
        self.spans = InMemorySpanExporter()
        self.metrics = InMemoryMetricReader()
        self.sources: dict[str, Callable[[], dict[str, float]]] = {
            "chats in PostgreSQL": partial(soak_measures.postgres, "conversations", self.chats_url)
        }
        self.sources["durable runs"] = (
            partial(soak_measures.postgres, "durable runs", self.durable_url)
            if options.durable == "postgres"
            else partial(soak_measures.sqlite_rows, folder / "durable.sqlite")
        )
        self._leaked: list[object] = []
        self._responses = 0

    # --- parts ---

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[dict[str, tuple[float, Work]]]:
        """Open all parts. Yields the actors, with the number that arrives in a second of the busiest moment."""
        async with AsyncExitStack() as stack:
            model = await stack.enter_async_context(loopback.serve(self.model.reply))
            self._seen = model
            client = AsyncOpenAI(base_url=model.base_url, api_key="none", timeout=3, max_retries=2)
            await stack.enter_async_context(client)
            traced = self._tracing()
            plain = AsyncSwarm(client, eager_tools="always", middleware=[retry(attempts=3)])
            limited = AsyncSwarm(
                client, eager_tools=True, rate_limits=RateLimits(requests_per_minute=1800), middleware=[traced]
            )
            mcp_server = serve_agents(plain, agents=agents()[0]).streamable_http_app()
            mcp = f"{await stack.enter_async_context(listening(mcp_server))}/mcp"
            tools = await stack.enter_async_context(MCPServer(mcp, prefix="served_", timeout=10))
            url = await stack.enter_async_context(listening(self._service(limited, [*tools.functions])))
            work = await self._work(stack, plain)
            sessions = Sessions(self.day, mcp, model.base_url, plain)
            yield {
                "visits": (1.0, Browsers(self.day, url).visit),
                **work,
                "MCP sessions": (0.15, sessions.session),
                "blocking scripts": (0.1, sessions.script),
                "clients for one run": (0.2, sessions.visitor),
            }

    def _tracing(self) -> Any:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        return otel(tracer_provider=provider, meter_provider=MeterProvider([self.metrics]))

    def _service(self, swarm: AsyncSwarm, functions: list[Any]) -> Service:
        limits = replace(Limits.web(), kept_seconds=_KEPT_HOURS * self.day.hour, run_seconds=30)
        path = self.folder / "service.sqlite"
        self.local = LocalRuns(swarm, store=path, agents=agents(*functions), limits=limits, version="1")
        self.sources["service"] = partial(soak_measures.sqlite_rows, path)
        self.sources["active runs"] = partial(soak_measures.registries_of_runs, "service", self.local)

        def user(request: Request) -> str | None:
            return request.headers.get("x-user")

        return Service(
            self.local, auth=user, wires=["openai", "vercel", "agui"], while_running="wait", heartbeat_seconds=1
        )

    async def _work(self, stack: AsyncExitStack, swarm: AsyncSwarm) -> dict[str, tuple[float, Work]]:
        path = self.folder / "chats.sqlite"
        in_file = await stack.enter_async_context(SQLiteStore(path))
        in_server = await stack.enter_async_context(PostgresStore(self.chats_url))
        self.sources["chats"] = partial(soak_measures.sqlite_rows, path)
        runs = DurableRuns(swarm, agents=agents(), store=self.durable_store, version="1", threads=8)
        await stack.enter_async_context(runs)
        self.sources["active durable runs"] = partial(soak_measures.registries_of_runs, "durable runs", runs)
        chats = Chats(self.day, "chats", in_file, swarm, agents(), self.note)
        others = Chats(self.day, "chats in PostgreSQL", in_server, swarm, agents(), self.note)
        durable = Durable(self.day, runs)
        batches = Batches(self.day, self.folder / "journals", swarm, agents()[0])
        self._purges: list[Work] = [chats.purge, others.purge, durable.operate, self._purge_service]
        return {
            "chats": (0.5, chats.chat),
            "chats in PostgreSQL": (0.5, others.chat),
            "tickets": (0.5, durable.ticket),
            "batches over the queue": (0.03, durable.batch),
            "batches": (0.06, batches.batch),
        }

    def forget(self) -> None:
        """Forget the closed parts, so that nothing of them should be left."""
        del self.local, self._purges
        self.sources.clear()

    # --- the day ---

    async def _purge_service(self) -> None:
        await self.local.store.purge(older_than_seconds=_KEPT_HOURS * self.day.hour)

    async def purge(self) -> None:
        """Purge all stores, as the program of a service does each hour."""
        for purge in self._purges:
            await purge()

    def _empty(self) -> None:
        """Empty the exporter and the lists of the model server, which keep everything."""
        self.spans.clear()
        self.metrics.get_metrics_data()
        for kept in (self._seen.requests, self._seen.heads, self._seen.closed_at):
            kept.clear()

    def note(self, response: Response) -> None:
        """Get a response of a client; with `--leak`, keep it."""
        self._responses += 1
        if self.is_leaking:
            self._leaked.append(response)
            if self._responses % 5 == 0:
                self._leaked.append(Path(os.devnull).open())  # noqa: SIM115 - the leak

    async def sample(self) -> None:
        """Take a sample."""
        self._empty()
        values = await soak_measures.measured(self.folder, self.sources)
        self._samples.append(json.dumps({"hour": round(self.day.now, 3), "values": values}))

    @property
    def samples(self) -> list[Sample]:
        """The samples so far."""
        return [Sample(**json.loads(each)) for each in self._samples]

    async def sampling(self) -> None:
        """Take samples until cancelled."""
        while True:
            await asyncio.sleep(self.day.hour / SAMPLES_PER_HOUR)
            await self.sample()

    async def run(self) -> None:
        """Run the day."""
        async with self.opened() as actors:
            await self.sample()
            background = [asyncio.create_task(each) for each in (self.sampling(), self.day.hourly(self.purge))]
            await self.day.arrivals(actors)
            for task in background:
                task.cancel()
            for ended in await asyncio.gather(*background, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError):
                    self.day.fault(f"a task of the program ended: {ended!r}")
            await self.sample()


# --- the program ------------------------------------------------------------------------------------------------------


class _Counting(logging.Handler):
    """Counts warnings and errors by their texts, instead of printing them. A fault that asyncio logs is unexpected."""

    def __init__(self, soak: Soak) -> None:
        super().__init__(logging.WARNING)
        self._soak = soak

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name} {record.levelname}: {str(record.msg)[:200]}"
        self._soak.logged[text] += 1
        if record.name == "asyncio":
            self._soak.day.fault(text)


async def _main(options: argparse.Namespace, folder: Path, server: str) -> int:
    day = Day(options.minutes, random.Random(options.seed))
    (folder / "journals").mkdir()
    soak = Soak(options, day, folder, server)
    logging.getLogger().addHandler(_Counting(soak))
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, category, *_: day.fault(f"{category.__name__}: {message}")  # type: ignore[assignment]
    before = soak_measures.process()
    await soak.run()
    soak.forget()
    for _ in range(3):  # a finalizer may need the event loop
        gc.collect()
        await asyncio.sleep(0.5)
    after = soak_measures.process()
    if after["tasks"] > before["tasks"]:
        day.fault("tasks are left after closing")
    return _report(options, soak, before, after)


def _report(options: argparse.Namespace, soak: Soak, before: dict[str, float], after: dict[str, float]) -> int:
    samples = soak.samples
    if options.samples:
        Path(options.samples).write_text(json.dumps([{"hour": each.hour, **each.values} for each in samples]))
    found = verdicts(samples, ALLOWANCES)
    growing = [each for each in found if not each.is_flat]
    print(table(each for each in found if not each.is_flat or not each.name.startswith("class: ")))
    print("\nafter closing:")
    for name, value in after.items():
        if not name.startswith("class: ") or value > before.get(name, 0):
            print(f"  {name}: {before.get(name, 0):.0f} before, {value:.0f} after")
    for title, counts in (
        ("happened", soak.day.counts),
        ("replies of the model", soak.model.faults),
        ("logged", soak.logged),
        ("UNEXPECTED", soak.day.faults),
    ):
        print(f"\n{title}:")
        for text, number in sorted(counts.items()):
            print(f"  {number:6} {text}")
    load, cpu = " ".join(f"{each:.1f}" for each in os.getloadavg()), 100 * time.process_time() / (60 * options.minutes)
    print(f"\nload {load}; {cpu:.0f} % of a core")
    print(f"{len(found)} measures, {len(growing)} growing, {soak.day.faults.total()} unexpected events")
    return 1 if growing or soak.day.faults else 0


def main() -> int:
    """Run the program, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float, nargs="?", default=24)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--durable", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--leak", action="store_true")
    parser.add_argument("--samples")
    options = parser.parse_args()
    if options.minutes < 1:
        parser.error("a day needs at least a minute, so that each window has samples")
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        return asyncio.run(_main(options, Path(folder), server.uri))


if __name__ == "__main__":
    sys.exit(main())
