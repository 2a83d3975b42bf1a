"""The check of a structured output: its parameters, an async check, and the exits while it runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    CompletionFinished,
    ConfigurationError,
    Output,
    OutputError,
    Resource,
    RunError,
    Swarm,
    ToolError,
)
from aswarm.conversations import MemoryStore
from aswarm.guards import Block, guard_answer
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.typed_scene import ROME, Scene, Trip, final, look, told
from tests.support.runtime.virtual_time import jump

NAPLES = '{"city": "Naples"}'


class Cities:
    """A client of the user."""

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass
class Settings:
    """Typed context variables."""

    at_most: int = 4


async def known(trip: Trip, cities: Resource[Cities], context_variables: Settings) -> None:
    """Raise ValueError for a city that is unknown, or whose name is too long."""
    await anyio.sleep(0)
    if trip.city not in cities.names or len(trip.city) > context_variables.at_most:
        raise ValueError(f"not {trip.city}")


def known_at_once(trip: Trip, cities: Resource[Cities], context_variables: Mapping[str, Any]) -> None:
    if trip.city not in cities.names or len(trip.city) > context_variables["at_most"]:
        raise ValueError(f"not {trip.city}")


def wrapped(check: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(check)
    def plain(*args: Any, **keywords: Any) -> Any:
        return check(*args, **keywords)

    return plain


STEPS = {
    "schema": (NAPLES, ROME),
    "prompt": (NAPLES, ROME),
    "tool": ([final(city="Naples"), call("look"), final(city="Oslo")], final(city="Rome")),
}
RESOURCES = {"cities": Cities("Rome", "Naples")}
CONTEXT = {"at_most": 4}


# --- the parameters ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("check", [known, known_at_once, wrapped(known)], ids=["async", "plain", "wrapped"])
@pytest.mark.parametrize("mode", STEPS)
async def test_a_check_gets_the_context_and_resources(mode: Any, check: Any) -> None:
    """In each mode, the model gets the text of its ValueError, and answers again."""
    scene = Scene(*STEPS[mode], functions=(look,) if mode == "tool" else ())
    output = Output(Trip, mode=mode, check=check)
    response = await scene.run(output=output, resources=RESOURCES, context_variables=CONTEXT)
    assert (response.output, response.stop) == (Trip(city="Rome"), "answer")
    assert [text for text in told(response) if "not Naples" in text]
    assert len(scene.model.requests) == 2


@pytest.mark.parametrize("check", [known, known_at_once])
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"context_variables": CONTEXT}, "the check of its answer: the resource 'cities' is missing"),
        ({"resources": {"cities": 7}, "context_variables": CONTEXT}, "of the class int, not Cities"),
    ],
    ids=["missing", "class"],
)
@pytest.mark.parametrize("place", ["run", "agent"])
async def test_a_missing_resource_is_refused_before_the_first_request(
    check: Any, options: dict[str, Any], fault: str, place: str
) -> None:
    """The run raises ConfigurationError, for the output of the run and of the agent."""
    output = Output(Trip, check=check)
    scene = Scene(ROME, output=output if place == "agent" else None)
    with pytest.raises(ConfigurationError, match=fault):
        await scene.run(**options, **({"output": output} if place == "run" else {}))
    assert not scene.model.requests


async def test_a_context_that_does_not_fit_is_refused_before_the_first_request() -> None:
    """The type of the parameter `context_variables` is checked like the type of a function's parameter."""
    scene = Scene(ROME)
    with pytest.raises(ConfigurationError, match=r"the check of its answer: .*at_most"):
        await scene.run(output=Output(Trip, check=known), resources=RESOURCES, context_variables={"at_most": "many"})
    assert not scene.model.requests


def _two(trip: Trip, database: object) -> None: ...


def _nothing() -> None: ...


def _generator(trip: Trip) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (_two, "check '_two' of an Output cannot be called: missing a required argument: 'database'"),
        (_nothing, "check '_nothing' of an Output cannot be called: too many positional arguments"),
        (_generator, "check '_generator' of an Output must be a function without `yield`"),
    ],
)
@pytest.mark.parametrize("is_handoff", [False, True], ids=["first", "handoff"])
async def test_a_check_that_cannot_be_called_is_refused_before_its_first_answer(
    check: Any, fault: str, is_handoff: bool
) -> None:
    """A parameter that nothing fills is a ConfigurationError, at the start of the run or at the handoff."""
    last = Agent(name="Last", output=Output(Trip, check=check))
    model = ScriptedModel([call("transfer_to_last"), ROME])
    agent = Agent(functions=[last]) if is_handoff else last
    with pytest.raises(ConfigurationError, match=fault):
        await AsyncSwarm(model.client()).run(agent, "Go")
    assert len(model.requests) == is_handoff


