"""The steps of a run, and the engine: what is recorded of odd completions and calls, and a DBOS that the host has started."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio

pytest.importorskip("dbos", reason="durable runs need dbos")

from dbos import DBOS
from durables import Shop, die, durable, empty_file

from aswarm import Agent, AsyncSwarm, ConfigurationError, Result, RunError, current_call
from aswarm.durable import DurableRuns
from aswarm.durable._database import Database
from aswarm.durable._engine import _json_serializer
from aswarm.durable._leases import FileLeases
from aswarm.testing import ScriptedModel, call

pytestmark = [pytest.mark.asyncio, pytest.mark.sampled]


@pytest.fixture
def shop() -> Shop:
    return Shop()


class Odd:
    """A completion source whose calls have no id; whole, or in chunks."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.asked = 0

    async def complete(self, request: Any) -> AsyncIterator[Any]:
        self.asked += 1
        names = {1: "count", 2: "slow"}
        if self.asked > 2:
            message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        else:
            function = {"name": names[self.asked], "arguments": '{"number": 1}' if self.asked == 1 else "{}"}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"index": 0, "type": "function", "function": function}],
            }
        kind = "message" if self.whole else "delta"
        yield {"choices": [{"index": 0, kind: message, "finish_reason": "tool_calls" if self.asked < 3 else "stop"}]}


@pytest.mark.parametrize("whole", [True, False])
async def test_calls_without_ids_replay(tmp_path: Path, shop: Shop, whole: bool) -> None:
    """The ids that are made up for them are the recorded ones, so the next process makes the same requests."""
    await empty_file(tmp_path / "runs.db")
    source = Odd(whole=whole)
    given: dict[str, Any] = {
        "agents": shop.agents(), "store": f"sqlite:///{tmp_path / 'runs.db'}", "version": "1", "failover_seconds": 0.05
    }  # fmt: skip
    async with AsyncSwarm(source) as swarm, DurableRuns(swarm, **given) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    async with AsyncSwarm(source) as swarm, DurableRuns(swarm, **given) as runs:
        with anyio.fail_after(60):
            response = await (await runs.run("r")).result()
    assert response.text == "Done."
    assert shop.keys == {"count": ["r:1:0"], "slow": ["r:2:0"]}


