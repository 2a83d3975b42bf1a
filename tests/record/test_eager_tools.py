"""A journal and eager tools: the entries are the same, and a process that dies before the turn loses nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

from aswarm import Agent, RunError, tool
from aswarm.middleware import CompletionRequest
from tests.support.record.journaled import Died, Done, fail_from, kinds, rerun
from tests.support.run.one_turn import contents


class Writer:
    """A source that writes two calls, waits until the function runs, and may die then."""

    def __init__(self, started: list[str], *, dies: bool = False, waits: bool = True) -> None:
        self._started, self._dies, self._waits = started, dies, waits

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        if request.body["messages"][-1]["role"] == "tool":
            yield {"choices": [{"index": 0, "delta": {"content": "Done"}, "finish_reason": "stop"}]}
            return
        for index in range(2):
            made = {"index": index, "id": f"c{index}", "function": {"name": "look", "arguments": f'{{"x": "{index}"}}'}}
            yield {"choices": [{"index": 0, "delta": {"tool_calls": [made]}, "finish_reason": None}]}
        while self._waits and not self._started:
            await anyio.lowlevel.checkpoint()
        if self._dies:
            raise Died
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


def looking(started: list[str]) -> Agent:
    @tool(repeatable=True)
    async def look(x: str) -> str:
        started.append(x)
        return f"saw {x}"

    return Agent(functions=[look])


async def test_the_entries_are_the_same(tmp_path: Path) -> None:
    """A call is recorded when its turn starts it."""
    eager, plain = list[str](), list[str]()
    first = await rerun(tmp_path / "eager", Writer(eager), looking(eager), eager_tools="always")
    second = await rerun(tmp_path / "plain", Writer(plain, waits=False), looking(plain))
    assert kinds(tmp_path / "eager") == kinds(tmp_path / "plain")
    assert first.messages == second.messages
    assert sorted(eager) == sorted(plain) == ["0", "1"]


async def test_a_death_before_the_turn(tmp_path: Path) -> None:
    """The next process repeats the request and the function, and no call is unknown."""
    started: list[str] = []
    with pytest.raises(Died):
        await rerun(tmp_path / "journal", Writer(started, dies=True), looking(started), eager_tools="always")
    assert started == ["0"]
    response = await rerun(tmp_path / "journal", Writer(started), looking(started), eager_tools="always")
    assert response.unknown_calls == []
    assert contents(response) == ["saw 0", "saw 1"]
    assert sorted(started) == ["0", "0", "1"]


async def test_a_start_that_cannot_be_recorded(tmp_path: Path) -> None:
    """The eager call is stopped, and the run fails."""
    journal, started = tmp_path / "journal", list[str]()
    await rerun(journal, Done(), looking(started))
    fail_from(journal, "ToolCallStarted")
    with pytest.raises(RunError, match="disk full"):
        await rerun(journal, Writer(started), looking(started), item="b", eager_tools="always")
    assert started
