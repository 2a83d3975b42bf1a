"""Spans of runs that another task, or another process, executes: they are below the span of the request that started the run."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from aswarm import AsyncSwarm
from aswarm.conversations import SQLiteStore
from aswarm.runs import LocalRuns, NewRun, Run
from aswarm.testing import ScriptedModel, call
from tests.support.otel.traces import Traces, traced
from tests.support.runs.kept_runs import Workshop, entries_of

NEW = NewRun("ann", "c", [{"role": "user", "content": "Go"}], run_id="r")


def parents(traces: Traces) -> list[str | None]:
    """Return the names of the parents of the runs."""
    return [traces.parent_name(span) for span in traces.named("invoke_agent")]


@asynccontextmanager
async def local(path: Path, traces: Traces, script: Any, workshop: Workshop) -> AsyncGenerator[LocalRuns]:
    swarm = AsyncSwarm(ScriptedModel(script).client(), middleware=[traces.middleware()])
    async with (
        SQLiteStore(path) as store,
        swarm,
        LocalRuns(swarm, store=store, agents=workshop.agents(), version="1") as runs,
    ):
        yield runs


async def dead_process(folder: Path) -> SpanContext:
    """Start a run in a request, and copy the file of its process. Return the span of the request."""
    traces, workshop = Traces(), Workshop()
    async with local(folder / "1.sqlite", traces, [call("slow"), "Done."], workshop) as runs:
        with traces.tracer.start_as_current_span("POST /runs") as request:
            run = await runs.start(NEW)
        await workshop.began.wait()
        source, copy = sqlite3.connect(folder / "1.sqlite"), sqlite3.connect(folder / "2.sqlite")
        source.backup(copy)
        source.close()
        copy.close()
        workshop.go.set()
        await run.result()
    assert traces.one("invoke_agent").parent == request.get_span_context()
    return request.get_span_context()


async def test_a_run_that_is_continued_is_below_its_request(tmp_path: Path) -> None:
    """The process of the request has died, and the next attempt is in the same trace."""
    request, traces = await dead_process(tmp_path), Traces()
    async with local(tmp_path / "2.sqlite", traces, ["Done."], Workshop()) as runs:
        entries = await entries_of(Run(runs, await runs.get("r", user="ann")))
    parent = traces.one("invoke_agent").parent
    assert parent is not None
    assert (parent.trace_id, parent.span_id) == (request.trace_id, request.span_id)
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert "trace" not in str(entries[0].to_dict())  # no reader gets it


async def test_a_run_without_a_request_is_a_root(tmp_path: Path) -> None:
    """Nothing about a trace is recorded."""
    with traced() as traces:
        async with local(tmp_path / "1.sqlite", traces, ["Done."], Workshop()) as runs:
            run = await runs.start(NEW)
            entries = await entries_of(run)
        assert parents(traces) == [None]
        assert "_trace" not in entries[0].fields


@pytest.mark.processes  # croniter, which DBOS imports, starts one
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_durable_run_is_below_its_request(tmp_path: Path) -> None:
    """Another process executes it; a run that continues it is below the request with the answer."""
    pytest.importorskip("dbos", reason="durable runs need dbos")
    from tests.support.durable.durables import Shop, durable

    traces, shop = Traces(), Shop()
    script = [call("pay", call_id="p", amount=5), "Paid.", "Hello."]
    async with (
        durable(tmp_path, [], shop, concurrency=0) as client,  # a web server, without the middleware
        durable(tmp_path, script, shop, middleware=[traces.middleware()]),
    ):
        with traces.tracer.start_as_current_span("POST /runs"):
            asked = await client.start("Boss", "Pay!")
        await asked.wait()
        with traces.tracer.start_as_current_span("POST /answers"):
            answered = await asked.answer({"p": True})
        assert (await answered.result()).text == "Paid."
        alone = await client.start("Boss", "Hi!")
        await alone.wait()
    assert parents(traces) == ["POST /runs", "POST /answers", None]
    assert [traces.parent_name(span) for span in traces.named("chat")] == ["invoke_agent Boss"] * 3


async def test_a_process_without_opentelemetry_continues_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes no spans, and ignores the trace."""
    await dead_process(tmp_path)
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    async with (
        SQLiteStore(tmp_path / "2.sqlite") as store,
        AsyncSwarm(ScriptedModel(["Done."]).client()) as swarm,
        LocalRuns(swarm, store=store, agents=Workshop().agents(), version="1") as runs,
    ):
        assert (await Run(runs, await runs.get("r", user="ann")).last_entry()).type == "RunFinished"
