"""SystemExit of a user's code in durable runs: never the end of the worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aswarm import Agent, RunError
from tests.support.durable.durables import Shop, durable

pytestmark = pytest.mark.asyncio


def plain() -> str:
    sys.exit(2)


async def test_an_exit_of_the_instructions_ends_only_its_run(tmp_path: Path, shop: Shop) -> None:
    """The run has failed, and the worker executes the next run."""
    agents = [Agent(name="A", instructions=lambda _: plain()), Agent(name="B")]
    async with durable(tmp_path, ["Hello."], shop, agents=agents) as runs:
        with pytest.raises(RunError, match=r"SystemExit\(2\)"):
            await (await runs.start("A", "Hi!")).result()
        assert (await (await runs.start("B", "Hi!")).result()).text == "Hello."
