"""Simulated processes die at any await, lose everything but their files, and continue from them; clients come back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, tool
from aswarm._runtime import clocks
from aswarm._runtime.files import lock
from aswarm.conversations import MemoryStore, SQLiteStore
from aswarm.runs import AgentNotFound, CallAnswer, LocalRuns, NewRun
from aswarm.testing import ScriptedCall
from aswarm.testing.simulate import Clients, Crash, Provider, Simulation, SimulationError, World, simulate


def in_universes(program: Callable[[World], Any], number: int = 40) -> list[World]:
    """Run a program in universes without a failure, and return their worlds."""
    worlds = [World(seed) for seed in range(number)]
    for world in worlds:
        failure = Simulation(program, sequential=False, folder=None).failure(world)
        assert failure is None, f"seed {world.seed}: {failure!r}"
    return worlds


def lives(world: World) -> int:
    return 1 + sum("dies" in text for _, text in world.notes)


# --- stores and clocks in a universe ----------------------------------------------------------------------------------


def test_a_sqlite_store_works_in_a_universe() -> None:
    """The thread of its database runs on the loop of the universe, and the file is gone afterwards."""
    paths: list[str] = []

    async def program(world: World) -> None:
        paths.append(world.path("store.sqlite"))
        async with SQLiteStore(paths[-1]) as store:
            model = Provider(world, ["Hello."])
            response = await store.conversation("1", world.swarm(model), agent=Agent()).run("Hi")
            stored = await store.load("1")
        assert response.text == "Hello."
        assert stored is not None
        assert len(stored.messages) == 2
        assert Path(paths[-1]).exists()

    in_universes(program, 5)
    assert not any(Path(path).exists() for path in paths)


def test_a_failure_with_a_store_is_confirmed_on_the_real_loop() -> None:
    """There, the steps of the thread run on asyncio's own loop."""

    async def program(world: World) -> None:
        async with SQLiteStore(world.path("store.sqlite")) as store:
            assert await store.load("1") is not None

    simulation = Simulation(program, folder=None)
    assert isinstance(simulation.failure(World(0), is_real=True), AssertionError)


def test_the_clocks_and_random_bytes_of_aswarm_belong_to_the_universe() -> None:
    """Time passes only in sleeps; a blocked thread moves the clock; equal seeds have equal random bytes."""
    seen: list[tuple[float, bytes]] = []

    async def program(world: World) -> None:
        before = clocks.time()
        await anyio.sleep(100)
        clocks.sleep(50)
        assert clocks.time() - before == pytest.approx(150, abs=0.1)
        seen.append((clocks.monotonic(), clocks.urandom(4)))

    for _ in range(2):
        assert Simulation(program).failure(World(3)) is None
    assert len(set(seen)) == 1


# --- a process that dies ----------------------------------------------------------------------------------------------


def test_a_dead_process_runs_no_finally_block() -> None:
    """Its tasks stop at an await, in some universes at the first and in some at the last one."""
    places: set[int] = set()

    async def program(world: World) -> None:
        reached, closed = [0], []

        async def main() -> None:
            reached[0] = 0
            for _ in range(110):  # ended tasks, which are forgotten
                asyncio.create_task(asyncio.sleep(0))  # noqa: RUF006 - the loop runs them at once
            try:
                for _ in range(50):
                    await asyncio.create_task(asyncio.sleep(0))
                    reached[0] += 1
            finally:
                closed.append(reached[0])

        crash = Crash[None](world)
        await crash.run(main)
        assert closed == [50], "only the life without a crash ends its block"
        if lives(world) == 2:
            places.add(world.drawn.get("process: step of the crash 1", 0))

    in_universes(program)
    assert len(places) > 5


