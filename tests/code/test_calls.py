"""Calls inside code: their starts, the calls that run together, the values for the code, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    RunError,
    RunFinished,
    Swarm,
    ToolCallFinished,
    ToolCallStarted,
    ToolError,
    agent_tool,
    current_call,
)
from aswarm.code import code_tool
from aswarm.events import ToolProgress
from aswarm.guards import Blocked, guard_tool
from aswarm.testing import ScriptedModel, call, check_history
from aswarm.tools import Progress, ToolFailure
from tests.support.code.coded import agent_of, result_in, result_of, run_code, swarm_of


class Desk:
    """Functions that note their calls."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.running = self.most = 0

    async def look(self, number: int) -> int:
        """Look something up."""
        self.notes.append(f"look {number}")
        self.running += 1
        self.most = max(self.most, self.running)
        await anyio.sleep(0.002)
        self.running -= 1
        return number * 10

    def plain(self, number: int) -> int:
        """A plain function."""
        self.notes.append(f"plain {number}")
        return number + 1

    async def fails(self, number: int) -> int:
        """Fail."""
        self.notes.append(f"fails {number}")
        raise ToolError(f"no {number}")


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_a_call_that_is_never_awaited_is_a_type_error_and_never_starts(desk: Desk) -> None:
    """The type check names the line; without the check, nothing runs either."""
    assert "code.py:2:1: warning[unused-awaitable]" in await result_of("1\nlook(1)\n3", desk.look)
    assert await result_of("look(1)\n3", desk.look, type_check=False) == "3"
    assert desk.notes == []


async def test_the_calls_of_a_gather_run_together(desk: Desk) -> None:
    """The results are in the order of the calls."""
    code = "await asyncio.gather(*[look(number) for number in range(5)])"
    assert await result_of(code, desk.look) == "[0, 10, 20, 30, 40]"
    assert desk.most == 5


async def test_calls_that_are_not_safe_together_run_in_order(desk: Desk) -> None:
    """Plain functions, and all calls with `concurrent_tools=False`, run in order, as in a turn."""
    code = "await asyncio.gather(plain(1), look(2), look(3), plain(4))"
    assert await result_of(code, desk.look, desk.plain) == "[2, 20, 30, 5]"
    assert desk.notes[0] == "plain 1"
    assert desk.notes[3] == "plain 4"
    assert desk.most == 2
    desk.most = 0
    assert await result_of(code, desk.look, desk.plain, swarm={"concurrent_tools": False}) == "[2, 20, 30, 5]"
    assert desk.most == 1


async def test_arguments_are_checked_like_all_arguments(desk: Desk) -> None:
    """The types are checked before the code runs, and pydantic checks the values."""
    assert 'Expected `int`, found `Literal["x"]`' in await result_of('await look("x")', desk.look)
    code = 'try:\n    await look("x")\nexcept RuntimeError as error:\n    text = str(error)\ntext'
    text = await result_of(code, desk.look, type_check=False)
    assert text == "Error: number: Input should be a valid integer, unable to parse string as an integer (got 'x')"
    assert desk.notes == []


async def test_code_that_fails_names_its_line_and_the_calls_that_ran(desk: Desk) -> None:
    """The model can see which calls it must not repeat."""
    response = await run_code(
        "await look(1)\nawait look(2)\nawait asyncio.gather(fails(3), look(4))", desk.look, desk.fails
    )
    text = result_in(response)
    assert text.startswith('Traceback (most recent call last):\n  File "code.py", line 3')
    assert "RuntimeError: no 3\n[calls that ran before: look (3), fails (1)]" in text
    assert "python-input" not in text
    check_history(response.messages)


