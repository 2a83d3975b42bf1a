"""Simulation: universes are repeatable, find planted faults, and our own promises hold in a fixed set of them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AswarmError, tool
from aswarm.testing import Failure, call
from aswarm.testing.simulate import (
    Provider,
    Simulation,
    SimulationError,
    World,
    pytest_addoption,
    pytest_configure,
    simulate,
    timeline,
)
from tests.support.testing.crashing import CRASHING
from tests.support.testing.featured_crashes import FEATURED_CRASHES
from tests.support.testing.serving import SERVING
from tests.support.testing.universes import PROGRAMS, first_failure, simulation


@tool(concurrent=True)
async def deposit(amount: int, context_variables: dict[str, int]) -> str:
    balance = context_variables["balance"]
    await anyio.sleep(0.01)
    context_variables["balance"] = balance + amount
    return "done"


async def deposits(world: World) -> None:
    model = Provider(world, [[call("deposit", amount=1), call("deposit", amount=2)], "ok"])
    await world.run(world.swarm(model), Agent(functions=[deposit]), "hi", {"balance": 0})


# Seeds that once found a fault of aswarm.
FOUND = [("crashed_contexts", 16), ("crashed_runs", 54), ("crashed_runs", 174), ("crashed_runs", 1_000_014)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_promises_hold_in_a_fixed_set_of_universes(name: str) -> None:
    """Random programs, in the first universes, break no invariant."""
    assert first_failure(name, range(4 if name in {*CRASHING, *SERVING, *FEATURED_CRASHES} else 12)) is None


@pytest.mark.parametrize(("name", "seed"), FOUND)
def test_the_promises_hold_in_universes_that_found_a_fault(name: str, seed: int) -> None:
    """They found it in an earlier version of the programs, whose choices may have changed."""
    simulation(name).check(seed)


def test_a_lost_update_of_two_tools_is_found_and_confirmed_on_the_real_loop(tmp_path: Path) -> None:
    """The report has the seed, both contexts and the time line."""
    with pytest.raises(SimulationError) as caught:
        simulate(runs=10, folder=tmp_path)(deposits)()
    text = str(caught.value)
    assert text.startswith("seed 1: AssertionError: run 1: the context is {'balance': 2}; with one call at a time")
    assert "It also fails on asyncio" in text
    assert "ToolCallStarted index=1 name='deposit'" in text
    assert "run 1: function deposit starts" in text
    assert (tmp_path / "deposits-1.jsonl").read_text().count('"type":"ToolCallFinished"') == 2


def test_a_file_that_cannot_be_written_does_not_hide_the_failure(tmp_path: Path) -> None:
    """The report names no file then."""
    (tmp_path / "file").touch()
    with pytest.raises(SimulationError) as caught:
        simulate(runs=10, folder=tmp_path / "file")(deposits)()
    assert "--open" not in str(caught.value)


def test_the_causes_of_a_failed_task_group_are_named() -> None:
    """The report has the exceptions of the group, not its own text."""

    async def program(world: World) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(world.pause("first"))
            raise ValueError("in the group")

    with pytest.raises(SimulationError, match="seed 0: ValueError: in the group") as caught:
        simulate(runs=1, folder=None)(program)()
    assert isinstance(caught.value.__cause__, ValueError), "pytest would print the report twice"


@pytest.mark.asyncio
async def test_a_simulation_cannot_run_inside_an_event_loop() -> None:
    """The error names the remedy."""
    with pytest.raises(RuntimeError, match="from a plain function"):
        Simulation(deposits).check(0)


def test_equal_seeds_are_equal_universes() -> None:
    """Time lines and choices of two worlds with one seed are the same."""
    worlds = [World(7), World(7)]
    for world in worlds:
        assert simulation("exits").failure(world) is None
    assert timeline(worlds[0]) == timeline(worlds[1])
    assert worlds[0].drawn == worlds[1].drawn != {}


def test_tasks_and_scopes_are_cancelled_in_the_same_order_in_each_equal_universe() -> None:
    """Their hashes give the order, and are not their addresses."""
    kept: list[bytearray] = []

    def order() -> list[int]:
        ended: list[int] = []

        async def one(number: int) -> None:
            try:
                with anyio.move_on_after(5):
                    await anyio.sleep(10)
            finally:
                ended.append(number)

        async def program(_: World) -> None:
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(one, number)
                    kept.extend(bytearray(300) for _ in range(len(kept) % 5))
                    kept.append(bytearray(100))
                await anyio.sleep(0.01)
                group.cancel_scope.cancel()

        assert Simulation(program, folder=None).failure(World(3)) is None
        return ended

    orders = [order() for _ in range(5)]
    assert orders == orders[:1] * 5


def test_runs_of_concurrent_tasks_have_no_false_difference_of_contexts() -> None:
    """The number of a run depends on the order of the starts, so numbered runs are compared as a set."""

    @tool(concurrent=True)
    async def look(number: int) -> str:
        await anyio.sleep(0.01)
        return str(number)

    def choose(who: str, context_variables: dict[str, str]) -> None:
        context_variables["who"] = who

    async def program(world: World) -> None:
        async def user(who: str) -> None:
            looks = [call("look", number=number) for number in range(2)]
            swarm = world.swarm(Provider(world, [looks, "ok", call("choose", who=who), "ok"], name=who))
            for _ in range(2):
                await world.run(swarm, Agent(functions=[look, choose]), "hi")

        async with asyncio.TaskGroup() as group:
            for who in ("ann", "bob"):
                group.create_task(user(who))

    for seed in (24, 25):
        assert Simulation(program, folder=None).failure(World(seed)) is None


@pytest.mark.parametrize("name", ["", "own"])
def test_contexts_that_differ_are_found_for_runs_with_and_without_a_name(name: str) -> None:
    """A run with a name is compared with the run of this name only."""

    async def program(world: World) -> None:
        model = Provider(world, [[call("deposit", amount=1), call("deposit", amount=2)], "ok"])
        await world.run(world.swarm(model), Agent(functions=[deposit]), "hi", {"balance": 0}, name=name)

    assert "with one call at a time {'balance': 3}" in str(Simulation(program).failure(World(1)))


def test_the_shrinking_keeps_the_failed_assertion() -> None:
    """Another assertion that fails with fewer choices is another failure."""

    async def program(world: World) -> None:
        first, second = world.draw("first", 2), world.draw("second", 2)
        assert not (first and second), "both"
        assert not first, "one"

    with pytest.raises(SimulationError, match="AssertionError: both") as caught:
        simulate(runs=20, seed=next(seed for seed in range(20) if drawn_both(seed)), folder=None)(program)()
    assert "second 1: 1" in str(caught.value)


def drawn_both(seed: int) -> bool:
    world = World(seed)
    return bool(world.draw("first", 2) and world.draw("second", 2))


def test_a_failure_is_shrunk_to_the_choice_that_causes_it() -> None:
    """Of ten choices, the report names one."""

    async def program(world: World) -> None:
        drawn = [world.draw(f"choice {number}", 2) for number in range(10)]
        assert not drawn[3]

    with pytest.raises(SimulationError) as caught:
        simulate(runs=20, folder=None)(program)()
    schedule = str(caught.value).partition("than 0):\n")[2].partition("\nTime line")[0]
    assert schedule == "  choice 3 1: 1"


@pytest.mark.parametrize("wait", ["for nothing", "for a task that is left"])
def test_a_program_that_hangs_or_leaves_a_task_fails(wait: str) -> None:
    """A deadlock ends the universe, and a task that is left is named."""
    tasks: list[asyncio.Task[None]] = []

    async def program(world: World) -> None:
        if wait == "for nothing":
            await asyncio.get_running_loop().create_future()
        tasks.append(asyncio.create_task(asyncio.sleep(100), name="forgotten"))

    failure = Simulation(program).failure(World(0))
    assert "nothing can happen" in str(failure) if wait == "for nothing" else "forgotten" in str(failure)


def test_a_deadlock_is_reported_without_a_run_on_the_real_loop() -> None:
    """There it would never end. The text has the remedy."""

    async def program(_: World) -> None:
        await anyio.to_thread.run_sync(threading.get_ident)

    with pytest.raises(SimulationError, match=r"use asyncio\.to_thread") as caught:
        Simulation(program, folder=None).check(0)
    assert "It was not tried on asyncio's own loop" in str(caught.value)


def test_a_failure_that_needs_simulated_minutes_is_not_tried_on_the_real_loop() -> None:
    """The report gives the reason."""

    async def program(_: World) -> None:
        await anyio.sleep(3600)
        raise ValueError("late")

    with pytest.raises(SimulationError, match="not tried on asyncio's own loop"):
        Simulation(program, folder=None).check(0)


def test_a_program_that_hangs_only_on_the_real_loop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the report, the failure did not happen there; a TimeoutError of the program stays one."""
    monkeypatch.setattr("aswarm.testing.simulate._search._MOST_REAL_SECONDS", 0.05)
    monkeypatch.setattr("aswarm.testing.simulate._search._CONFIRMATIONS", 1)

    async def program(_: World) -> None:
        if type(asyncio.get_running_loop()).__name__ == "RealLoop":
            await anyio.sleep_forever()
        raise ValueError("planted")

    async def late(_: World) -> None:
        raise TimeoutError("of the program")

    with pytest.raises(SimulationError, match="did not fail on asyncio's own loop, in 1 tries"):
        Simulation(program, folder=None).check(0)
    with pytest.raises(SimulationError, match="also fails on asyncio's own loop"):
        Simulation(late, folder=None).check(0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_socket_fails_the_universe_though_the_tool_hides_it(host: str) -> None:
    """A tool returns the text of its exception to the model, and the test would pass."""

    async def connect() -> None:
        await asyncio.open_connection(host, 9)

    async def program(world: World) -> None:
        await world.run(world.swarm(Provider(world, [call("connect"), "ok"])), Agent(functions=[connect]), "hi")

    assert "no sockets" in str(Simulation(program).failure(World(0)))
    assert "no sockets" in str(Simulation(program).failure(World(0), is_real=True))


def test_plain_functions_run_without_a_thread() -> None:
    """A universe has one thread, also for the executor of the loop."""
    threads: list[int] = []

    def plain() -> str:
        threads.append(threading.get_ident())
        return "done"

    async def program(world: World) -> None:
        await world.run(world.swarm(Provider(world, [call("plain"), "ok"])), Agent(functions=[plain]), "hi")
        await asyncio.to_thread(plain)

    assert Simulation(program, sequential=False).failure(World(1)) is None
    assert threads == [threading.get_ident()] * 2


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["429", "500", "refused", "reset", "cut", "hang", "ids"])
def test_each_fault_of_a_provider_happens_in_some_universe(fault: Any, stream: bool, api: Any) -> None:
    """Of forty universes, some end with an error, a time limit, or changed ids, and each history is valid."""
    seen: set[str] = set()

    async def program(world: World) -> None:
        model = Provider(world, [call("missing", call_id="own"), "It is finished."], faults=[fault], api=api)
        swarm = world.swarm(model.client())
        try:
            async with asyncio.timeout(60):
                response = await (world.run(swarm, Agent(), "hi") if stream else swarm.run(Agent(), "hi"))
        except (AswarmError, TimeoutError) as error:
            seen.add(type(error).__name__)
        else:
            seen.update(str(each["id"]) for message in response.messages for each in message.get("tool_calls") or ())

    for seed in range(20):
        assert Simulation(program, folder=None).failure(World(seed)) is None
    assert seen - {"own"}