def test_a_dead_process_leaves_its_locks_and_transactions() -> None:
    """The lock of a file is free for the next life; an open transaction is rolled back, a committed one stays."""
    lost = set[bool]()

    async def program(world: World) -> None:
        path = world.path("data.sqlite")

        async def main() -> list[tuple[int]]:
            assert lock(FileIO(f"{path}-lock", "a"))
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS numbers (n)")
            found = connection.execute("SELECT n FROM numbers").fetchall()
            if not found:
                connection.execute("INSERT INTO numbers VALUES (1)")
                connection.execute("BEGIN")
                connection.execute("INSERT INTO numbers VALUES (2)")
                for _ in range(60):
                    await asyncio.sleep(0)
                connection.execute("ROLLBACK")
            connection.close()
            sqlite3.connect(path, factory=sqlite3.Connection).close()  # the class of a program is left alone
            return found

        found = await Crash[None](world).run(main)
        assert found in ([], [(1,)])
        lost.add(found == [(1,)])

    in_universes(program)
    assert lost == {True, False}


def test_a_power_failure_loses_only_commits_that_did_not_wait_for_the_disk() -> None:
    """With `synchronous = FULL` a commit is never lost, with NORMAL it is lost in some universes."""
    left: set[tuple[int, ...]] = set()

    async def program(world: World) -> None:
        path = world.path("data.sqlite")

        async def main() -> tuple[int, ...]:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS numbers (n)")
            found = tuple(n for (n,) in connection.execute("SELECT n FROM numbers"))
            for number, synchronous in enumerate(("FULL", "NORMAL"), start=len(found)):
                connection.execute(f"PRAGMA synchronous = {synchronous}")
                connection.execute("BEGIN")
                connection.execute("INSERT INTO numbers VALUES (?)", (number,))
                connection.execute("COMMIT")
            for _ in range(60):
                await asyncio.sleep(0)
            connection.close()
            return found

        found = await Crash[None](world, power=True).run(main)
        if lives(world) == 2:
            left.add(found)

    in_universes(program, 80)
    assert (0, 1) in left, "a killed process loses nothing"
    assert (0,) in left, "a power failure may lose the commit that did not wait"
    assert left <= {(), (0,), (0, 1)}


def test_a_run_continues_after_crashes_and_its_function_runs_once() -> None:
    """LocalRuns takes over its own dead runs; a call that was cut has an unknown outcome."""
    texts: set[str] = set()

    async def program(world: World) -> None:
        def answer(request: Any) -> Any:
            return "Done." if request.messages[-1]["role"] == "tool" else ScriptedCall("charge", "{}", "1")

        async def charge() -> str:
            await asyncio.sleep(0.01)
            return "charged"

        model, crash = Provider(world, answer), Crash[LocalRuns](world, most=2, power=True)

        async def main() -> None:
            path = world.path("runs.sqlite")
            async with LocalRuns(world.swarm(model), store=path, agents=Agent(functions=[charge]), version="1") as runs:
                await crash.serve(runs)

        async def client() -> None:
            clients = Clients(world, crash)
            record = await clients.start(NewRun("ann", "1", messages=[{"role": "user", "content": "Hi"}], key="1"))
            log = await clients.read(record.id, user="ann")
            assert log[-1].type == "RunFinished"
            texts.update(each["content"] for each in log[-1].response["messages"] if each["role"] == "tool")
            crash.stop()

        async with asyncio.TaskGroup() as group:
            group.create_task(crash.run(main))
            group.create_task(client())

    worlds = in_universes(program)
    assert texts == {"charged", "cancelled; its outcome is unknown"}
    assert {lives(world) for world in worlds} == {1, 2, 3}