async def test_another_step_in_its_place_is_an_error(tmp_path: Path, shop: Shop) -> None:
    """The text says which step, and what to do."""
    async with durable(tmp_path, [call("count", number=1), call("slow")], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE operation_outputs SET function_name = 'other' WHERE function_name LIKE 'tool:%'")
    connection.close()
    async with durable(tmp_path, ["Done."], shop) as runs:
        with anyio.fail_after(60), pytest.raises(RunError, match=r"its step 3 is 'tool:.*another one was recorded"):
            await (await runs.run("r")).result()


async def test_a_handoff_that_no_other_process_could_find_is_refused(tmp_path: Path, shop: Shop) -> None:
    """When it happens, and not when it would be needed."""

    def leave() -> Result:
        """Hand off."""
        return Result(value="gone", agent=Agent(name="Hidden"))

    async with durable(tmp_path, [call("leave")], shop, agents=Agent(name="Boss", functions=[leave])) as runs:
        with pytest.raises(RunError, match="Hidden"):
            await (await runs.start("Boss", "Hi!")).result()


async def test_a_hook_for_errors_may_end_the_run(tmp_path: Path, shop: Shop) -> None:
    """What the function did is recorded first."""

    def fail() -> str:
        """Fail."""
        raise ValueError("no")

    def hook(failure: Any) -> str:
        raise RuntimeError("enough")

    await empty_file(tmp_path / "runs.db")
    async with (
        AsyncSwarm(ScriptedModel([call("fail")]).client(), tool_error=hook) as swarm,
        DurableRuns(
            swarm, agents=Agent(name="Boss", functions=[fail]), store=f"sqlite:///{tmp_path / 'runs.db'}", version="1"
        ) as runs,
    ):
        run = await runs.start("Boss", "Hi!", run_id="r")
        with pytest.raises(RunError, match="enough"):
            await run.result()
        assert [step["function_name"].split(":")[0] for step in await DBOS.list_workflow_steps_async("r")] == [
            "completion", "started", "tool"
        ]  # fmt: skip


async def test_a_workflow_that_dbos_cancels_is_stopped(tmp_path: Path, shop: Shop) -> None:
    """As by a tool of DBOS: the run ends at its next step."""
    async with durable(tmp_path, [call("slow"), "Done."], shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
            await DBOS.cancel_workflow_async("r")
            shop.go.set()
            assert (await run.result()).stop == "cancelled"


async def test_a_run_that_is_given_out_again_is_left(tmp_path: Path, shop: Shop) -> None:
    """The earlier execution notices at its next step, and writes nothing; the call that it made is told as unknown."""
    async with durable(tmp_path, [call("slow"), "Done."], shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
            assert await runs._engine.begin_again("r") is None
            response = await run.result()
    assert [message["content"] for message in response.messages][1:] == ["cancelled; its outcome is unknown", "Done."]
    assert shop.keys["slow"] == ["r:1:0"]


@pytest_asyncio.fixture
async def host(tmp_path: Path) -> AsyncIterator[str]:
    """A program that has launched DBOS itself."""
    DBOS(
        config={
            "name": "host",
            "system_database_url": f"sqlite:///{tmp_path / 'host.db'}",
            "application_version": "1",
            "executor_id": "host-1",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    yield "host-1"
    await anyio.to_thread.run_sync(DBOS.destroy)


async def test_the_dbos_of_the_host_is_used(tmp_path: Path, shop: Shop, host: str) -> None:
    """Its database has the steps, and it goes on afterwards; another version is refused."""
    async with durable(tmp_path, ["Hello."], shop, poll_seconds=0.5) as runs:
        assert runs._executor == host
        run = await runs.start("Boss", "Hi!", run_id="r")
        assert (await run.result()).text == "Hello."
        assert [step["function_name"] for step in await DBOS.list_workflow_steps_async("r")] == ["completion:1"]
    with pytest.raises(ConfigurationError, match="application version '1'"):
        async with durable(tmp_path, [], shop, version="2"):
            pass
    assert len(await DBOS.list_workflows_async(workflow_ids=["r"])) == 1


async def test_two_processes_of_a_host_need_ids_of_their_own(tmp_path: Path, shop: Shop, host: str) -> None:
    """Otherwise one would take the runs of the other for those of a dead process."""
    other = FileLeases(str(tmp_path / "runs.db"))
    await other.hold(host)
    with pytest.raises(ConfigurationError, match="the executor id 'host-1'"):
        async with durable(tmp_path, [], shop):
            pass
    await other.aclose()


async def test_nothing_is_pickled() -> None:
    """Values are JSON, exceptions their text."""
    serializer = _json_serializer()
    assert serializer.deserialize(serializer.serialize({"args": ["r"]})) == {"args": ["r"]}
    assert str(serializer.deserialize(serializer.serialize(ValueError("no")))) == "ValueError: no"
    assert serializer.deserialize(serializer.serialize(Path("a"))) == "a"


async def test_locks_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is gone is no death; another system has no such locks."""
    assert not FileLeases(str(tmp_path / "gone" / "runs.db")).take("other")
    monkeypatch.setattr("os.name", "nt")
    with pytest.raises(ConfigurationError, match="POSIX"):
        FileLeases("runs.db")


async def test_a_lock_that_is_deleted_in_this_moment_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has taken over the runs of the dead one; and a file system without locks is a mistake."""
    leases, flock = FileLeases(str(tmp_path / "runs.db")), fcntl.flock

    def lock_deleted(file: int, operation: int) -> None:
        leases._file("dead").unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_deleted)
    assert not leases.take("dead")

    def lock_none(file: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", lock_none)
    with pytest.raises(ConfigurationError, match="No locks available"):
        await leases.hold("me")
    monkeypatch.undo()
    assert leases.take("dead")
    await leases.aclose()


@pytest.mark.parametrize(("package", "url"), [("psycopg", "postgresql://x"), ("dbos", "sqlite:///runs.db")])
async def test_the_extra_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch, package: str, url: str) -> None:
    """Where a package of it is missing."""
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))
    monkeypatch.chdir(Path(__file__).parent)
    with pytest.raises(ConfigurationError, match='install the extra "durable"'):
        Database(url) if package == "psycopg" else await _opened(shop, url)


async def _opened(shop: Shop, url: str) -> None:
    from aswarm.durable._engine import Engine, EngineSettings

    settings = EngineSettings(url, "1", "e", 1.0, 1, "normal", works=False)
    Engine(settings, lambda run_id: anyio.sleep(0))


async def test_a_key_is_for_the_function_alone() -> None:
    """In a middleware, and in code that no run calls, there is none."""
    keys: list[str] = []

    def look() -> str:
        """Look."""
        keys.append(current_call().key)
        return "seen"

    def watch(handlers: Any) -> Any:
        from dataclasses import replace

        async def call_tool(made: Any, context: Any, started: Any) -> Any:
            keys.append(current_call().key)
            return await handlers.call_tool(made, context, started)

        return replace(handlers, call_tool=call_tool)

    agent = Agent(name="A", functions=[look])
    async with AsyncSwarm(ScriptedModel([[call("look"), call("look")], "Done."]).client(), middleware=[watch]) as swarm:
        await swarm.run(agent, "Hi!", run_id="r")
    assert sorted(keys) == ["", "", "r:1:0", "r:1:1"]
