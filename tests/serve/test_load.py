"""Many users at once."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from aswarm import Agent
from aswarm.serve import bearer
from aswarm.testing import ScriptedAnswer, call
from tests.support.serve.served import client, events_of, listening, message_on, service

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.heavy]

USERS = 40
WIRES: Any = ("native", "agui", "vercel", "openai")


async def test_users_under_load_see_only_their_own() -> None:
    """If 40 users have four chats each on all wires at once, each stream has only the words of its user."""
    users = {f"token-{number}": f"user-{number}" for number in range(USERS)}

    async def look(number: int) -> str:
        """Look something up."""
        await asyncio.sleep(0.01)
        return f"found {number}"

    def script(request: Any) -> Any:
        messages = request.body["messages"]
        said = [each["content"] for each in messages if each["role"] == "user"]
        return ScriptedAnswer(f"You said {said[-1]}.") if messages[-1]["role"] == "tool" else call("look", number=1)

    made = service(script, agents=Agent(name="Boss", functions=[look]), auth=bearer(users), wires=WIRES[1:])
    async with listening(made) as url:

        async def use(number: int) -> None:
            async with client(url, f"token-{number}") as browser:
                own = f"secret-of-{number}-"
                streams = await asyncio.gather(*(ask(browser, wire, f"{own}{wire}") for wire in WIRES))
                kept = (await browser.get("/conversations")).json()["conversations"]
                assert len(kept) == 3  # a request of Chat Completions without the header has none
                for conversation in kept:
                    streams.append((await browser.get(f"/conversations/{conversation['id']}")).text)
                    assert f"You said {own}" in streams[-1]
                assert set(re.findall(r"secret-of-(\d+)-", "".join(streams))) == {str(number)}

        async with asyncio.TaskGroup() as group:
            for number in range(USERS):
                group.create_task(use(number))


async def ask(browser: httpx.AsyncClient, wire: str, text: str) -> str:
    """Return the stream that answers a message on a wire, after a check of its text."""
    # All users name their conversations alike.
    place, body = message_on(wire, text, wire, **({"stream": True} if wire == "openai" else {}))
    answer = await browser.post(place, json=body, headers={"accept": "text/event-stream"}, timeout=120)
    assert answer.status_code == 200, answer.text
    pieces = [event["data"] for event in events_of(answer.text) if event.get("data", "[DONE]") != "[DONE]"]
    said = "".join(map(words, map(json.loads, pieces)))
    assert said.removeprefix('{"number": 1}') == f"You said {text}."
    return answer.text


def words(event: dict[str, Any]) -> str:
    """Return the piece of text in an event of any wire."""
    if "choices" in event:
        return event["choices"][0]["delta"].get("content") or ""
    piece = event.get("delta") if event["type"] != "TextDelta" else event["text"]
    return piece if isinstance(piece, str) else ""
