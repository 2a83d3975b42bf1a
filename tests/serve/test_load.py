"""Many runs, many readers and many users at once."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import tracemalloc
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest

from aswarm import Agent
from aswarm.runs import Limits
from aswarm.serve import bearer
from aswarm.testing import ScriptedAnswer, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import client, events_of, listening, message_on, served, service

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.heavy]

RUNS = 1_000
READERS = 200
USERS = 40
WIRES: Any = ("native", "agui", "vercel", "openai")


async def test_a_thousand_runs_go_on_without_readers() -> None:
    """Each of the waiting runs needs less than 100 kB, and each run finishes with its answer."""
    workshop = Workshop()
    limits = Limits(runs=RUNS, runs_per_user=RUNS)
    made = service(lambda request: answer_or_call(request, "slow"), workshop, limits=limits)
    async with made.lifespan():
        await (await made.start("before", conversation="before", user="ann")).cancel()
        gc.collect()
        tracemalloc.start()
        runs = [await made.start(f"Number {number}", conversation=f"c{number}", user="ann") for number in range(RUNS)]
        with anyio.fail_after(120):
            for run in runs:
                async for entry in run.entries():
                    if entry.type == "ToolCallStarted":
                        break
            gc.collect()
            each = tracemalloc.get_traced_memory()[0] / RUNS
            tracemalloc.stop()
            workshop.go.set()
            ends = [await run.last_entry() for run in runs]
        assert each < 100_000  # the scripted model and its responses are in it too
        assert [end.type for end in ends] == ["RunFinished"] * RUNS
        assert [end.response["text"] for end in ends] == [f"Number {number}" for number in range(RUNS)]


def answer_or_call(request: Any, name: str) -> Any:
    """Call a function, and then repeat the text of the user."""
    messages = request.body["messages"]
    said = next(each["content"] for each in reversed(messages) if each["role"] == "user")
    return ScriptedAnswer(said) if messages[-1]["role"] == "tool" else call(name)


async def test_many_readers_of_one_run_get_the_same() -> None:
    """All of 200 connections, before and in the middle of the answer, get each entry once."""
    workshop = Workshop()
    text = "".join(f"{number} " for number in range(400))
    async with served([call("slow"), ScriptedAnswer(text)], workshop) as it:
        run = await it.say()
        found: list[str] = []

        async def read() -> None:
            async with client(it.url, "token-of-ann") as browser:
                found.append((await browser.get(f"/runs/{run}/events", timeout=120)).text)

        async with asyncio.TaskGroup() as group:
            for _ in range(READERS // 2):
                group.create_task(read())
            await workshop.began.wait()
            await asyncio.sleep(0.2)
            workshop.go.set()
            for _ in range(READERS // 2):
                group.create_task(read())
        logs = [folded(each) for each in found]
        assert len(logs) == READERS
        assert all(log == logs[0] for log in logs)
        assert logs[0][0] == text


def folded(stream: str) -> tuple[str, list[str], int]:
    """Return the text of a log, its other entries, and its last number, equal for joined and single deltas."""
    entries = [json.loads(event["data"]) for event in events_of(stream) if "data" in event]
    numbers = [(entry.get("first", entry["seq"]), entry["seq"]) for entry in entries]
    assert all(first == last + 1 for (_, last), (first, _) in pairwise(numbers)), numbers
    text = "".join(entry["text"] for entry in entries if entry["type"] == "TextDelta")
    return text, [entry["type"] for entry in entries if entry["type"] != "TextDelta"], entries[-1]["seq"]


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
                for each in kept:
                    streams.append((await browser.get(f"/conversations/{each['id']}")).text)
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
    found = [event["data"] for event in events_of(answer.text) if event.get("data", "[DONE]") != "[DONE]"]
    said = "".join(map(words, map(json.loads, found)))
    assert said.removeprefix('{"number": 1}') == f"You said {text}."
    return answer.text


def words(event: dict[str, Any]) -> str:
    """Return the piece of text in an event of any wire."""
    if "choices" in event:
        return event["choices"][0]["delta"].get("content") or ""
    piece = event.get("delta") if event["type"] != "TextDelta" else event["text"]
    return piece if isinstance(piece, str) else ""
