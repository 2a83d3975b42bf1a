"""Long results over real sockets: no user reads the results of another, on any wire, and a deleted conversation has none."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aswarm import Agent
from aswarm.middleware import spill_results
from aswarm.runs import show_everything
from aswarm.testing import Request, call
from tests.support.serve.served import message_on, served

pytestmark = pytest.mark.asyncio

WIRES = ("native", "vercel", "agui", "openai")
EVENTS = {"accept": "text/event-stream"}


def rows() -> str:
    """Return many rows."""
    return "the secret of ann " * 10_000


def answer(request: Request) -> Any:
    """Do what the user says: "rows", "search", or read a handle. An obedient model is the worst case."""
    text = request.messages[-1]["content"]
    if request.messages[-1]["role"] == "tool":
        return "Done."
    if text == "rows":
        return call("rows")
    return call("search_result", text="SECRET") if text == "search" else call("read_result", handle=text, start=4)


async def test_a_handle_is_worth_nothing_to_another_user() -> None:
    """Bob knows the handle, the id of the conversation and that of the run. Ann's own fork has the result, until it is deleted."""
    settings: dict[str, Any] = {"agents": [Agent(name="Boss", functions=[rows])], "middleware": [spill_results(1_000)]}
    async with served(answer, show=show_everything, wires=WIRES[1:], **settings) as it:

        async def said(user: Any, text: str, wire: str = "native", conversation: str = "c") -> str:
            more = {"openai": {"stream": True}, "agui": {"runId": f"run of {text}"}}
            path, body = message_on(wire, text, conversation, **more.get(wire, {}))
            response = await user.post(path, json=body, headers=EVENTS)
            assert response.status_code == 200, response.text
            # Without the requests to the model, which have the texts of earlier messages.
            return "\n".join(line for line in response.text.splitlines() if '"RequestSent"' not in line)

        handle = re.findall("r[0-9a-f]{16}", await said(it.ann, "rows"))[0]
        for text in (handle, "search"):
            assert "secret of ann" in await said(it.ann, text)
            for wire in WIRES:
                told = await said(it.bob, text, wire)
                assert "secret of ann" not in told, wire
        fork = (await it.ann.post("/conversations/c/fork", json={})).json()["conversation"]
        assert (await it.ann.delete("/conversations/c")).status_code == 204
        assert "secret of ann" not in await said(it.ann, handle)
        assert "secret of ann" in await said(it.ann, handle, conversation=fork)
        assert {name for request in it.model.requests for name in request.tool_names} == {
            "rows",
            "read_result",
            "search_result",
        }
