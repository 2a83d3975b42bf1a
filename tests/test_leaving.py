"""Leaving a run while it waits: every way by every moment by every face, over real sockets.

The first half holds the words (moments, faces, tools that note what they did), which the other `test_leaving_*` files
share; the second half the ways and the matrix.
"""

from __future__ import annotations

import asyncio
import gc
import math
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import openai
import pytest
import sniffio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from aswarm import Agent, AsyncSwarm, Response, tool
from aswarm.testing import Answer, call, check_history
from loopback import LoopbackServer, Reply, serve, sse, whole

UNKNOWN = "cancelled; its outcome is unknown"
INTERRUPTED = "not run: interrupted"
HANDOFF = '{"assistant": "other"}'
USER = {"role": "user", "content": "go"}
BOUND = 0.2  # seconds: the contract's bound for an open response


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    """Wait for the condition; a test that waits in vain fails."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.001)


async def settle() -> None:
    """Let everything in the event loop come to where it waits. (anyio's own waits 0.1 s on asyncio.)"""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def nothing_left_behind() -> AsyncIterator[None]:
    """Fails the test, on either backend, when the block leaves a task or (asyncio) calls the exception handler."""
    reported: list[dict[str, Any]] = []
    on_asyncio = sniffio.current_async_library() == "asyncio"
    if on_asyncio:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await settle()  # so that the tasks of a server around the block have begun
    before = {task.id for task in anyio.get_running_tasks()}
    yield
    gc.collect(1)  # the young ones: a full collection would cost more than the rest of a test
    with anyio.move_on_after(BOUND):
        while {task.id for task in anyio.get_running_tasks()} - before:
            await anyio.sleep(0.001)
    left = [task for task in anyio.get_running_tasks() if task.id not in before]
    assert not left, f"tasks left: {left}"
    assert not reported, f"the exception handler was called: {reported}"


# --- tools that note what they did ------------------------------------------------------------------------------------


class Deeds:
    """Tools that note what they did. The slow ones wait at `gate`; `token` is the one token of a limiter."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.finished: list[str] = []
        self.cleaned: list[str] = []
        self.running = 0
        self.gate = anyio.Event()
        self.token = anyio.CapacityLimiter(1)
        self.seconds_in_thread = 0.08

    @contextmanager
    def doing(self, name: str) -> Iterator[None]:
        self.started.append(name)
        self.running += 1
        try:
            yield
            self.finished.append(name)
        finally:
            self.running -= 1

    def tools(self) -> list[Any]:
        async def fast() -> str:
            with self.doing("fast"):
                return "fast done"

        async def slow() -> str:
            with self.doing("slow"):
                await self.gate.wait()
                return "slow done"

        async def slow_too() -> str:
            with self.doing("slow_too"):
                await self.gate.wait()
                return "slow_too done"

        async def guarded() -> str:
            with self.doing("guarded"):
                try:
                    await self.gate.wait()
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(0.03)
                        self.cleaned.append("guarded")
                return "guarded done"

        @tool(limiter=self.token)
        async def limited() -> str:
            with self.doing("limited"):
                return "limited done"

        def plain() -> str:
            with self.doing("plain"):
                time.sleep(self.seconds_in_thread)
                return "plain done"

        def later() -> str:
            with self.doing("later"):
                return "later done"

        return [fast, slow, slow_too, guarded, limited, plain, later, Agent(name="other", functions=[])]


# --- moments ----------------------------------------------------------------------------------------------------------

Speech = Callable[[bool], Reply]  # from "is it streamed" to what the server says


def says(answer: Answer) -> Speech:
    """A correct answer."""
    return lambda stream: sse(answer) if stream else whole(answer)


def says_nothing(stream: bool) -> Reply:
    """The request is read, and nothing follows."""
    return Reply([], silent=True)


def says_only_the_head(stream: bool) -> Reply:
    """Status and headers, and no byte of the body."""
    return Reply([], end="stall")


def says_half(stream: bool) -> Reply:
    """An answer that stops in the middle of its text."""
    text = Answer("Hello, world")
    if stream:
        return Reply(sse(text, cut=5).pieces[:2], end="stall")
    return Reply([whole(text).pieces[0][:40]], end="stall", content_type="application/json")


@dataclass(frozen=True)
class Moment:
    """Where a run is when it is left, and what it must have kept: `answers` by function name, `open` calls, `agent`."""

    speech: Speech
    reached: Callable[[Scene, Journey], object]
    answers: Mapping[str, str] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    agent: str = "first"
    partial: str = ""
    holds_response: bool = False


def in_tools(*calls: str, started: tuple[str, ...], **kept: Any) -> Moment:
    """A moment in which these calls were asked for, and these have started (or are finished)."""
    return Moment(
        says(Answer(calls=[call(name) for name in calls])),
        lambda scene, _: set(started) <= set(scene.deeds.started),
        **kept,
    )


def asked(scene: Scene, _: Journey) -> bool:
    """The server has read the request."""
    return bool(scene.server.requests)


MOMENTS: dict[str, Moment] = {
    "before the head": Moment(says_nothing, asked, holds_response=True),
    "before the first byte": Moment(says_only_the_head, asked, holds_response=True),
    "mid-token": Moment(
        says_half, lambda scene, run: asked(scene, run) and run.has_read_half, partial="Hello", holds_response=True
    ),
    "async tool": in_tools("slow", started=("slow",), answers={"slow": UNKNOWN}),
    "function in a thread": in_tools("plain", started=("plain",), answers={"plain": "plain done"}),
    "thread, then another": in_tools(
        "plain", "later", started=("plain",), answers={"plain": "plain done"}, open=("later",)
    ),
    "several in one group": in_tools(
        *("fast", "slow", "slow_too", "later"),
        started=("fast", "slow", "slow_too"),
        answers={"fast": "fast done", "slow": UNKNOWN, "slow_too": UNKNOWN},
        open=("later",),
    ),
    "waiting for a limiter": in_tools(
        "fast", "limited", started=("fast",), answers={"fast": "fast done"}, open=("limited",)
    ),
    "shielded cleanup": in_tools("guarded", started=("guarded",), answers={"guarded": UNKNOWN}),
    "after a handoff": in_tools(
        *("transfer_to_other", "slow", "later"),
        started=("slow",),
        answers={"transfer_to_other": HANDOFF, "slow": UNKNOWN, "later": INTERRUPTED},
        agent="other",
    ),
    "between turns": Moment(
        says(Answer(calls=[call("fast")])), lambda scene, _: scene.is_between_turns, {"fast": "fast done"}
    ),
}


# --- a scene, and a run in it -----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Scene:
    """A server, a swarm and an agent, in which one moment can be reached."""

    server: LoopbackServer
    swarm: AsyncSwarm
    deeds: Deeds
    agent: Agent
    is_between_turns: bool = False
    left_at: float = math.inf  # when a generator was dropped
    tasks: int = 0  # how many there were when the scene began

    async def instructions(self) -> str:
        """Holds the run between its turns."""
        if self.deeds.finished == ["fast"] and not self.deeds.gate.is_set():
            self.is_between_turns = True
            await self.deeds.gate.wait()
        return "Be brief."


def client_of(server: LoopbackServer) -> AsyncOpenAI:
    """A real client; it is given an empty SSL context, because making a full one costs more than a whole test."""
    http_client = DefaultAsyncHttpxClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0, http_client=http_client)


@asynccontextmanager
async def scene_of(moment: Moment) -> AsyncIterator[Scene]:
    """The scene of a moment. The first request gets its speech, every other one "done"."""

    def reply(body: dict[str, Any]) -> Reply:
        speech = moment.speech if len(server.requests) == 1 else says(Answer("done"))
        return speech(bool(body.get("stream")))

    deeds = Deeds()
    async with serve(reply) as server, client_of(server) as client:
        scene = Scene(server, AsyncSwarm(client), deeds, Agent(name="first", functions=deeds.tools()))
        if moment is MOMENTS["between turns"]:
            scene.agent.instructions = scene.instructions
        deeds.token.acquire_on_behalf_of_nowait(scene)
        await settle()
        scene.tasks = len(anyio.get_running_tasks())
        yield scene


class Journey:
    """One run, as one face shows it. `response` and `partial` as the face gives them after the end."""

    def __init__(self, scene: Scene, face: str) -> None:
        self._scene = scene
        self._face = face
        self._run: Any = None
        self._carried: Response | None = None
        self.has_read_half: bool = face == "run"  # a whole answer shows nothing of itself before its end

    @property
    def response(self) -> Response:
        response = self._carried or self._run.response
        assert isinstance(response, Response)
        return response

    @property
    def partial(self) -> str | None:
        return None if self._face == "run" else self._run.partial

    async def travel(self) -> None:
        """Consume the run to its end."""
        swarm, agent = self._scene.swarm, self._scene.agent
        if self._face == "run":
            await self._await(swarm.run(agent, [USER]))
        elif self._face == "run(stream=True)":
            self._run = swarm.run(agent, [USER], stream=True)
            await self._read()
        else:
            async with swarm.stream(agent, [USER]) as self._run:
                await self._read()

    async def _await(self, run: Awaitable[Response]) -> None:
        try:
            await run
        except BaseException as error:
            self._carried = error.response  # type: ignore[attr-defined]
            raise

    async def _read(self) -> None:
        async for _ in self._run:
            self.has_read_half = self._run.partial == "Hello"


FACES = ("run", "run(stream=True)", "stream")


async def check_left(scene: Scene, moment: Moment, journey: Journey, finished_at: float) -> None:
    """What every way of leaving promises: an end of everything, a valid history, and that one can go on from it."""
    assert scene.deeds.running == 0, "a tool still runs"
    if moment.holds_response:
        await until(lambda: scene.server.closed_at)
        assert scene.server.closed_at[0] - finished_at < BOUND
    await until(lambda: scene.server.open_now == 0)
    if journey.partial is not None:
        assert journey.partial == moment.partial
    check_kept(moment, journey.response)
    if "guarded" in scene.deeds.started:
        assert scene.deeds.cleaned == ["guarded"], "a shielded cleanup was cut short"
    await check_continues(scene, journey.response)


def check_kept(moment: Moment, response: Response) -> None:
    """The response is valid, and says what had happened."""
    check_history([USER, *response.messages], allow_open=True)
    assert response.stop == "cancelled"
    assert response.agent is not None
    assert response.agent.name == moment.agent
    asked_for = [made["function"]["name"] for message in response.messages for made in message.get("tool_calls") or ()]
    answers = {message["tool_name"]: message["content"] for message in response.messages if message["role"] == "tool"}
    assert answers == moment.answers
    assert tuple(name for name in asked_for if name not in answers) == moment.open


async def check_continues(scene: Scene, response: Response) -> None:
    """The conversation can be finished from the response, and nothing is run twice."""
    open_before = set(made_calls(response.messages)) - set(answered(response.messages))
    scene.deeds.gate.set()
    scene.deeds.token.release_on_behalf_of(scene)
    assert response.agent is not None
    history = [USER, *response.messages]
    end = await scene.swarm.run(response.agent, history, response.context_variables, resume=True)
    assert end.text == "done"
    check_history([*history, *end.messages])
    assert max(Counter(scene.deeds.started).values(), default=1) == 1, "a call was run twice"
    assert open_before <= set(scene.deeds.finished), "an open call was never run"


def made_calls(messages: list[Any]) -> list[str]:
    """The names of the calls in a history."""
    return [made["function"]["name"] for message in messages for made in message.get("tool_calls") or ()]


def answered(messages: list[Any]) -> list[str]:
    """The names of the calls that have an answer."""
    return [message["tool_name"] for message in messages if message["role"] == "tool"]


# --- ways of leaving while the run waits ------------------------------------------------------------------------------

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
    """`task.cancel()` at every step of the event loop until the task has ended."""
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


async def by_wait_for(travel: Travel, ready: Travel) -> None:
    """`asyncio.wait_for`."""
    task = asyncio.ensure_future(travel())
    await ready()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 0.001)


async def by_fail_after(travel: Travel, ready: Travel) -> None:
    """`anyio.fail_after`."""

    async def pass_the_deadline() -> None:
        await ready()
        scope.deadline = anyio.current_time()

    async with anyio.create_task_group() as group:
        with pytest.raises(TimeoutError), anyio.fail_after(30) as scope:  # noqa: PT012 - the block is what is left
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


ANYIO_WAYS: dict[str, Way] = {way.__name__: way for way in (by_fail_after, by_cancelling_a_scope)}
ASYNCIO_WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        by_cancelling_the_task,
        by_cancelling_again_and_again,
        by_a_failing_sibling,
        by_asyncio_timeout,
        by_wait_for,
    )
}
WAYS = ASYNCIO_WAYS | ANYIO_WAYS


async def leave_and_check(way: str, moment_name: str, face: str) -> None:
    """Reach the moment, leave, and check what is left."""
    moment = MOMENTS[moment_name]
    async with scene_of(moment) as scene, nothing_left_behind():
        journey = Journey(scene, face)

        async def ready() -> None:
            await until(lambda: moment.reached(scene, journey))
            await settle()

        await WAYS[way](journey.travel, ready)
        finished_at = anyio.current_time()
        await check_left(scene, moment, journey, finished_at)


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", WAYS)
async def test_leaving_on_asyncio(way: str, moment: str, face: str) -> None:
    """Whoever leaves, however and whenever: all is closed and ended, the history is valid, and can be gone on from."""
    if way == "by_cancelling_again_and_again" and MOMENTS[moment].holds_response and openai.VERSION < "3":
        pytest.skip("httpcore 1 gives up closing a connection when it is cancelled a second time; httpcore2 does not")
    await leave_and_check(way, moment, face)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", ANYIO_WAYS)
async def test_leaving_on_trio(way: str, moment: str, face: str) -> None:
    """The same on trio."""
    await leave_and_check(way, moment, face)
