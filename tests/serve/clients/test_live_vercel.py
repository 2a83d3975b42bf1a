"""The chat of Vercel's `ai`, versions 6 and 7, against a service on a socket."""

from __future__ import annotations

import os
from typing import Any

import pytest

from aswarm import Agent, Hold, current_call, external_tool, tool
from aswarm.testing import ScriptedAnswer, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.npm_clients import play
from tests.support.serve.served import served

SCRIPT = "live_vercel.mjs"
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(
        "NODE_CLIENTS" not in os.environ, reason="NODE_CLIENTS names the folder with the packages of npm"
    ),
    pytest.mark.parametrize("client", ["ai", "ai7"]),
]


def texts(chat: dict[str, Any]) -> list[str]:
    return [part["text"] for message in chat["messages"] for part in message["parts"] if part["type"] == "text"]


def states(chat: dict[str, Any]) -> list[str]:
    return [part["state"] for message in chat["messages"] for part in message["parts"] if "toolCallId" in part]


async def test_a_chat_ends_with_its_reason(client: str) -> None:
    """One request, "stop", every call with its output, and the page is asked for no call of the server."""
    script = [ScriptedAnswer("Let me see.", [call("look", number=1), call("look", number=2)]), "Found."]
    async with served(script, wires=["vercel"]) as it:
        [chat] = (await play(SCRIPT, it.url, "whole", client))["chats"]
        assert chat["requests"] == [{"method": "POST", "status": 200}]
        assert [end["finishReason"] for end in chat["ends"]] == ["stop"]
        assert (chat["status"], chat["asked"]) == ("ready", [])
        assert texts(chat) == ["Go", "Let me see.", "Found."]
        assert states(chat) == ["output-available"] * 2


async def test_a_chat_is_taken_over_by_a_page_that_is_loaded_again(client: str, workshop: Workshop) -> None:
    """A stop only ends the reading; the new page has the whole message; after the end a third page gets 204."""
    async with served([ScriptedAnswer("Wait.", [call("slow")]), "Done."], workshop, wires=["vercel"]) as it:
        found = await play(SCRIPT, it.url, "resume", client, asked=workshop.go.set)
        first, second, third = found["chats"]
        assert texts(first) == ["Go", "Wait."]
        assert texts(second) == ["Wait.", "Done."]
        assert states(second) == ["output-available"]
        assert [end["finishReason"] for end in second["ends"]] == ["stop"]
        assert (third["requests"], third["messages"]) == ([{"method": "GET", "status": 204}], [])
        assert third["status"] == "ready"


async def test_a_chat_approves_a_live_call(client: str, workshop: Workshop) -> None:
    """The client sends the approval once by itself, also if other calls stand beside it; the message continues."""
    calls = [call("look", number=1), call("erase", name="draft"), call("look", number=2)]
    async with served([calls, "It is gone."], workshop, wires=["vercel"]) as it:
        [chat] = (await play(SCRIPT, it.url, "approve", client))["chats"]
        assert [request["status"] for request in chat["requests"]] == [200, 200]
        assert workshop.erased == ["draft"]
        assert (states(chat), chat["asked"]) == (["output-available"] * 3, [])
        assert texts(chat) == ["Erase it.", "It is gone."]
        assert len(chat["messages"]) == 2


@pytest.mark.parametrize("name", ["page", "question"])
async def test_a_chat_answers_a_call_of_its_own(client: str, name: str) -> None:
    """The client is asked once for a tool of its own or a question of a function, and its output is the answer."""
    answers: list[Any] = []

    @tool(may_wait=True)
    async def question() -> str:
        if current_call().answer is None:
            raise Hold("Which one?")
        answers.append(current_call().answer)
        return "answered"

    page = external_tool(name="page", description="Opens a page.", parameters={"type": "object", "properties": {}})
    agent = Agent(name="Boss", functions=[question, page])
    async with served([call(name, call_id="c1"), "Done."], agents=agent, wires=["vercel"]) as it:
        [chat] = (await play(SCRIPT, it.url, "own", client))["chats"]
        assert [request["status"] for request in chat["requests"]] == [200, 200]
        assert [each["toolCallId"] for each in chat["asked"]] == ["c1"]
        assert (states(chat), texts(chat)) == (["output-available"], ["Go", "Done."])
        assert answers == ([] if name == "page" else [{"title": "Home"}])
        assert "Home" in it.sent()[-1][-1]["content"] or name == "question"