@pytest.mark.parametrize("check", [int, lambda context_variables: context_variables.city, print])
async def test_a_check_with_one_parameter_gets_the_answer(check: Any) -> None:
    """The first parameter is the answer, whatever its name, and also in a builtin without a signature."""
    kind = str if check is int else Trip
    response = await Scene("7" if check is int else ROME, functions=()).run(output=Output(kind, check=check))
    assert response.stop == "answer"


async def test_a_plain_check_may_return_an_awaitable() -> None:
    """The run awaits an object that is not a coroutine, and the ValueError that it raises refuses the answer."""

    class Later:
        def __init__(self, trip: Trip) -> None:
            self.trip = trip

        def __await__(self) -> Iterator[None]:
            yield from anyio.lowlevel.checkpoint().__await__()
            if self.trip.city == "Naples":
                raise ValueError("not Naples")

    response = await Scene(NAPLES, ROME, functions=()).run(output=Output(Trip, check=Later))
    assert (response.output.city, "not Naples" in told(response)[0]) == ("Rome", True)


def _is_rome(trip: Trip) -> bool:
    return trip.city == "Rome"


def _in_capitals(trip: Trip) -> Trip:
    return trip.model_copy(update={"city": trip.city.upper()})


def _told(trip: Trip) -> Trip:
    if trip.city == "Naples":
        raise ToolError("not Naples")
    return trip


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (_is_rome, "returned False; for a wrong answer, raise ValueError"),
        (_in_capitals, "cannot change the answer"),
        (_told, ""),
    ],
)
async def test_no_result_of_a_check_is_ignored_silently(
    check: Callable[[Trip], object], fault: str, is_async: bool
) -> None:
    """A check in the style of another library returns whether the answer is right, returns a changed answer, or raises ToolError."""

    async def later(trip: Trip) -> object:
        await anyio.lowlevel.checkpoint()
        return check(trip)

    run = Scene(NAPLES, ROME, functions=()).run(output=Output(Trip, check=later if is_async else check))
    if not fault:
        response = await run
        assert (response.output.city, "not Naples" in told(response)[0]) == ("Rome", True)
        return
    with pytest.raises(ConfigurationError, match=fault) as caught:
        await run
    assert check_history(caught.value.response.messages) is None


# --- an async check ---------------------------------------------------------------------------------------------------


async def refused(value: object) -> None:
    """Raise a ValueError without a text."""
    await anyio.sleep(0)
    raise ValueError


async def test_the_retries_of_an_async_check_end_with_an_error() -> None:
    with pytest.raises(OutputError, match="the answer was refused") as caught:
        await Scene(NAPLES, ROME, functions=()).run(output=Output(Trip, check=refused))
    assert len(caught.value.response.messages) == 3


async def test_another_exception_of_an_async_check_ends_the_run() -> None:
    """The run raises it as a RunError; the response has the answer that was checked."""

    async def broken(value: object) -> None:
        raise KeyError("city")

    with pytest.raises(RunError, match="city") as caught:
        await Scene(ROME, functions=()).run(output=Output(Trip, check=broken))
    assert caught.value.response.messages[-1]["content"] == ROME


@pytest.mark.asyncio
async def test_a_cancellation_that_is_not_of_the_run_is_an_error() -> None:
    """A check that awaits a cancelled task of other code ends the run with a RunError."""

    async def cancelled(value: object) -> None:
        raise asyncio.CancelledError

    with pytest.raises(RunError, match="the check of the answer was cancelled, but not by its run"):
        await Scene(ROME, functions=()).run(output=Output(Trip, check=cancelled))


@pytest.mark.parametrize("answer", [ROME, final(city="Rome")], ids=["text", "call"])
async def test_a_run_that_is_cancelled_during_the_check_keeps_its_answer(answer: Any) -> None:
    """The history is valid, the completion is counted, and the history can be resumed: its check runs then."""
    started = anyio.Event()

    async def slow(value: Trip) -> None:
        started.set()
        await anyio.sleep_forever()

    model = ScriptedModel([answer, ROME])
    swarm, agent = AsyncSwarm(model.client()), Agent(functions=[look])
    async with anyio.create_task_group() as group, swarm.stream(agent, "Go", output=Output(Trip, check=slow)) as run:

        async def cancel() -> None:
            await started.wait()
            group.cancel_scope.cancel()

        group.start_soon(cancel)
        async for _ in run:
            pass
    response = run.response
    assert (response.stop, len(response.messages), response.usage.total_tokens > 0) == ("cancelled", 1, True)
    with pytest.raises(OutputError, match="stopped before it had an answer"):
        _ = response.output
    history = [{"role": "user", "content": "Go"}, *response.messages]
    check_history(history, allow_open=True)
    checked: list[Trip] = []

    async def noted(value: Trip) -> None:
        checked.append(value)

    if response.open_calls:
        resumed = await swarm.run(agent, history, resume=True, output=Output(Trip, check=noted))
        assert (resumed.stop, checked, len(model.requests)) == ("answer", [Trip(city="Rome")], 1)
        check_history([*history, *resumed.messages])


