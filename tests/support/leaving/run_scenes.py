"""Helpers for tests that leave a run: recording tools, a run over real sockets, and a check for leftovers."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import anyio.lowlevel
import sniffio

from aswarm import Agent, AsyncSwarm, Response, agent_tool, progress, tool
from aswarm.tools import Progress
from tests.support.providers.loopback import LoopbackServer
from tests.support.providers.transports import Transport, client_at

UNKNOWN = "cancelled; its outcome is unknown"
INTERRUPTED = "not run: interrupted"
HANDOFF = '{"assistant": "other"}'
USER = {"role": "user", "content": "go"}
# Seconds until an open response is closed. 0.2 are promised on an idle machine; without the promise, it stays open for ever.
BOUND = 120


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for the condition. Fails after a time limit."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.001)


async def settle() -> None:
    """Let every task run until it waits. (anyio's own function waits 0.1 s on asyncio.)"""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def nothing_left_behind() -> AsyncIterator[None]:
    """Fail the test, on either backend, if the block leaves a task behind or (asyncio) calls the exception handler."""
    reported: list[dict[str, Any]] = []
    on_asyncio = sniffio.current_async_library() == "asyncio"
    if on_asyncio:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await settle()  # so that the tasks of a server around the block have started
    before = {task.id for task in anyio.get_running_tasks()}
    yield
    gc.collect(1)  # the young generations: a full collection takes longer than the rest of a test
    with anyio.move_on_after(BOUND):
        while {task.id for task in anyio.get_running_tasks()} - before:
            await anyio.sleep(0.001)
    left = [task for task in anyio.get_running_tasks() if task.id not in before]
    assert not left, f"tasks left: {left}"
    assert not reported, f"the exception handler was called: {reported}"


# --- recording tools ---------------------------------------------------------------------------------------------------


class Deeds:
    """Tools that record their calls. The slow tools wait at `gate`; `token` is a limiter with one token.

    The function in a thread takes `seconds_in_thread`, and waits at `thread_gate` before, if there is one.
    """

    def __init__(self) -> None:
        self.started: list[str] = []
        self.asked = 0
        self.finished: list[str] = []
        self.cleaned: list[str] = []
        self.running = 0
        self.gate = anyio.Event()
        self.token = anyio.CapacityLimiter(1)
        self.thread_gate: threading.Event | None = None
        self.seconds_in_thread = 0.4  # a slow machine needs 0.1 seconds to start the thread

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
                if self.thread_gate is not None:
                    self.thread_gate.wait(120)
                time.sleep(self.seconds_in_thread)
                return "plain done"

        def later() -> str:
            with self.doing("later"):
                return "later done"

        async def ask(*_: object) -> bool:
            self.asked += 1
            return True

        @tool(approve=ask)
        async def waits() -> str:
            with self.doing("waits"):
                return "waits done"

        async def tells() -> AsyncGenerator[object, None]:
            with self.doing("tells"):
                yield Progress("half")
                progress("three quarters")
                await self.gate.wait()
                yield "tells done"

        helper = agent_tool(Agent(name="helper", functions=[slow, waits]))
        other = Agent(name="other", functions=[])
        return [fast, slow, slow_too, guarded, limited, plain, later, waits, tells, helper, other]


# --- a scene, and a run in it -----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Scene:
    """A server, a swarm and an agent that bring a run to one moment."""

    server: LoopbackServer
    swarm: AsyncSwarm
    deeds: Deeds
    agent: Agent
    is_between_turns: bool = False
    left_at: float = math.inf  # when a generator was dropped
    tasks: int = 0  # the number of tasks at the start of the scene

    async def instructions(self) -> str:
        """Block the run between its turns."""
        if self.deeds.finished == ["fast"] and not self.deeds.gate.is_set():
            self.is_between_turns = True
            await self.deeds.gate.wait()
        return "Be brief."


def client_of(
    server: LoopbackServer,
    transport: Transport = "httpx",
    api: Literal["auto", "chat", "responses", "anthropic"] = "auto",
) -> Any:
    """Return a real client. `api`: for the direct source, which chooses its API itself."""
    return client_at(server.base_url, transport, api)


class Journey:
    """One run, in one way to run. `response` and `partial`: as returned after the end."""

    def __init__(self, scene: Scene, face: str) -> None:
        self._scene = scene
        self._face = face
        self._run: Any = None
        self._carried: Response | None = None
        self.has_read_half: bool = face == "run"  # a whole answer shows nothing before its end

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
            self._carried = await run
        except BaseException as error:
            self._carried = error.response  # type: ignore[attr-defined]
            raise

    async def _read(self) -> None:
        async for _ in self._run:
            self.has_read_half = self._run.partial == "Hello"


def made_calls(messages: list[Any]) -> list[str]:
    """Return the names of the calls in a history."""
    return [made["function"]["name"] for message in messages for made in message.get("tool_calls") or ()]


def answered(messages: list[Any]) -> list[str]:
    """Return the names of the calls with an answer."""
    return [message["tool_name"] for message in messages if message["role"] == "tool"]
