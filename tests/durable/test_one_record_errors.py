"""A PostgreSQL server that stops: durable runs raise errors of aswarm only, and lose nothing that they have acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import AswarmError
from aswarm.durable import DurableRuns
from aswarm.runs import Run
from aswarm.testing import Request, call
from tests.support.durable.durables import Shop, durable
from tests.support.durable.postgres_proxy import PostgresProxy

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.processes]


def script(request: Request) -> Any:
    """Make the call that the user names, then answer."""
    messages = request.messages
    if messages[-1]["role"] != "user":
        return "Done."
    match messages[-1]["content"]:
        case "pay":
            return call("pay", amount=1)
        case "slow":
            return call("slow")
        case _:
            return call("count", number=1)


async def raised(ask: Callable[[], Awaitable[Any]]) -> str:
    """Return the kind of error that the call raises: "ours", "none", "late" after 45 seconds, or the error as text."""
    try:
        with anyio.fail_after(45):
            await ask()
    except AswarmError:
        return "ours"
    except TimeoutError:
        return "late"
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:80]}"
    return "none"


async def test_a_server_that_is_stopped_raises_errors_of_aswarm(tmp_path: Path, url: str, shop: Shop) -> None:
    """Start, answer and cancel raise an AswarmError while the server is away, and work when it is back."""
    with PostgresProxy(url) as proxy, anyio.fail_after(240):
        async with durable(tmp_path, script, shop, url=proxy.url) as runs:
            waiting = await runs.start("Boss", "pay", run_id="waiting")
            (open_call,) = (await waiting.result()).open_calls
            running = await runs.start("Boss", "slow", run_id="running")
            await shop.began.wait()
            asked: dict[str, Callable[[], Awaitable[Any]]] = {
                "start": lambda: runs.start("Boss", "count", run_id="new"),
                "answer": lambda: waiting.answer({open_call.id: True}),
                "cancel": running.cancel,
            }
            proxy.stop()
            try:
                found = dict(zip(asked, await asyncio.gather(*map(raised, asked.values())), strict=True))
            finally:
                proxy.start()
            shop.go.set()
            assert found == dict.fromkeys(asked, "ours")
            await running.wait()
            assert (await (await waiting.answer({open_call.id: True})).result()).text == "Done."
            assert (await (await runs.start("Boss", "count", run_id="new")).result()).text == "Done."
    assert {name: len(keys) for name, keys in shop.keys.items()} == {"slow": 1, "pay": 1, "count": 1}


@pytest.mark.parametrize(
    "numbers",
    [range(1, 31, 5), *(pytest.param(range(start, 31, 2), marks=pytest.mark.heavy) for start in (1, 2))],
    ids=["some", "odd", "even"],
)
async def test_an_acknowledged_run_outlives_a_lost_answer_of_the_server(
    tmp_path: Path, url: str, shop: Shop, numbers: range
) -> None:
    """Whichever answer of the server is lost while a run starts: once any process acknowledges the run, it is never deleted."""
    with PostgresProxy(url) as proxy, anyio.fail_after(400):
        async with (
            durable(tmp_path, script, shop, url=proxy.url, retry_seconds=0.5) as worker,
            durable(tmp_path, script, shop, url=url, concurrency=0) as client,
        ):
            runs = []
            for number in numbers:
                proxy.lose(number)
                await raised(lambda number=number: worker.start("Boss", "slow", run_id=f"run {number}"))
                proxy.stop()
                runs.append(await acknowledged(client, f"run {number}", proxy))
                with anyio.move_on_after(10):
                    while f"run {number}:1:0" not in shop.keys.get("slow", []):
                        await asyncio.sleep(0.05)
                runs.append(await started(worker, f"other {number}"))
            shop.go.set()
            found = {record.id for record in await client.records(limit=1000)}
            assert [run.id for run in runs if run.id not in found] == []
            assert [(await run.result()).text for run in runs] == ["Done."] * len(runs)
    assert all(len(keys) == len(set(keys)) for keys in shop.keys.values())


async def acknowledged(runs: DurableRuns, run_id: str, proxy: PostgresProxy) -> Run:
    """Start the run in another process, as its caller does who has got no answer; the server is back for the first one soon."""
    asyncio.get_running_loop().call_later(0.5, proxy.start)
    with anyio.fail_after(60):
        return await runs.start("Boss", "slow", run_id=run_id)


async def started(runs: DurableRuns, run_id: str) -> Run:
    """Start a run as soon as the server takes it."""
    with anyio.fail_after(60):
        while await raised(lambda: runs.start("Boss", "count", run_id=run_id)) != "none":
            await asyncio.sleep(0.05)
        return await runs.get_run(run_id)