async def test_the_log_has_no_results_of_calls(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """The text of failed code contains its output; the model gets it, and the logger does not."""
    caplog.set_level("INFO", "aswarm")
    text = await result_of("x = await look(4242)\nprint(x)\nraise ValueError(str(x))", desk.look)
    assert text.count("42420") == 2
    assert [record.message for record in caplog.records if record.name == "aswarm"] == [
        "tool run_code: the code failed"
    ]


async def test_what_the_code_prints_comes_before_its_value(desk: Desk) -> None:
    assert await result_of('print("one")\nprint(2, end="!")\nawait look(3)', desk.look) == "one\n2!\n30"
    assert await result_of("x = 1", desk.look) == "(the code printed nothing, and its last line has no value)"


async def test_values_without_json_are_shown_as_text(desk: Desk) -> None:
    assert await result_of("{1, 2}", desk.look) == "[1, 2]"
    assert await result_of("x = []\nx.append(x)\nx", desk.look) == '["[...]"]'
    deep = await result_of("x = []\nfor _ in range(9999):\n    x = [x]\nx", desk.look)
    assert "<deeply nested>" in deep


@pytest.mark.parametrize("before", [0, 1])
async def test_a_guard_that_fails_blocks_the_run(before: int, desk: Desk) -> None:
    """The code cannot catch it, and functions that ran leave an unknown outcome."""

    async def broken(checked: Any) -> None:
        if checked.name == "plain":
            raise ZeroDivisionError("in the check")

    code = (
        f"for number in range({before}):\n    await look(number)\ntry:\n    await plain(9)\nexcept Exception:\n    pass"
    )
    model = ScriptedModel([call("run_code", code=code), "Done."])
    with pytest.raises(Blocked) as caught:
        await AsyncSwarm(model.client(), middleware=[guard_tool(broken)]).run(agent_of(desk.look, desk.plain), "Go")
    assert len(model.requests) == 1
    assert desk.notes == ["look 0"][:before]
    assert [each.name for each in caught.value.response.unknown_calls] == ["run_code"][:before]


async def test_an_error_of_the_hook_for_failed_calls_ends_the_run(desk: Desk) -> None:
    def hook(failure: ToolFailure) -> str:
        raise LookupError(failure.name)

    with pytest.raises(RunError, match="LookupError: fails"):
        await run_code("await fails(1)", desk.fails, swarm={"tool_error": hook})


async def test_a_budget_counts_calls_inside_code(desk: Desk) -> None:
    """The call of run_code is one of them."""
    swarm = swarm_of("[await look(number) for number in range(9)]")
    response = await swarm.run(agent_of(desk.look), "Go", budget=Budget(tool_calls=4))
    assert desk.notes == ["look 0", "look 1", "look 2"]
    assert "not run: the budget of 4 tool calls is used up" in result_in(response)


async def test_an_agent_among_the_functions_is_a_handoff(desk: Desk) -> None:
    other = Agent(name="Other")
    response = await run_code("await transfer_to_other()\nawait look(1)", other, desk.look)
    assert response.agent is other
    assert desk.notes == []


async def test_calls_know_themselves(desk: Desk) -> None:
    """Each call has an id, and an idempotency key that is unique and stays the same."""
    seen: list[tuple[str, str]] = []

    async def note() -> None:
        seen.append((current_call().id, current_call().key))

    swarm = swarm_of("await note()\nawait note()")
    await swarm.run(agent_of(note), "Go", run_id="r")
    assert seen == [("outer.0", "r:1:0.0"), ("outer.1", "r:1:0.1")]


async def test_events_of_inner_calls_come_inside_the_progress_of_the_outer_call() -> None:
    """A page shows them below the call with this id."""

    async def tells() -> AsyncGenerator[Any, None]:
        yield Progress("half")
        yield "whole"

    swarm = swarm_of("await tells()")
    async with swarm.stream(agent_of(tells), "Go") as run:
        events = [event async for event in run]
    inside = [event.value for event in events if isinstance(event, ToolProgress) and event.id == "outer"]
    assert inside[0]["type"] == "CodeStarted"
    started, told_half, finished = inside[1:]
    assert isinstance(started, ToolCallStarted)
    assert isinstance(told_half, ToolProgress)
    assert isinstance(finished, ToolCallFinished)
    assert (started.id, told_half.value, finished.content) == ("outer.0", "half", "whole")
    outer = [event for event in events if isinstance(event, ToolCallFinished)]
    assert [each.id for each in outer] == ["outer"]
    assert isinstance(events[-1], RunFinished)


async def test_clock_and_random_numbers_are_fixed(desk: Desk) -> None:
    """The clock stands still within one run of code, in the time zone of the tool."""
    code = (
        "import time, datetime, random\nbefore = time.time()\nawait look(1)\n"
        "[time.time() - before, datetime.datetime.now().astimezone().tzname(), random.random() != random.random()]"
    )
    assert await result_of(code, desk.look, timezone="Asia/Tokyo") == '[0.0, "JST", true]'


async def test_code_runs_inside_an_agent_inside_code(desk: Desk) -> None:
    """No worker is reserved during calls, so code inside code never waits for itself."""

    def script(request: Any) -> Any:
        instructions, *rest = request.messages
        if any(each["role"] == "tool" for each in rest):
            return "inner done" if instructions["content"] == "inner" else "Done."
        if instructions["content"] == "inner":
            return call("run_code", code="await look(1)")
        return call("run_code", code='await asyncio.gather(*[inner(request=f"{n}") for n in range(8)])')

    inner = agent_tool(Agent(name="inner", instructions="inner", functions=[code_tool(desk.look)]))
    outer = Agent(name="outer", instructions="outer", functions=[code_tool(inner)])
    with anyio.fail_after(60):
        response = await AsyncSwarm(ScriptedModel(script).client()).run(outer, "Go")
    assert json.loads(result_in(response)) == ["inner done"] * 8
    assert desk.notes == ["look 1"] * 8


def test_code_runs_in_a_swarm_without_await(desk: Desk) -> None:
    """`Swarm` drives the same engine from a thread."""
    model = ScriptedModel([call("run_code", code="await plain(1)"), "Done."])
    response = Swarm(model.client()).run(agent_of(desk.plain), "Go")
    assert result_in(response) == "2"


def test_two_event_loops_share_the_workers(desk: Desk) -> None:
    for number in (1, 2):
        assert asyncio.run(result_of(f"await look({number})", desk.look)) == f"{number}0"
