"""Drawn runs that are cut at drawn points: the store has a valid and true history then."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Hold, Result, current_call, tool
from aswarm.conversations import Change, Conversation, MemoryStore, Stored
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.conversations.stores import user

UNKNOWN = "cancelled; its outcome is unknown"
NAMES = ["together", "alone", "plain", "fails", "asks", "hands_over", "repeats", "transfer_to_second", "no_such_tool"]
TURNS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), max_size=3)


class Watched(MemoryStore):
    """A store that keeps each written conversation, with the functions that had started and finished then."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []
        self.finished: list[str] = []
        self.seen: list[tuple[Stored, list[str], list[str]]] = []

    async def write(self, conversation_id: str, change: Change, /) -> None:
        finished = self.finished.copy()
        await super().write(conversation_id, change)
        stored = await self.load(conversation_id)
        assert stored is not None
        self.seen.append((stored, self.started.copy(), finished))


def agents(store: Watched) -> Agent:
    """An agent with a function of each kind, and a second one with the same functions."""

    async def run(mark: str) -> str:
        store.started.append(mark)
        await anyio.sleep(0.001)
        store.finished.append(mark)
        return f"did {mark}"

    async def together(mark: str) -> str:
        return await run(mark)

    async def alone(mark: str, context_variables: dict[str, Any]) -> Result:
        context_variables["last"] = mark
        return Result(value=await run(mark), context_variables={mark: True})

    @tool(thread=False)
    def plain(mark: str) -> str:
        store.started.append(mark)
        store.finished.append(mark)
        return f"did {mark}"

    async def fails(mark: str) -> str:
        raise ValueError(await run(mark))

    @tool(may_wait=True)
    async def asks(mark: str) -> str:
        if not current_call().is_approved:
            raise Hold("Really?", data={"mark": mark})
        return await run(mark)

    async def hands_over(mark: str) -> Result:
        return Result(value=await run(mark), agent=second)

    @tool(repeatable=True)
    async def repeats(mark: str) -> str:
        return await run(mark)

    functions = [together, alone, plain, fails, asks, hands_over, repeats]
    second = Agent(name="Second", functions=list(functions))
    second.functions.append(second)
    return Agent(name="First", functions=[*functions, second])


def script(turns: list[list[str]]) -> list[Any]:
    """A model that makes these calls, each with a mark of its own, and then answers."""
    steps: list[Any] = [
        [
            call(name) if name.startswith("transfer") else call(name, call_id=f"c{at}.{n}", mark=f"{at}.{n}")
            for n, name in enumerate(names)
        ]
        for at, names in enumerate(turns)
    ]
    return [*steps, "Done.", "Done."]


def answers_of(stored: Stored) -> dict[str, str | None]:
    """Return the answer of each marked call in the history, or None."""
    calls = [each for message in stored.messages for each in message.get("tool_calls") or ()]
    marks = {each["id"]: json.loads(each["function"]["arguments"] or "{}").get("mark") for each in calls}
    results = [each for each in stored.messages if each["role"] == "tool" and "waiting" not in each]
    answers = {each["tool_call_id"]: each["content"] for each in results}
    return {mark: answers.get(call_id) for call_id, mark in marks.items() if mark}


def check_seen(store: Watched) -> None:
    """Check the history after each write."""
    for stored, started, finished in store.seen:
        check_history(stored.messages, allow_open=True)
        answers = answers_of(stored)
        unknown = {json.loads(each.arguments)["mark"] for each in stored.unknown_calls}
        for mark in finished:
            assert answers[mark] == UNKNOWN or mark in (answers[mark] or "") or mark in unknown
        for mark in started:
            assert answers[mark] is not None or mark in unknown
        for mark, content in answers.items():
            if content is not None and "did" in content:
                assert mark in store.finished
            if content in (None, "not run: interrupted") and mark not in unknown:
                assert mark not in started


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(turns=TURNS, cut=st.integers(0, 30), way=st.sampled_from(["whole", "stream", "cancel"]), at=st.integers(0, 20))
def test_a_run_that_is_cut_anywhere(backend: str, turns: list[list[str]], cut: int, way: str, at: int) -> None:
    """After each write the history is valid, started calls have an answer or are unknown, and a new run can follow."""
    store = Watched()
    agent = agents(store)

    async def leave() -> None:
        chat = Conversation(store, "a", AsyncSwarm(ScriptedModel(script(turns)).client()), agent=agent)
        if way == "whole":
            await chat.run("Go")
        elif way == "cancel":
            with anyio.move_on_after(cut / 4000):
                await chat.run("Go")
        else:
            async with chat.stream("Go") as run:
                count = 0
                async for _ in run:
                    count += 1
                    if count > cut:
                        break
            stored = await chat.load()
            assert stored.messages == [user("Go"), *run.response.messages]

    async def go_on() -> None:
        # A process that has died after one of the writes: another one continues.
        died = MemoryStore()
        before = store.seen[at % len(store.seen)][0]
        await died.write(
            "a", Change("", "r", 0, before.messages, before.agent, before.context_variables, None, before.unknown_calls)
        )
        chat = Conversation(died, "a", AsyncSwarm(ScriptedModel(["Next."]).client()), agent=agent)
        assert (await chat.run("And?")).text == "Next."
        check_history((await chat.load()).messages)

    anyio.run(leave, backend=backend)
    check_seen(store)
    if store.seen:
        anyio.run(go_on, backend=backend)
