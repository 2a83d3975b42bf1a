"""Code on the web: the calls in it are below the call of `run_code`, by its id."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm import tool
from aswarm.runs import show_answers
from aswarm.serve.wires.agui.encoder import AGUIWire
from aswarm.serve.wires.vercel.encoder import VercelWire
from tests.support.code.coded import recorded

pytestmark = pytest.mark.anyio


async def look(number: int) -> int:
    """Look something up."""
    return number


def frames(wire: Any, log: Any) -> list[dict[str, Any]]:
    texts = [frame for entry in log.entries for frame in wire.encode(entry)]
    lines = [line[6:] for text in texts for line in bytes(text).decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_vercel_keeps_a_part_for_each_call_inside() -> None:
    """A part replaces the part with its id, so that the last state of each call stays."""
    log, _ = await recorded("await asyncio.gather(look(1), look(2))", [look, tool(approve=True)(look2)])
    parts = [each for each in frames(VercelWire(), log) if each["type"] == "data-aswarm-progress"]
    assert {each["data"]["toolCallId"] for each in parts} == {"outer"}
    last = {each["id"]: each["data"]["value"] for each in parts}
    assert last["progress-outer"]["type"] == "CodeStarted"
    assert {name: each["content"] for name, each in last.items() if "content" in each} == {
        "progress-outer-outer.0": "1",
        "progress-outer-outer.1": "2",
    }


async def test_agui_names_the_outer_call_of_each_event() -> None:
    log, _ = await recorded("await look(1)", [look])
    inside = [each["value"] for each in frames(AGUIWire(), log) if each.get("name", "").endswith("tool_progress")]
    assert {each["toolCallId"] for each in inside} == {"outer"}
    assert [each["value"].get("id") for each in inside] == [None, "outer.0", "outer.0"]


@pytest.mark.parametrize("code", ["print(5)\nawait fails()", "await asyncio.gather(look(1), fails())"])
async def test_readers_get_no_text_of_an_exception_that_ended_the_code(code: str) -> None:
    """As outside of code: they get its type, and what the code has printed."""

    async def fails() -> int:
        """Fail."""
        raise OSError("password=hunter2\nand more of hunter2")

    log, response = await recorded(code, [look, fails])
    shown = json.dumps([each.to_dict() for entry in log.entries if (each := show_answers(entry)) is not None])
    assert "hunter2" in json.dumps(response.messages)
    assert "hunter2" not in shown
    assert "code.py" in shown


async def look2(number: int) -> int:
    """Look something else up."""
    return number