def test_a_failure_after_a_crash_is_confirmed_with_a_crash_nearby_on_the_real_loop() -> None:
    """A process there takes another number of steps. The time line has the second start before its end."""

    @tool(repeatable=True)  # which is wrong
    async def charge() -> str:
        charged.append(1)
        await world.pause("the bank")
        return "charged"

    def answer(request: Any) -> Any:
        return "Done." if request.messages[-1]["role"] == "tool" else ScriptedCall("charge", "{}", "1")

    async def program(each: World) -> None:
        nonlocal world
        world = each
        charged.clear()
        crash = Crash[LocalRuns](world)

        async def main() -> None:
            path, swarm = world.path("runs.sqlite"), world.swarm(model)
            async with LocalRuns(swarm, store=path, agents=Agent(functions=[charge]), version="1") as runs:
                await crash.serve(runs)

        async def client() -> None:
            clients = Clients(world, crash)
            message = {"role": "user", "content": "Hi"}
            record = await clients.start(NewRun("ann", "1", messages=[message], key="1"))
            await clients.read(record.id, user="ann")
            assert len(charged) == 1, "charged twice"
            crash.stop()

        model = Provider(world, answer)
        async with asyncio.TaskGroup() as group:
            group.create_task(crash.run(main))
            group.create_task(client())

    charged: list[int] = []
    world = World(0)
    with pytest.raises(SimulationError, match="also fails on asyncio's own loop") as caught:
        simulate(runs=100, sequential=False, folder=None)(program)()
    _, _, after = str(caught.value).partition("dies")
    assert after.index("function charge starts") < after.index("ToolCallFinished")


def test_a_client_sees_a_reset_connection() -> None:
    """A call of a served object raises ConnectionResetError if the process dies before the answer arrives."""
    seen: set[str] = set()

    async def program(world: World) -> None:
        crash = Crash[list[int]](world, name="server")

        async def tick() -> None:  # steps of the process while an answer is on its way
            while True:
                await asyncio.sleep(0.001)

        async def main() -> None:
            ticking = asyncio.create_task(tick())
            await crash.serve([])
            ticking.cancel()

        async def client() -> None:
            async def slow(numbers: list[int]) -> int:
                for _ in range(20):
                    await asyncio.sleep(0.001)
                return len(numbers)

            for _ in range(3):
                try:
                    seen.add(str(await crash.call(slow)))
                except ConnectionResetError as error:
                    seen.add(str(error))
            crash.stop()

        async with asyncio.TaskGroup() as group:
            group.create_task(crash.run(main))
            group.create_task(client())

    in_universes(program)
    assert seen == {"0", "the process has died", "the process has died before its answer arrived"}


def test_an_exception_of_the_process_is_raised_by_the_crash() -> None:
    """It ends `Crash.run`; a cancellation of `Crash.run` cancels the process."""

    async def program(world: World) -> None:
        async def main() -> None:
            await asyncio.sleep(0)
            raise ValueError("of main")

        with pytest.raises(ValueError, match="of main"):
            await Crash[None](world, most=0).run(main)
        with anyio.move_on_after(1) as scope:
            await Crash[None](world, most=0).run(anyio.sleep_forever)
        assert scope.cancelled_caught

    in_universes(program, 3)


# --- clients ----------------------------------------------------------------------------------------------------------


def test_clients_leave_come_back_and_answer_twice() -> None:
    """An approval that is sent twice starts one run, and each reader gets each entry once."""
    ran: list[int] = []

    async def program(world: World) -> None:
        @tool(approve=True)
        async def pay() -> str:
            ran.append(world.seed)
            return "paid"

        def answer(request: Any) -> Any:
            return "Done." if request.messages[-1]["role"] == "tool" else ScriptedCall("pay", "{}", "1")

        swarm = world.swarm(Provider(world, answer))
        async with LocalRuns(swarm, store=MemoryStore(), agents=Agent(functions=[pay])) as runs:
            clients = Clients(world, runs)
            record = await clients.start(NewRun("ann", "1", messages=[{"role": "user", "content": "Hi"}], key="1"))
            log = await clients.read(record.id, user="ann")
            assert log[-1].response["stop"] == "waiting"
            again = await clients.start(NewRun("ann", "1", answers=[CallAnswer("1", approve=True, run_id=record.id)]))
            assert (await clients.read(again.id, user="ann"))[-1].response["text"] == "Done."
            with pytest.raises(AgentNotFound):
                await clients.start(NewRun("ann", "2", agent="nobody", messages=[{"role": "user", "content": "Hi"}]))
            assert (await again.last_entry()).is_last

    worlds = in_universes(program)
    assert ran == [world.seed for world in worlds]
    assert any("client: sends twice 1" in world.drawn for world in worlds)
    assert any("client: comes back 1" in world.drawn for world in worlds)
