"""Leaving a stream while the consumer holds an event: break, aclose, an exception, garbage collection."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response
from aswarm.middleware import Middleware
from aswarm.sources import CompletionRequest
from aswarm.testing import ScriptedAnswer
from tests.support.leaving.leave_at_events import EVENTS, Held
from tests.support.leaving.leave_points import Api, check_continues, check_kept, scene_of
from tests.support.leaving.run_scenes import BOUND, USER, Scene, nothing_left_behind, settle, until
from tests.support.otel.traces import traced
from tests.support.providers.loopback import Reply, serve, sse
from tests.support.providers.transports import Transport
from tests.support.sampling import case


class Abandoned(Exception):
    """An exception of the body."""


Way = Callable[[Scene, str, Held], Awaitable[Response]]


async def by_break(scene: Scene, face: str, held: Held) -> Response:
    """`break`; of a bare classic stream it drops the last reference."""
    if face == "typed":
        async with scene.swarm.stream(scene.agent, [USER]) as run:
            async for got in run:
                if held(got):
                    await settle()
                    break
        return run.response
    left: list[_State] = []
    async for got in remember(scene.swarm.run(scene.agent, [USER], stream=True), left):
        if held(got):
            break
    return await after_collection(scene, left)


def remember(stream: Any, left: list[_State]) -> Any:
    """The stream, of which only the state is kept."""
    left.append(_State(stream))
    return stream


async def by_aclose(scene: Scene, face: str, held: Held) -> Response:
    """`aclose()`, twice for good measure."""
    if face == "classic":
        stream = scene.swarm.run(scene.agent, [USER], stream=True)
        await read_until(stream, held)
        await stream.aclose()
        await stream.aclose()
        return stream.response
    async with scene.swarm.stream(scene.agent, [USER]) as run:
        await read_until(run, held)
        await run.aclose()
        at_once = run.response
    assert at_once == run.response
    return run.response


async def by_exception(scene: Scene, face: str, held: Held) -> Response:
    """An exception of the body, which leaves as itself."""
    run: Any
    with pytest.raises(Abandoned) as caught:  # noqa: PT012 - the body raises
        if face == "classic":
            async with aclosing(scene.swarm.run(scene.agent, [USER], stream=True)) as run:
                await read_until(run, held)
                raise Abandoned
        async with scene.swarm.stream(scene.agent, [USER]) as run:
            await read_until(run, held)
            raise Abandoned
    assert type(caught.value) is Abandoned
    assert caught.value.__cause__ is None
    response: Response = run.response
    return response


async def by_dropping(scene: Scene, face: str, held: Held) -> Response:
    """Drop the last reference to a user's own generator."""
    runs: list[_State] = []
    source = own_generator(scene, face, runs)
    await read_until(source, held)
    del source
    return await after_collection(scene, runs)


async def by_dropping_a_cycle(scene: Scene, face: str, held: Held) -> Response:
    """Collect a generator that is part of a reference cycle, with all that it holds."""
    runs: list[_State] = []
    box: list[Any] = []
    box.append(own_generator(scene, face, runs, box))
    await read_until(box[0], held)
    del box
    gc.collect()
    return await after_collection(scene, runs)


async def by_closing_own_generator(scene: Scene, face: str, held: Held) -> Response:
    """`aclose()` of a user's own generator around the run."""
    runs: list[_State] = []
    async with aclosing(own_generator(scene, face, runs)) as source:
        await read_until(source, held)
    return runs[0].response


async def own_generator(scene: Scene, face: str, runs: list[_State], _box: object = None) -> AsyncGenerator[Any, None]:
    """A generator around a run, which many applications have."""
    if face == "classic":
        stream = scene.swarm.run(scene.agent, [USER], stream=True)
        runs.append(_State(stream))
        async for got in stream:
            yield got
    else:
        async with scene.swarm.stream(scene.agent, [USER]) as run:
            runs.append(_State(run))
            async for happened in run:
                yield happened


class _State:
    """The state of a stream that is dropped. A reference to the stream itself would keep it."""

    def __init__(self, run: Any) -> None:
        self._state = run._state

    @property
    def response(self) -> Response:
        response = self._state.response
        assert isinstance(response, Response)
        return response


async def read_until(source: Any, held: Held) -> None:
    """Consume up to the held event."""
    while not held(await anext(source)):
        pass
    await settle()


async def after_collection(scene: Scene, left: list[_State]) -> Response:
    """Wait until the event loop has closed a collected generator."""
    scene.left_at = anyio.current_time()
    with suppress(TimeoutError):
        await until(lambda: len(anyio.get_running_tasks()) <= scene.tasks and scene.server.open_now == 0, 1)
    return left[0].response


WAYS = (by_break, by_aclose, by_exception, by_closing_own_generator, by_dropping, by_dropping_a_cycle)


