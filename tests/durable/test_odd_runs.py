"""Odd completions and calls in the record, and missing packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm import Agent, AsyncSwarm, ConfigurationError, Result, RunError, current_call
from aswarm.durable import DurableRuns
from aswarm.testing import ScriptedModel, call
from tests.support.durable.durables import Shop, die, durable, empty_file

pytestmark = pytest.mark.asyncio


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


@pytest.mark.heavy
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
        await shop.began.wait()
        die(runs)
    async with AsyncSwarm(source) as swarm, DurableRuns(swarm, **given) as runs:
        response = await (await runs.get_run("r")).result()
    assert response.text == "Done."
    assert shop.keys == {"count": ["r:1:0"], "slow": ["r:2:0"]}


@pytest.mark.heavy
async def test_a_handoff_that_no_other_process_could_find_is_refused(tmp_path: Path, shop: Shop) -> None:
    """When it happens, and not when it would be needed."""

    def leave() -> Result:
        """Hand off."""
        return Result(value="gone", agent=Agent(name="Hidden"))

    async with durable(tmp_path, [call("leave")], shop, agents=Agent(name="Boss", functions=[leave])) as runs:
        with pytest.raises(RunError, match="Hidden"):
            await (await runs.start("Boss", "Hi!")).result()


@pytest.mark.heavy
async def test_a_hook_for_errors_may_end_the_run(tmp_path: Path, shop: Shop) -> None:
    """The call of the function is recorded first."""

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
        types = [entry.type async for entry in run.entries()]
        assert [kind for kind in types if kind in ("CompletionFinished", "ToolCallStarted", "ToolCallFinished")] == [
            "CompletionFinished", "ToolCallStarted", "ToolCallFinished"
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("package", "url"), [("psycopg", "postgresql://x"), ("dbos", "postgresql://x"), ("dbos", "sqlite:///runs.db")]
)
async def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: str, url: str) -> None:
    """When the object is made, without a package of the extra; the import needs none."""
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ConfigurationError, match=f'need the package {package}: install the extra "durable"'):
        DurableRuns(AsyncSwarm(), agents=Agent(), store=url, version="1")


@pytest.mark.heavy
@pytest.mark.processes
async def test_the_import_needs_no_package_of_the_extra() -> None:
    """In a process of its own, without dbos, SQLAlchemy and psycopg."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['dbos', 'sqlalchemy', 'psycopg', 'starlette']))\n"
        "import aswarm.durable; print(aswarm.durable.DurableRuns.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("DurableRuns\n", "")


@pytest.mark.heavy
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
