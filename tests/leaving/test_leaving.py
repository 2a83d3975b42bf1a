"""Leaving a run while it waits: every way by every moment by every face, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import openai
import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.middleware import Middleware
from aswarm.testing import ScriptedModel, call
from tests.support.leaving.leave_points import MOMENTS, Api, check_left, scene_of
from tests.support.leaving.run_scenes import Journey, nothing_left_behind, settle, until
from tests.support.otel.traces import has_failed, traced
from tests.support.providers.transports import Transport
from tests.support.run.ways_to_run import FACES
from tests.support.sampling import case, every

Travel = Callable[[], Awaitable[None]]
Way = Callable[[Travel, Travel], Awaitable[None]]


async def by_cancelling_the_task(travel: Travel, ready: Travel) -> None:
    """A plain `task.cancel()`."""
    task = asyncio.ensure_future(travel())
    await ready()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_cancelling_again_and_again(travel: Travel, ready: Travel) -> None:
    """`task.cancel()` at every step of the event loop until the end of the task."""
    task = asyncio.ensure_future(travel())
    await ready()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()


async def by_a_failing_sibling(travel: Travel, ready: Travel) -> None:
    """`asyncio.TaskGroup` cancels the run because its neighbour fails."""

    async def fail() -> None:
        await ready()
        raise ZeroDivisionError

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(travel())  # type: ignore[arg-type]
            group.create_task(fail())

    # In a task of its own: on Python 3.11 a failed asyncio.TaskGroup leaves its task marked as being cancelled.
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.ensure_future(together())
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]


async def by_asyncio_timeout(travel: Travel, ready: Travel) -> None:
    """`asyncio.timeout`."""

    async def pass_the_deadline() -> None:
        await ready()
        timeout.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):  # noqa: PT012 - the block is what is left
        async with asyncio.timeout(None) as timeout:
            watch = asyncio.ensure_future(pass_the_deadline())
            await travel()
    await watch


async def by_fail_after(travel: Travel, ready: Travel) -> None:
    """`anyio.fail_after`."""

    async def pass_the_deadline() -> None:
        await ready()
        scope.deadline = anyio.current_time()

    async with anyio.create_task_group() as group:
        with pytest.raises(TimeoutError), anyio.fail_after(120) as scope:  # noqa: PT012 - the block is what is left
            group.start_soon(pass_the_deadline)
            await travel()


async def by_cancelling_a_scope(travel: Travel, ready: Travel) -> None:
    """Cancelling the anyio scope around the run."""
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()

        async def leave() -> None:
            await ready()
            scope.cancel()

        group.start_soon(leave)
        with scope:
            await travel()
        assert scope.cancelled_caught


ANYIO_WAYS = (by_fail_after, by_cancelling_a_scope)
WAYS = (
    *(by_cancelling_the_task, by_cancelling_again_and_again, by_a_failing_sibling, by_asyncio_timeout),
    *ANYIO_WAYS,
)
ON_BACKENDS = [*(("asyncio", way) for way in WAYS), *(("trio", way) for way in ANYIO_WAYS)]
# Each way at each moment, once, after its place; the faces take turns, so each of them meets each way and each moment.
PAIRS = [
    (number + place, (backend, way, moment, FACES[(number + place) % len(FACES)]))
    for number, (backend, way) in enumerate(ON_BACKENDS)
    for place, moment in enumerate(MOMENTS)
]
# By name: the quarter of the pairs that CI runs, and how the run is made.
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "responses": (0, {"api": "responses"}),
    "aiohttp": (1, {"transport": "aiohttp"}),
    "direct": (2, {"transport": "direct"}),
    "direct, responses": (2, {"transport": "direct", "api": "responses"}),
    "anthropic": (3, {"api": "anthropic"}),
    "a type": (0, {"output": list[int] | str}),
}


def varied(variant: str) -> list[Any]:
    """Return the cases of a variant: one in three for a type, of which CI runs all, and only asyncio for aiohttp."""
    pairs = [(at, pair) for at, pair in PAIRS if variant != "aiohttp" or pair[0] == "asyncio"]
    if variant == "a type":
        return [case(variant, *pair, is_sampled=True) for _, pair in pairs[::3]]
    return [case(variant, *pair, is_sampled=at % 4 == VARIANTS[variant][0]) for at, pair in pairs]


async def leave_and_check(
    way: Way,
    moment_name: str,
    face: str,
    api: Api = "chat",
    output: Any = None,
    middleware: Sequence[Middleware] = (),
    transport: Transport = "httpx",
) -> None:
    """Reach the moment, leave, and check the run."""
    moment = MOMENTS[moment_name]
    is_on_httpcore_1 = transport == "httpx" and openai.VERSION < "3"
    if way is by_cancelling_again_and_again and moment.holds_response and is_on_httpcore_1:
        pytest.skip("httpcore 1 gives up closing a connection when it is cancelled a second time; httpcore2 does not")
    async with scene_of(moment, api, middleware, transport) as scene, nothing_left_behind():
        scene.agent.output = output
        journey = Journey(scene, face)
        scene.deeds.thread_gate, scene.deeds.seconds_in_thread = threading.Event(), 0.2

        async def ready() -> None:
            await until(lambda: moment.reached(scene, journey))
            await settle()
            scene.deeds.thread_gate.set()  # from now on, the function in the thread takes long enough to leave meanwhile

        await way(journey.travel, ready)
        await check_left(scene, moment, journey, anyio.current_time())


@pytest.mark.parametrize(("anyio_backend", "way", "moment", "face"), every(4, ON_BACKENDS, MOMENTS, FACES))
async def test_a_run_may_be_left_at_any_moment(way: Way, moment: str, face: str) -> None:
    """After each way to leave, everything is closed and finished, the history is valid, and the run can be resumed."""
    await leave_and_check(way, moment, face)


@pytest.mark.parametrize(
    ("variant", "anyio_backend", "way", "moment", "face"), [case for name in VARIANTS for case in varied(name)]
)
async def test_the_api_the_transport_and_the_output_change_nothing(
    variant: str, way: Way, moment: str, face: str
) -> None:
    """The Responses API, aiohttp, the source without the SDK, and an answer with a type make no difference."""
    await leave_and_check(way, moment, face, **VARIANTS[variant][1])


TRACED = [pair for at, pair in PAIRS if at % 4 == 3]


@pytest.mark.parametrize(
    ("anyio_backend", "way", "moment", "face"),
    [
        case(*each, moment, face, is_sampled=(*each, moment, face) in TRACED)
        for each in ON_BACKENDS
        for moment in MOMENTS
        for face in FACES
    ],
)
async def test_a_traced_run_may_be_left_at_any_moment(way: Way, moment: str, face: str) -> None:
    """Every span ends under its parent, no span is an error, left open or current, and OpenTelemetry logs nothing."""
    with traced() as traces:
        await leave_and_check(way, moment, face, middleware=[traces.middleware()])
    assert not any(map(has_failed, traces.begun))
    first, *_ = traces.named("invoke_agent")
    assert (first.attributes or {})["aswarm.stop"] == "cancelled"


@pytest.mark.asyncio
async def test_cancelling_every_task_leaves_the_outcome_unknown() -> None:
    """Shutdown code cancels all tasks, in any order; a call that was cancelled is never recorded as failed."""
    begun = asyncio.Event()

    async def pay() -> str:
        begun.set()
        await asyncio.sleep(60)
        return "paid"

    for _ in range(10):
        begun.clear()
        model = ScriptedModel([[call("pay"), call("pay")]])
        task = asyncio.create_task(AsyncSwarm(client=model.client()).run(Agent(functions=[pay]), "Hi"))
        await begun.wait()
        for running in asyncio.all_tasks() - {asyncio.current_task()}:
            running.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        contents = {message["content"] for message in caught.value.response.messages[1:]}  # type: ignore[attr-defined]
        assert contents <= {"cancelled; its outcome is unknown"}
