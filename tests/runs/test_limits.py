"""`Limits`: no limit by default, the values of a web service, and the bounds of runs in memory."""

from __future__ import annotations

import dataclasses
import logging
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.conversations import MemoryStore
from aswarm.runs import Limits, LocalRuns, NewRun, Run, Runs, TooManyRuns
from aswarm.serve import Service, create_app, local_only
from aswarm.testing import ScriptedModel, call

pytestmark = pytest.mark.anyio


def rows_of(runs: Any, table: str) -> int:
    """Return the number of rows of a table."""
    connection = runs._database._connection._connection
    count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count


def test_no_limit_is_the_default() -> None:
    """A program that sets one limit changes no other limit. A web service has a value for each limit."""
    assert set(dataclasses.asdict(Limits()).values()) == {None}
    assert None not in dataclasses.asdict(Limits.web()).values()
    changed = dataclasses.replace(Limits.web(), max_turns=3)
    assert (changed.max_turns, changed.runs_per_user) == (3, 4)


async def test_one_limit_changes_no_other_limit() -> None:
    """Many runs of one user at once, many messages that wait, and many completions of a run."""
    go, started = anyio.Event(), 0

    async def slow(number: int) -> str:
        await go.wait()
        return "done"

    def script(request: Any) -> Any:
        results = sum(message["role"] == "tool" for message in request.messages)
        return call("slow", number=results) if results < 60 else "Done."

    swarm = AsyncSwarm(ScriptedModel(script).client())
    async with LocalRuns(swarm, agents=Agent(functions=[slow]), limits=Limits(run_seconds=600)) as runs:
        first = [Run(runs, await runs.start(NewRun("ann", f"c{number}", "Hi"))) for number in range(6)]
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(runs.start, NewRun("ann", "c0", "And now?", while_running="wait"))
            await anyio.sleep(0.05)
            go.set()
            for run in first:
                assert (await run.result()).stop == "answer"
            started = len(await runs.list(user="ann"))
    assert started >= 6


NAMES = [field.name for field in dataclasses.fields(Limits)]


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("name", NAMES)
def test_each_limit_is_set_alone(name: str, kind: str, tmp_path: Path) -> None:
    """The other limits have the values that they have without it: none, except for the bounds of runs in memory."""
    alone = {name: 7}
    runs = [opened(kind, tmp_path, limits) for limits in (Limits(), Limits(**alone))]
    without, with_it = [dataclasses.asdict(each.limits) for each in runs]
    assert with_it == {**without, **alone}
    in_memory = {"kept_runs": 10_000, "waiting_runs_per_user": 10_000} if kind == "memory" else {}
    assert without == {**dict.fromkeys(NAMES), **in_memory}


def opened(kind: str, folder: Path, limits: Limits) -> Any:
    """Return runs with these limits."""
    swarm = AsyncSwarm(ScriptedModel([]).client())
    return LocalRuns(swarm, agents=Agent(), store=folder / "runs" if kind == "file" else None, limits=limits)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_search_for_old_runs_delays_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    """It reads the rows of all ended runs, beside the transactions of the active runs."""
    has_ended = threading.Event()

    def surplus(*_: Any, **options: Any) -> Any:
        yield "SELECT 1", ()
        assert has_ended.wait(60)
        return list[str](), list[str]()

    monkeypatch.setattr("aswarm.runs._deleting.surplus", surplus)
    swarm = AsyncSwarm(ScriptedModel(["Hello."]).client())
    async with LocalRuns(swarm, agents=Agent(), store=tmp_path / "runs") as runs, anyio.create_task_group() as group:
        group.start_soon(runs._forget_old)
        await anyio.wait_all_tasks_blocked()
        assert (await Run(runs, await runs.start(NewRun("ann", "c", "Hi"))).result()).text == "Hello."
        has_ended.set()


