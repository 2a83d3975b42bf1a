"""The end of a service in its own process: a signal, and clients that read nothing."""

from __future__ import annotations

import os
import signal
from typing import Any

import anyio
import httpx
import pytest
from starlette.requests import Request

from aswarm.serve import NativeWire, respond
from aswarm.testing import call
from tests.support.runs.kept_runs import Workshop
from tests.support.runtime.virtual_time import in_virtual_time
from tests.support.serve.served import client, listening, service


@pytest.mark.asyncio
async def test_a_signal_starts_to_drain() -> None:
    """At SIGTERM readers get a hint to reconnect, new runs are refused, and the handler of the server is called too."""
    workshop = Workshop()
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        made = service([call("slow"), "Done."], workshop, drain_seconds=5)
        async with listening(made) as url, client(url, "token-of-ann") as ann:
            run = (await ann.post("/conversations/c/runs", json={"text": "Hi!"})).json()["run"]
            async with ann.stream("GET", f"/runs/{run}/events") as stream:
                text = ""
                async for piece in stream.aiter_text():
                    if '"ToolCallStarted"' in piece:
                        os.kill(os.getpid(), signal.SIGTERM)
                    text += piece
            assert text.endswith("retry: 1000\n\n")
            # The server takes no more connections; a service behind another one may still get requests.
            transport, headers = httpx.ASGITransport(app=made), dict(ann.headers)
            async with httpx.AsyncClient(transport=transport, base_url=url, headers=headers) as inside:
                assert (await inside.get("/health")).status_code == 503
                refused = await inside.post("/conversations/d/runs", json={"text": "Hi!"})
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert (await inside.get(f"/runs/{run}/events")).text.endswith("retry: 1000\n\n")
            workshop.go.set()
        assert signals == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@in_virtual_time
async def test_a_client_that_reads_nothing_does_not_delay_the_end() -> None:
    """A response whose bytes nobody reads is cancelled some seconds after the service starts to drain. The time is virtual."""
    made, scope = service(["Hello."]), {"type": "http", "method": "GET", "headers": [], "query_string": b""}

    async def forever(message: Any = None) -> Any:
        if message is None or message["type"] == "http.response.body":
            await anyio.sleep(3600)

    async with made.lifespan():
        run = await made.start("Hi!", conversation="c", user="ann")
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(respond(run, NativeWire(), Request(scope)), scope, forever, forever)
            await run.last_entry()
            await made.runs.drain(0)  # type: ignore[attr-defined]
        assert anyio.current_time() - start < 3600