def test_an_unknown_fault_is_refused() -> None:
    """The error names the faults."""
    with pytest.raises(ValueError, match="unknown faults"):
        Provider(World(0), [], faults=["fire"])  # type: ignore[list-item]


def test_the_option_of_pytest_selects_one_universe(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a chosen seed, only that universe runs; fixtures are passed on."""
    monkeypatch.setenv("ASWARM_SIMULATE_SEED", "42")
    seeds: list[tuple[int, str]] = []

    @simulate(runs=3)
    async def program(world: World, fixture: str) -> None:
        seeds.append((world.seed, fixture))

    program(fixture="value")
    assert seeds == [(42, "value")]


def test_a_failure_with_a_plain_function_is_confirmed_in_a_real_thread() -> None:
    """On the real loop the function has a thread of its own, also with a drawn delay."""
    threads: set[bool] = set()

    def plain() -> str:
        threads.add(threading.current_thread() is threading.main_thread())
        return "done"

    async def program(world: World) -> None:
        await world.run(world.swarm(Provider(world, [call("plain"), "ok"])), Agent(functions=[plain]), [])
        world.note("the end")
        raise ValueError("planted")

    with pytest.raises(SimulationError, match="It also fails on asyncio"):
        Simulation(program, folder=None).check(3)
    assert threads == {True, False}


def test_an_exception_in_a_callback_fails_the_universe() -> None:
    """asyncio would only log it."""

    async def program(world: World) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await world.pause("the callback")

    assert "division by zero" in str(Simulation(program).failure(World(0)))


def test_an_executor_passes_on_the_exception_of_a_function() -> None:
    """A future refuses StopIteration, which becomes a RuntimeError."""

    async def program(world: World) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 / 0)
        with pytest.raises(RuntimeError):
            await loop.run_in_executor(None, next, iter(()))

    assert Simulation(program).failure(World(0)) is None


def test_an_invariant_of_a_user_is_checked() -> None:
    """It gets the world, and its AssertionError is the failure."""

    def one_run(world: World) -> None:
        assert len(world.runs) == 1, "not one run"

    async def program(world: World) -> None:
        await world.pause("nothing else")

    with pytest.raises(SimulationError, match="not one run"):
        simulate(runs=1, invariants=[one_run], folder=None)(program)()


def test_pytest_has_the_option_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-p aswarm.testing.simulate` adds `--simulate-seed`."""
    monkeypatch.setenv("ASWARM_SIMULATE_SEED", "1")
    monkeypatch.delenv("ASWARM_SIMULATE_SEED")
    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)

    class Config:
        def __init__(self, *arguments: str) -> None:
            self.values = parser.parse(arguments)

        def getoption(self, name: str) -> object:
            return self.values.simulate_seed

    pytest_configure(Config())
    assert "ASWARM_SIMULATE_SEED" not in os.environ
    pytest_configure(Config("--simulate-seed=42"))
    assert os.environ["ASWARM_SIMULATE_SEED"] == "42"
    with pytest.raises(pytest.UsageError, match="invalid int value"):
        Config("--simulate-seed=first")