@pytest.mark.parametrize("check", [known, wrapped(known)], ids=["async", "wrapped"])
@pytest.mark.parametrize("answer", [ROME, final(city="Rome")], ids=["text", "call"])
async def test_a_reader_that_leaves_before_the_check_leaves_no_coroutine(check: Any, answer: Any) -> None:
    """A break at the end of the completion closes the run before an async check; Python warns of no coroutine."""
    swarm = AsyncSwarm(ScriptedModel([answer]).client())
    options: dict[str, Any] = {"resources": RESOURCES, "context_variables": CONTEXT}
    async with swarm.stream(Agent(functions=[look]), "Go", output=Output(Trip, check=check), **options) as run:
        async for event in run:
            if isinstance(event, CompletionFinished):
                break
    assert run.response.stop == "cancelled"
    check_history([{"role": "user", "content": "Go"}, *run.response.messages], allow_open=True)


async def test_a_budget_without_seconds_left_does_not_cut_a_check() -> None:
    """The answer is paid for, so its check runs to its end, and the run has an answer."""

    async def slow(value: Trip) -> None:
        jump(601)
        await anyio.sleep(0.01)

    response = await Scene(ROME, functions=()).run(output=Output(Trip, check=slow), budget=Budget(seconds=600))
    assert (response.stop, response.output) == ("answer", Trip(city="Rome"))


@pytest.mark.parametrize("last", [NAPLES, final(city="Naples")], ids=["text", "call"])
async def test_a_refused_answer_of_the_last_completion_of_a_budget(last: Any) -> None:
    """The run ends at its budget, without another request."""
    scene = Scene(call("look"), last)
    output = Output(Trip, check=known)
    budget = Budget(turns=1, then="answer")
    response = await scene.run(output=output, resources=RESOURCES, context_variables=CONTEXT, budget=budget)
    assert (response.stop, len(scene.model.requests)) == ("budget", 2)


async def test_a_message_of_the_user_during_the_check_continues_the_run() -> None:
    """The message is recorded after the answer, and the model is asked again."""
    model = ScriptedModel([ROME, NAPLES])

    async def slow(value: Trip) -> None:
        if value.city == "Rome":
            run.send("Another one, please.")
        await anyio.sleep(0)

    swarm = AsyncSwarm(model.client())
    async with swarm.stream(Agent(), "Go", output=Output(Trip, check=slow)) as run:
        async for _ in run:
            pass
    assert [message["role"] for message in run.response.messages] == ["assistant", "user", "assistant"]
    assert run.response.output.city == "Naples"


# --- other ways to run ------------------------------------------------------------------------------------------------


def test_the_blocking_swarm_waits_for_an_async_check() -> None:
    model = ScriptedModel([NAPLES, ROME])
    with Swarm(model.client(), resources=RESOURCES) as swarm:
        response = swarm.run(Agent(), "Go", CONTEXT, output=Output(Trip, check=known))
    assert response.output.city == "Rome"


async def test_a_batch_waits_for_an_async_check() -> None:
    model = ScriptedModel([NAPLES, ROME])
    swarm = AsyncSwarm(model.client(), resources=RESOURCES)
    output = Output(Trip, check=known)
    async with swarm.batch(Agent(), ["Go"], output=output, context_variables=CONTEXT) as outcomes:
        cities = [outcome.response.output.city async for outcome in outcomes if outcome.response]
    assert cities == ["Rome"]


async def test_a_guard_and_a_stored_conversation_see_the_checked_answer() -> None:
    """A guard of the answer runs before the check, and the store has each attempt with its correction."""
    seen: list[str] = []

    async def no_paris(checked: Any) -> Block | None:
        seen.append(checked.text)
        return None

    model = ScriptedModel([NAPLES, ROME])
    swarm = AsyncSwarm(model.client(), middleware=[guard_answer(no_paris)], resources=RESOURCES)
    async with MemoryStore() as store:
        chat = store.conversation("c", swarm, agent=Agent(), context_variables=CONTEXT)
        response = await chat.run("Go", output=Output(Trip, check=known))
        stored = await store.load("c")
    assert (response.output.city, seen) == ("Rome", [NAPLES, ROME])
    assert stored is not None
    assert [message["role"] for message in stored.messages] == ["user", "assistant", "user", "assistant"]