async def leave_and_check(
    way: Way, held_event: str, api: Api = "chat", middleware: Sequence[Middleware] = (), transport: Transport = "httpx"
) -> None:
    """Read up to the event, leave, and check what is left."""
    face, make_held, moment = EVENTS[held_event]
    async with scene_of(moment, api, middleware, transport) as scene, nothing_left_behind():
        response = await way(scene, face, make_held())
        left_at = min(scene.left_at, anyio.current_time())
        await until(lambda: scene.server.open_now == 0)
        if moment.holds_response:
            assert scene.server.closed_at[0] - left_at < BOUND
        assert scene.deeds.running == 0, "a tool still runs"
        if "guarded" in scene.deeds.started:
            assert scene.deeds.cleaned == ["guarded"]
        check_kept(moment, response)
        await check_continues(scene, response)
        assert asyncio_cancellations() == 0, "the caller is being cancelled"


def asyncio_cancellations() -> int:
    """How many cancellations the calling task has been asked for; 0 on trio, where nobody else can ask."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return 0
    return task.cancelling() if task else 0


# On trio, a generator that is dropped rather than closed makes a warning.
DROPS_ON_TRIO = (
    "ignore:Async generator 'tests.leaving.test_streams.own_generator:ResourceWarning",
    "ignore:Async generator 'aswarm:ResourceWarning",
)
# By name: the backends, the quarter of the cases that CI runs, and how the run is made.
VARIANTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "httpx": ("each", 0, {}),
    "aiohttp": ("asyncio", 2, {"transport": "aiohttp"}),
    "direct": ("each", 2, {"transport": "direct"}),
    "responses": ("in turn", 0, {"api": "responses"}),
    "anthropic": ("in turn", 1, {"api": "anthropic"}),
    "traced": ("in turn", 2, {}),
}


def varied(variant: str) -> list[Any]:
    """Return the cases of a variant: each way at each event, on each backend or on the backends in turn."""
    named, quarter, _ = VARIANTS[variant]
    backends = ("asyncio",) if named == "asyncio" else ("asyncio", "trio")
    return [
        case(variant, way, held_event, backend, is_sampled=(number + place + (named == "each") * at) % 4 == quarter)
        for number, way in enumerate(WAYS)
        for place, held_event in enumerate(EVENTS)
        for at, backend in enumerate(backends)
        if named != "in turn" or (number // 2 + place) % 2 == at
    ]


@pytest.mark.filterwarnings(*DROPS_ON_TRIO)
@pytest.mark.parametrize(
    ("variant", "way", "held_event", "anyio_backend"), [each for variant in VARIANTS for each in varied(variant)]
)
async def test_a_stream_may_be_left_at_any_event(variant: str, way: Way, held_event: str) -> None:
    """Everything is closed, finished and kept, and the caller is not touched. No span is left open or current."""
    if variant != "traced":
        await leave_and_check(way, held_event, **VARIANTS[variant][2])
        return
    with traced() as traces:
        await leave_and_check(way, held_event, middleware=[traces.middleware()])
    first, *_ = traces.named("invoke_agent")
    assert (first.attributes or {})["aswarm.stop"] == "cancelled"


BREAKS_OUT = """
import asyncio, sys
from openai import AsyncOpenAI
from aswarm import Agent, AsyncSwarm

async def main():
    swarm = AsyncSwarm(client=AsyncOpenAI(base_url=sys.argv[1], api_key="x"))
    kept = swarm.run(Agent(), "Hi", stream=True)
    async for event in kept:
        if event.get("content"):
            break
    if sys.argv[2] == "drop":
        del kept

asyncio.run(main())
print("clean")
"""


@pytest.mark.processes
@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["drop", "keep"])
async def test_the_loop_ends_around_an_open_stream(how: str, tmp_path: Path) -> None:
    """A program that breaks out of a stream and ends prints nothing at its end, whether it keeps the stream or not."""
    (tmp_path / "program.py").write_text(BREAKS_OUT, encoding="utf-8")

    def flows(_: object) -> Reply:
        return sse(ScriptedAnswer("Hello " * 1000), cut=6, pause=0.01)

    async with serve(flows) as server:
        command = [sys.executable, "program.py", server.base_url, how]
        done = await anyio.run_process(command, cwd=tmp_path, stderr=subprocess.STDOUT)
    assert done.stdout.decode() == "clean\n"


class BadlyClosed:
    """A source that cannot be closed cleanly."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[dict[str, Any], None]:
        try:
            yield {"choices": [{"delta": {"content": "Hello"}}]}
        finally:
            raise OSError("cannot close")


async def test_a_dropped_run_that_cannot_be_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """No caller is left that could get the error, so it is logged; on trio it must not end the program."""

    async def read_a_little() -> None:
        async for _ in AsyncSwarm(client=BadlyClosed()).run(Agent(), "Hi", stream=True):
            break

    with caplog.at_level(logging.ERROR, logger="aswarm"):
        await read_a_little()
        with anyio.fail_after(60):
            while not caplog.records:
                await anyio.sleep(0.001)
    assert "dropped" in caplog.text