def test_a_decorator_without_parentheses_or_an_async_function_is_refused() -> None:
    """pytest would report a missing fixture, or that None cannot be awaited."""
    with pytest.raises(TypeError, match=r"write @simulate\(\)"):
        simulate(deposits)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs an async function"):
        simulate()(lambda world: None)  # type: ignore[arg-type,return-value]


def test_a_program_without_an_end_fails() -> None:
    """The loop counts its iterations, and its virtual time. The error has the seed, and no schedule is searched."""

    async def program(world: World) -> None:
        world.draw("nothing", 1)
        while True:
            await asyncio.sleep(0)

    async def patient(_: World) -> None:
        while True:
            await asyncio.sleep(3600)

    with pytest.raises(SimulationError, match="seed 3: Endless: the program did not end in 250000 iterations"):
        Simulation(program, folder=None).check(3)
    assert "in 86400 simulated seconds" in str(Simulation(patient).failure(World(0)))
    with pytest.raises(SimulationError, match=r"seed 0: Endless: .* in 7200 simulated seconds; see `seconds`"):
        simulate(runs=1, seconds=7200, folder=None)(patient)()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timer of the processor time")
@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_step_that_never_awaits_fails_its_universe(monkeypatch: pytest.MonkeyPatch, is_hidden: bool) -> None:
    """A tool whose loop never yields is interrupted, also if it catches every exception of its body."""
    monkeypatch.setattr("aswarm.testing.simulate._loop._MOST_PROCESSOR_SECONDS", 0.5)
    handler = signal.getsignal(signal.SIGVTALRM)

    async def busy() -> None:
        while True:
            try:
                sum(range(100))
            except Exception:  # as code of a user may do
                continue

    async def program(world: World) -> None:
        swarm = world.swarm(Provider(world, [call("busy"), "ok"]))
        if is_hidden:
            with suppress(BaseException):
                await world.run(swarm, Agent(functions=[busy]), "hi")
        else:
            await world.run(swarm, Agent(functions=[busy]), "hi")

    with pytest.raises(SimulationError, match=r"seed 5: Endless: a step of the loop does not end at "):
        Simulation(program, folder=None).check(5)
    assert signal.getsignal(signal.SIGVTALRM) is handler


