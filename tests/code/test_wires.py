"""Code on the web: the calls in it are below the call of `run_code`, by its id."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm.conversations import MemoryStore
from aswarm.runs import show_answers
from aswarm.serve.wires.vercel.encoder import VercelWire
from tests.support.code.coded import agent_of, kept_run, local_runs, swarm_of


async def look(number: int) -> int:
    """Look something up."""
    return number


async def frames(wire: Any, code: str, *functions: Any) -> list[dict[str, Any]]:
    """Run code, and return its frames on this wire."""
    async with local_runs(agent_of(*functions), swarm_of(code)) as runs:
        texts = [frame for entry in await kept_run(runs) for frame in wire.encode(entry)]
    lines = [line[6:] for text in texts for line in bytes(text).decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_vercel_keeps_a_part_for_each_call_inside() -> None:
    """A part replaces the part with its id, so that the last state of each call stays."""

    async def look2(number: int) -> int:
        """Look something else up."""
        return number

    found = await frames(VercelWire(), "await asyncio.gather(look(1), look2(2))", look, look2)
    parts = [each for each in found if each["type"] == "data-aswarm-progress"]
    assert {each["data"]["toolCallId"] for each in parts} == {"outer"}
    last = {each["id"]: each["data"]["value"] for each in parts}
    assert last["progress-outer"]["type"] == "CodeStarted"
    contents = {name: each["content"] for name, each in last.items() if "content" in each}
    assert contents == {"progress-outer-outer.0": "1", "progress-outer-outer.1": "2"}


@pytest.mark.parametrize("code", ["print(5)\nawait fails()", "await asyncio.gather(look(1), fails())"])
async def test_readers_get_no_text_of_an_exception_that_ended_the_code(code: str) -> None:
    """They get its type and the printed text, as outside of code."""

    async def fails() -> int:
        """Fail."""
        raise OSError("password=hunter2\nand more of hunter2")

    store = MemoryStore()
    async with local_runs(agent_of(look, fails), swarm_of(code), store) as runs:
        entries = await kept_run(runs)
        stored = await store.load("ann/c")
    shown = json.dumps([each.to_dict() for entry in entries if (each := show_answers(entry)) is not None])
    assert stored is not None
    assert "hunter2" in json.dumps(stored.messages)
    assert "hunter2" not in shown
    assert "code.py" in shown
