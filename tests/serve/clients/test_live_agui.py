"""AG-UI's own client and validator against a service on a socket."""

from __future__ import annotations

import os
from typing import Any

import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.npm_clients import play
from tests.support.serve.served import served

SCRIPT = "live_agui.mjs"
needs_node = pytest.mark.skipif(
    "NODE_CLIENTS" not in os.environ, reason="NODE_CLIENTS names the folder with the packages of npm"
)
pytestmark = pytest.mark.asyncio


def roles(found: dict[str, Any]) -> list[str]:
    return [message["role"] for message in found["messages"]]


@needs_node
async def test_an_agent_runs_twice_in_a_thread() -> None:
    """Both runs finish, and the client has calls, results and texts in the order of the server's history."""
    script = [ScriptedAnswer("Let me see.", [call("look", number=1), call("look", number=2)]), "Found.", "Still there."]
    async with served(script, wires=["agui"]) as it:
        found = await play(SCRIPT, it.url, "whole")
        assert [run["finished"]["outcome"] for run in found["runs"]] == [{"type": "success"}] * 2
        assert roles(found) == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
        texts = [message.get("content") for message in found["messages"] if message["role"] != "tool"]
        assert texts == ["Go", "Let me see.", "Found.", "And now?", "Still there."]
        kept = (await it.ann.get("/conversations/t")).json()["messages"]
        assert [message["role"] for message in kept] == roles(found)


@needs_node
async def test_a_fresh_agent_takes_over_an_aborted_run(workshop: Workshop) -> None:
    """The abort only ends the reading. `connectAgent` gets the whole run, lives through its end, and has the answer."""
    async with served([call("slow"), "Done."], workshop, wires=["agui"]) as it:
        found = await play(SCRIPT, it.url, "reattach", asked=workshop.go.set)
        left, taken = found["runs"]
        assert left["finished"] is None
        assert taken["events"][0] == "RUN_STARTED"
        assert taken["finished"]["outcome"] == {"type": "success"}
        assert found["messages"][-1]["content"] == "Done."
        [run] = (await it.ann.get("/runs")).json()["runs"]
        assert run["status"] == "finished"


@needs_node
async def test_an_agent_resumes_a_live_interrupt(workshop: Workshop) -> None:
    """The client cannot run past an open interrupt. Its answer may edit the arguments, and a replay does not open it again."""
    async with served([call("erase", call_id="e", name="draft"), "It is gone."], workshop, wires=["agui"]) as it:
        found = await play(SCRIPT, it.url, "interrupt")
        first, blocked, second, replayed = found["runs"]
        assert first["finished"]["outcome"]["type"] == "interrupt"
        assert blocked["failed"] is not None
        assert second["finished"]["outcome"] == {"type": "success"}
        assert replayed["finished"]["outcome"] == {"type": "success"}
        assert found["open"] == []
        assert found["messages"][-1]["content"] == "It is gone."
        assert roles(found) == ["user", "assistant", "tool", "assistant"]
        assert workshop.erased == ["copy"]
