"""A program for the simulation: `Service` over HTTP, whose process dies, and whose clients leave, come back and send twice."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import httpx

from aswarm.runs import Entry, LocalRuns
from aswarm.serve import Service
from aswarm.testing.simulate import Crash, Provider, World
from tests.support.testing.crashing import check_stored, in_processes
from tests.support.testing.drawn import FAULTS, agent, answers, api

_PATIENCE = (None, 0.01, 0.1)  # seconds


class Browser:
    """A client of the native routes."""

    def __init__(self, world: World, crash: Crash[httpx.AsyncClient], name: str) -> None:
        self._world = world
        self._crash = crash
        self._name = name

    async def _send(self, function: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]) -> httpx.Response:
        while True:
            with suppress(ConnectionResetError):
                response = await self._crash.call(function)
                if response.status_code != 503:  # the service is shutting down or starting
                    return response
            await self._world.pause(f"{self._name}: repeats")

    async def start(self, conversation: str, body: dict[str, Any], key: str) -> str | None:
        """Send a message or answers, twice in some universes. Returns the path of the events; None if it is refused."""
        paths: set[str] = set()
        headers = {"idempotency-key": key}

        async def post() -> None:
            path = f"/conversations/{conversation}/runs"
            response = await self._send(lambda http: http.post(path, json=body, headers=headers))
            assert response.status_code < 500, response.text
            if response.is_success:
                paths.add(response.headers["location"])

        async with anyio.create_task_group() as group:
            group.start_soon(post)
            if self._world.draw(f"{self._name}: sends twice", 2):
                await self._world.pause(f"{self._name}: second copy")
                group.start_soon(post)
        assert len(paths) <= 1, f"one request has started the runs {paths}"
        return paths.pop() if paths else None

    async def read(self, path: str) -> list[Entry]:
        """Read the events of a run to its end, and leave at drawn moments."""
        entries: list[Entry] = []
        while not (entries and entries[-1].is_last):
            after = entries[-1].seq if entries else -1
            with anyio.move_on_after(_PATIENCE[self._world.draw(f"{self._name}: patience", len(_PATIENCE))]):
                response = await self._send(lambda http: http.get(path, params={"after": after}))  # noqa: B023
                assert response.is_success, response.text
                lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
                entries += [Entry.from_dict(json.loads(line)) for line in lines]
                assert response.status_code != 204 or entries, "the run has no events"
                if response.status_code == 204:
                    break
        numbers = [entry.seq for entry in entries]
        assert numbers == sorted(set(numbers)), f"the events of {path} came in the order {numbers}"
        return entries


async def user(world: World, crash: Crash[httpx.AsyncClient], name: str) -> None:
    """Send a message, read its run, and answer its calls."""
    browser, conversation = Browser(world, crash, name), str(world.draw(f"{name}: conversation", 2))
    body: dict[str, Any] = {"text": name}
    for round_ in range(3):
        path = await browser.start(conversation, body, f"{name} {round_}")
        if path is None:
            return
        last = (await browser.read(path))[-1]
        if last.type == "RunFailed":
            return
        waiting = last.response.get("waiting") or ()
        if not waiting:
            return
        run = path.split("/")[2]
        decided = [
            {"call": call.get("call_id") or call["id"], "run": run}
            | ({"approve": True} if call.get("kind") == "approval" else {"content": "yes"})
            for call in waiting
        ]
        body = {"answers": decided}


async def served_runs(world: World) -> None:
    """A `Service` over `LocalRuns` on a file, in a process that dies."""
    path = world.path("runs.sqlite")
    model = Provider(world, answers(world, "model"), faults=FAULTS, api=api(world, "model"))

    async def main(crash: Crash[httpx.AsyncClient]) -> None:
        runs = LocalRuns(world.swarm(model), store=path, agents=[agent("agent")], version="1", failover_seconds=1)
        service = Service(runs, auth=lambda _: "u", drain_seconds=0)
        transport = httpx.ASGITransport(app=service)
        async with service.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            await crash.serve(http)

    async def one(crash: Crash[httpx.AsyncClient], name: str) -> None:
        await user(world, crash, name)

    await in_processes(world, [Crash(world, most=2, power=True)], main, one)
    await check_stored(world, path)


SERVING = {served_runs.__name__: served_runs}
