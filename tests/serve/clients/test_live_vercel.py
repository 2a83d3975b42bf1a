"""The chat of Vercel's `ai`, versions 6 and 7, against a service on a socket."""

from __future__ import annotations

import os
from typing import Any

import pytest

from aswarm.runs import Limits
from aswarm.testing import Failure, ScriptedAnswer, call
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


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


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


async def test_a_run_that_ends_on_a_result_is_not_sent_again(client: str) -> None:
    """The last message is complete with its calls, and still the client does not go on by itself: they were the server's."""
    limits = Limits(max_turns=1)
    async with served(lambda _: call("look", number=1), wires=["vercel"], limits=limits) as it:
        [chat] = (await play(SCRIPT, it.url, "whole", client))["chats"]
        assert len(chat["requests"]) == 1
        assert [end["finishReason"] for end in chat["ends"]] == ["other"]
        assert states(chat) == ["output-available"]


async def test_a_chat_is_taken_over_by_a_page_that_is_loaded_again(client: str, workshop: Workshop) -> None:
    """The stop only ends the reading; the new page has the whole message; after the end a third one gets 204."""
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
    """The approval is sent once by itself; the call runs, and the message continues."""
    async with served([call("erase", name="draft"), "It is gone."], workshop, wires=["vercel"]) as it:
        [chat] = (await play(SCRIPT, it.url, "approve", client))["chats"]
        assert [request["status"] for request in chat["requests"]] == [200, 200]
        assert workshop.erased == ["draft"]
        assert states(chat) == ["output-available"]
        assert texts(chat) == ["Erase it.", "It is gone."]
        assert len(chat["messages"]) == 2


async def test_a_chat_denies_a_live_call(client: str, workshop: Workshop) -> None:
    """Nothing runs; the part says so, and the reason has reached the model."""
    async with served([call("erase", name="draft"), "Then not."], workshop, wires=["vercel"]) as it:
        [chat] = (await play(SCRIPT, it.url, "deny", client))["chats"]
        assert workshop.erased == []
        assert states(chat) == ["output-denied"]
        assert texts(chat)[-1] == "Then not."
        kept = (await it.ann.get("/conversations/v")).json()["messages"]
        assert "It is mine." in kept[2]["content"]


async def test_a_chat_makes_an_answer_again_and_continues(client: str) -> None:
    """The client and the server have the second answer in place of the first, and the next message follows it."""
    async with served(["One.", "Two.", "Three."], wires=["vercel"]) as it:
        [chat] = (await play(SCRIPT, it.url, "regenerate", client))["chats"]
        kept = (await it.ann.get("/conversations/v")).json()["messages"]
        assert texts(chat) == [message["content"] for message in kept] == ["Go", "Two.", "And now?", "Three."]


async def test_a_chat_is_told_of_a_failure(client: str) -> None:
    """The status is "error", with a public text."""
    async with served([Failure(400, message="inner secret")], wires=["vercel"]) as it:
        [chat] = (await play(SCRIPT, it.url, "whole", client))["chats"]
        assert chat["status"] == "error"
        assert "inner secret" not in chat["error"]
        assert len(chat["requests"]) == 1


async def test_a_second_tab_is_refused(client: str, workshop: Workshop) -> None:
    """409, whose body is the text of the client's error; the first tab is not disturbed."""
    async with served([call("slow"), "Done."], workshop, wires=["vercel"]) as it:
        first, second = (await play(SCRIPT, it.url, "conflict", client, asked=workshop.go.set))["chats"]
        assert texts(first) == ["Go", "Done."]
        assert second["requests"] == [{"method": "POST", "status": 409}]
        assert second["status"] == "error"
        assert "run_active" in second["error"]