async def test_a_limit_of_zero_runs_is_a_limit() -> None:
    """It is not taken for no limit."""
    for limits in (Limits(runs_per_user=0), Limits(runs=0)):
        async with LocalRuns(AsyncSwarm(ScriptedModel([]).client()), agents=Agent(), limits=limits) as runs:
            with pytest.raises(TooManyRuns):
                await runs.start(NewRun("ann", "c", "Hi"))
    async with LocalRuns(
        AsyncSwarm(ScriptedModel(["Hello."]).client()), agents=Agent(), limits=Limits(runs=float("inf"))
    ) as runs:
        await Run(runs, await runs.start(NewRun("ann", "c", "Hi"))).result()


@pytest.mark.parametrize("conversations", [True, False])
async def test_runs_in_memory_keep_a_limited_number_of_runs(
    monkeypatch: pytest.MonkeyPatch, conversations: bool
) -> None:
    """Their conversations are deleted with them. The newest stay."""
    monkeypatch.setattr("aswarm.runs._local_runs._MOST_IN_MEMORY", 20)
    monkeypatch.setattr("aswarm.runs._local_runs._FORGET_AFTER", 10)
    async with LocalRuns(AsyncSwarm(ScriptedModel(lambda _: "Hello.").client()), agents=Agent()) as runs:
        assert (runs.limits.kept_runs, runs.limits.waiting_runs_per_user) == (20, 20)
        for number in range(200):
            name = f"c{number}" if conversations else None
            await Run(runs, await runs.start(NewRun("ann", name, "Hi"))).result()
            assert rows_of(runs, "aswarm_run") <= 31
        await anyio.wait_all_tasks_blocked()
        assert rows_of(runs, "aswarm_run") == 20
        assert rows_of(runs, "aswarm_conversation") == (20 if conversations else 0)
        assert rows_of(runs, "aswarm_message") == (40 if conversations else 0)
        assert rows_of(runs, "aswarm_entry") < 20 * 10
        assert not runs._live
        assert not conversations or await runs.store.load("ann/c199")


async def test_a_conversation_stays_with_its_newest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old runs are deleted. The conversations of a store that the caller has passed stay too."""
    monkeypatch.setattr("aswarm.runs._local_runs._MOST_IN_MEMORY", 2)
    for store in (None, MemoryStore()):
        model = ScriptedModel(lambda _: "Hello.")
        async with LocalRuns(AsyncSwarm(model.client()), agents=Agent(), store=store) as runs:
            for name in ("old", "c", "c", "c"):
                await Run(runs, await runs.start(NewRun("ann", name, "Hi"))).result()
            await runs._forget_old()
            assert rows_of(runs, "aswarm_run") == 2
            stored = await runs.store.load("ann/c")
            assert stored is not None
            assert len(stored.messages) == 6
            assert (await runs.store.load("ann/old") is None) == (store is None)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("limits", "missing"),
    [
        (Limits(), "runs_per_user, run_seconds, max_turns"),
        (Limits(max_turns=3), "runs_per_user, run_seconds"),
        (dataclasses.replace(Limits.web(), run_seconds=None), "run_seconds"),
        (Limits(runs_per_user=1, run_seconds=1, max_turns=1), None),
    ],
)
async def test_a_service_without_limits_logs_one_warning(
    caplog: pytest.LogCaptureFixture, limits: Limits, missing: str | None
) -> None:
    """It names the limits that are missing."""
    runs: Runs = LocalRuns(AsyncSwarm(ScriptedModel([]).client()), agents=Agent(), limits=limits)
    async with Service(runs, auth=local_only).lifespan():
        pass
    texts = warnings(caplog)
    assert len(texts) == (missing is not None)
    assert missing is None or f"no limit for {missing}, so" in texts[0]


async def test_a_service_in_one_call_has_the_limits_of_a_web_service(caplog: pytest.LogCaptureFixture) -> None:
    """And it logs no warning."""
    service = create_app(AsyncSwarm(ScriptedModel([]).client()), agents=Agent(), auth=local_only)
    async with service.lifespan():
        assert service.runs.limits == Limits.web()
    assert not warnings(caplog)
