"""SystemExit of a user's code in durable runs: never the end of the worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm import Agent, RunError
from aswarm.testing import ScriptedModel, call
from tests.support.durable.durables import Shop, durable

pytestmark = pytest.mark.asyncio


def plain() -> str:
    sys.exit(2)


async def leave() -> str:
    sys.exit(2)


async def test_an_exit_of_a_function_is_a_failed_call(tmp_path: Path, shop: Shop) -> None:
    """A plain function may exit too; the worker executes the next run."""
    model = ScriptedModel([[call("plain"), call("leave")], "Done.", "Hello."])
    async with durable(tmp_path, model, shop, agents=[Agent(name="A", functions=[plain, leave])]) as runs:
        response = await (await runs.start("A", "Hi!")).result()
        assert [each["content"] for each in response.messages[1:]] == ["Error: SystemExit: 2"] * 2 + ["Done."]
        assert (await (await runs.start("A", "More")).result()).text == "Hello."


async def test_an_exit_of_the_instructions_ends_only_its_run(tmp_path: Path, shop: Shop) -> None:
    """The run has failed, and the worker executes the next run."""
    agents = [Agent(name="A", instructions=lambda _: plain()), Agent(name="B")]
    async with durable(tmp_path, ["Hello."], shop, agents=agents) as runs:
        with pytest.raises(RunError, match=r"SystemExit\(2\)"):
            await (await runs.start("A", "Hi!")).result()
        assert (await (await runs.start("B", "Hi!")).result()).text == "Hello."


async def test_an_exit_in_an_item_of_map_is_a_failed_call(tmp_path: Path, shop: Shop) -> None:
    """Each item has its answer."""
    model = ScriptedModel([call("leave"), "One.", call("leave"), "Two."])
    async with durable(tmp_path, model, shop, agents=[Agent(name="A", functions=[leave])]) as runs:
        responses = [await run.result() async for run in runs.map("A", ["a", "b"], run_ids=["a", "b"], concurrency=1)]
    assert [each.text for each in responses] == ["One.", "Two."]
    assert all(each.messages[1]["content"] == "Error: SystemExit: 2" for each in responses)