def test_a_long_program_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a step that uses the processor for the whole time between two ticks is."""
    monkeypatch.setattr("aswarm.testing.simulate._loop._MOST_PROCESSOR_SECONDS", 0.05)

    async def program(world: World) -> None:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            sum(range(100))
            await asyncio.sleep(0)

    assert Simulation(program).failure(World(0)) is None


def test_a_simulation_works_in_a_thread_of_its_own() -> None:
    """Only the main thread can have a timer, so a step that never ends is not interrupted there."""
    failures: list[BaseException | None] = []

    async def program(world: World) -> None:
        await world.pause("anything")

    thread = threading.Thread(target=lambda: failures.append(Simulation(program).failure(World(0))))
    thread.start()
    thread.join()
    assert failures == [None]


def test_an_exit_of_the_program_is_no_failure_of_the_universe() -> None:
    """It ends the tests, as elsewhere."""

    async def program(_: World) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Simulation(program).failure(World(0))


def test_the_agent_is_compared_with_sequential_execution() -> None:
    """A handoff that depends on the order of concurrent calls is found."""
    target, other = Agent(name="b"), Agent(name="c")

    async def program(world: World) -> None:
        def chosen() -> Agent:
            return other if world.sequential else target

        await world.run(world.swarm(Provider(world, [call("chosen"), "ok"])), Agent(functions=[chosen]), "hi")

    assert "the agent is b; with one call at a time c" in str(Simulation(program).failure(World(0)))


def test_a_run_that_never_starts_and_a_scripted_failure_have_no_false_report() -> None:
    """Invariants skip a run without a response; the comparison skips a universe that fails with one call at a time."""

    async def program(world: World) -> None:
        assert not world.sequential, "fails with one call at a time"
        swarm = world.swarm(Provider(world, [Failure(400)]))
        for messages in ([7], "hi"):
            with pytest.raises((AswarmError, TypeError)):
                await world.run(swarm, Agent(), messages)

    assert Simulation(program).failure(World(0)) is None
