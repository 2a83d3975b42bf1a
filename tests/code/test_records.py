"""The record of calls inside code, and the replay that continues code after the death of its process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Hold, Result, ToolError, agent_tool, tool
from aswarm.code import code_tool
from aswarm.conversations import MemoryStore
from aswarm.testing import Request, ScriptedModel, call
from tests.support.code.coded import (
    Log,
    agent_of,
    journaled,
    kept_run,
    local_runs,
    next_process,
    recorded,
    result_in,
    swarm_of,
    unknown,
)

UNKNOWN = "cancelled; its outcome is unknown"
OTHER_CALLS = "stopped: the code has made other calls than its record has, so its outcome is unknown"
CODE = """
import random, time
results = []
for step in range(3):
    number = random.randint(0, 10**9)
    try:
        results.append(await asyncio.gather(look(number), add(step), look(number + 1)))
    except RuntimeError as error:
        results.append(str(error))
[results, time.time()]
"""


class Desk:
    """Functions that note their calls. `add` writes to the context, and returns changes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.functions = [self.look, self.add]

    async def look(self, number: int) -> int:
        """Look something up."""
        self.notes.append(f"look {number}")
        await anyio.lowlevel.checkpoint()
        if number % 7 == 0:
            raise ToolError(f"no {number}")
        return number

    async def add(self, step: int, context_variables: dict[str, Any]) -> Result:
        """Add to the sum."""
        self.notes.append(f"add {step}")
        context_variables["sum"] = context_variables.get("sum", 0) + step
        return Result(value=str(step), context_variables={"last": step})


def started(log: Log) -> list[str]:
    """Return the calls inside code that have started, as notes."""
    starts = [each for each in log.inside if each["value"]["type"] == "ToolCallStarted"]
    return [f"{each['name']} {next(iter(json.loads(each['_made']).values()))}" for each in starts]


def is_cut(log: Log) -> bool:
    """Return whether a call inside code has started, and has no result."""
    types = [each["value"]["type"] for each in log.inside]
    return types.count("ToolCallStarted") > types.count("ToolCallFinished")


def cut_at_call(log: Log, number: int = 1) -> Log:
    """Return the log of a process that has died in this call inside code."""
    return next(
        each for each in map(log.first, range(len(log.entries))) if is_cut(each) and len(started(each)) == number
    )


async def test_every_place_of_a_log_is_a_place_to_continue_from(tmp_path: Path) -> None:
    """No recorded call runs twice, no call is lost, and a call without a recorded result has an unknown outcome."""
    first = Desk()
    log, response = await recorded(tmp_path, CODE, first.functions)
    whole, context = json.loads(result_in(response)), response.context_variables
    assert context["last"] == 2
    assert len(log.entries) > 20
    for until in range(1, len(log.entries)):
        desk, cut = Desk(), log.first(until)
        _, other = await recorded(tmp_path, CODE, desk.functions, cut)
        assert not set(desk.notes) & set(started(cut)), until
        if cut.inside:  # else the code starts with another seed
            assert sorted([*desk.notes, *started(cut)]) == sorted(first.notes), until
            assert is_cut(cut) or json.loads(result_in(other)) == whole, until
        assert bool(other.unknown_calls) == is_cut(cut), until
        if not is_cut(cut):
            assert other.context_variables == context
        assert {each.name for each in other.unknown_calls} <= {"look", "add"}


async def test_an_unknown_call_raises_its_text_in_the_code_and_is_listed(tmp_path: Path) -> None:
    """Each unknown call has its own id and arguments, also in the response of a third process, which only replays."""
    code = (
        "try:\n    await asyncio.gather(look(1), look(2))\nexcept RuntimeError as error:\n    text = str(error)\ntext"
    )
    log, _ = await recorded(tmp_path, code, [Desk().look])
    desk = Desk()
    second, response = await recorded(tmp_path, code, [desk.look], cut_at_call(log, 2))
    assert result_in(response) == UNKNOWN
    expected = [("outer.0", '{"number": 1}'), ("outer.1", '{"number": 2}')]
    assert [(each.id, each.arguments) for each in response.unknown_calls] == expected
    (end,) = second.places("ToolCallFinished")
    _, third = await recorded(tmp_path, code, [desk.look], second.first(end + 1))
    assert third.unknown_calls == response.unknown_calls
    assert desk.notes == []


async def test_a_recorded_result_that_reads_like_a_refusal_is_a_result(tmp_path: Path) -> None:
    """The code gets the recorded text as before, and no RuntimeError."""

    async def state(number: int) -> str:
        """Get the state."""
        return f"not running since {number}"

    code = "[await state(1), await state(2)]"
    log, response = await recorded(tmp_path, code, [state])
    _, again = await recorded(tmp_path, code, [state], log.first(log.places("ToolProgress")[-1] + 1))
    assert result_in(again) == result_in(response) == '["not running since 1", "not running since 2"]'


async def test_a_repeatable_function_runs_again(tmp_path: Path) -> None:
    """A call of a repeatable function has no unknown outcome."""
    log, _ = await recorded(tmp_path, "await look(1)", [Desk().look])
    desk = Desk()
    _, response = await recorded(tmp_path, "await look(1)", [tool(repeatable=True)(desk.look)], cut_at_call(log))
    assert (result_in(response), desk.notes, response.unknown_calls) == ("1", ["look 1"], [])


@pytest.mark.parametrize("is_fewer", [True, False])
async def test_code_that_makes_other_calls_than_its_record_ends(is_fewer: bool, tmp_path: Path) -> None:
    """Its outcome is unknown and no other call runs, if a name or arguments differ, or a recorded call is missing."""
    log, _ = await recorded(tmp_path, "await look(1)\nawait look(2)", Desk().functions)
    cut = log.first(log.places("ToolCallFinished")[0])
    if is_fewer:
        made = cut.entries[log.places("CompletionFinished")[0]]
        made["message"]["tool_calls"][0]["function"]["arguments"] = json.dumps({"code": "await look(1)"})
    else:
        for entry in cut.entries:
            if entry.get("value", {}).get("index") == 1:
                entry["_made"] = '{"number": 3}'
    desk = Desk()
    _, response = await recorded(tmp_path, "", desk.functions, cut)
    assert result_in(response) == OTHER_CALLS
    assert [each.name for each in response.unknown_calls] == ["run_code"]
    assert desk.notes == []


async def test_code_inside_code_has_its_own_start_after_a_restart(tmp_path: Path) -> None:
    """It does not get the random numbers of the code around it."""
    codes = {
        "outer": "import random\nfirst = random.random()\nawait inner(request='1')\nawait inner(request='2')\nfirst",
        "inner": "import random\nrandom.random()",
    }

    async def nothing() -> None:
        """Do nothing."""

    def answer(request: Request) -> Any:
        instructions, *rest = request.messages
        results = [each["content"] for each in rest if each["role"] == "tool"]
        numbers.extend(results if instructions["content"] == "inner" else [])
        return "Done." if results else call("run_code", code=codes[instructions["content"]])

    async def run(before: Log | None = None) -> tuple[Log, str]:
        inner = agent_tool(Agent(name="inner", instructions="inner", functions=[code_tool(nothing)]))
        agent = Agent(name="outer", instructions="outer", functions=[code_tool(inner)])
        log, response = await journaled(tmp_path, AsyncSwarm(ScriptedModel(answer).client()), agent, before)
        return log, result_in(response)

    numbers: list[str] = []
    log, outer = await run()
    _, again = await run(log.first(log.places("ToolProgress", "ToolCallFinished")[0] + 1))
    assert again == outer
    assert len(numbers) == 3
    assert len({*numbers, outer}) == 4


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_run_that_is_closed_keeps_the_work_of_its_code(tmp_path: Path) -> None:
    """Another version of the program closes it: the changes of the context stay, and the outcome of the code is unknown."""
    staying = anyio.Event()

    async def stay() -> None:
        """Stay."""
        staying.set()
        await anyio.sleep_forever()

    first, second = Desk(), Desk()
    run = agent_of(*first.functions, stay), swarm_of(CODE + "await stay()")
    stored = await next_process(tmp_path, run, staying.is_set, agent_of(*second.functions, stay), version="2")
    assert (len(first.notes), second.notes) == (9, [])
    assert stored.context_variables == {"sum": 3, "last": 2}
    assert result_in(stored) == UNKNOWN
    assert unknown(stored) == ["outer.9", "outer"]


async def test_code_that_waits_is_continued_from_its_journal(tmp_path: Path) -> None:
    """A call that had started to ask is unknown; else the next process waits for the same decision."""

    @tool(may_wait=True)
    async def ask(question: str) -> str:
        raise Hold(question, data={"n": 1})

    code = 'await ask("why?")'
    log, response = await recorded(tmp_path, code, [ask])
    assert response.stop == "waiting"
    for until in range(1, len(log.entries)):
        cut = log.first(until)
        _, other = await recorded(tmp_path, code, [ask], cut)
        if is_cut(cut) and not cut.places("ToolProgress", "ToolCallWithdrawn"):
            assert [each.name for each in other.unknown_calls] == ["ask"]
        else:
            assert (other.stop, other.open_calls, other.unknown_calls) == ("waiting", response.open_calls, [])


async def test_readers_of_a_run_get_the_calls_inside_and_no_private_fields() -> None:
    """The calls inside are the progress of the outer call, and pages show them below it."""
    async with local_runs(agent_of(Desk().look), swarm_of("await look(1)")) as runs:
        entries = await kept_run(runs)
    values: list[Any] = [each.to_dict()["value"] for each in entries if each.type == "ToolProgress"]
    assert [each["type"] for each in values] == ["CodeStarted", "ToolCallStarted", "ToolCallFinished"]
    assert values[1]["id"] == "outer.0"
    assert not any(key.startswith("_") for each in entries for key in each.to_dict())


async def test_a_waiting_conversation_is_continued_from_the_store() -> None:
    """The next run of the conversation decides on the calls inside, by their ids."""
    desk, store = Desk(), MemoryStore()
    agent = agent_of(tool(approve=True)(desk.look))
    decisions = [("outer", {"outer.0": True}), ("outer", {"outer.1": {"approve": True}})]
    async with local_runs(agent, swarm_of("await look(1) + await look(2)"), store) as runs:
        entries = await kept_run(runs, *decisions)
        stored = await store.load("ann/c")
    assert entries[-1].response["stop"] == "answer"
    assert desk.notes == ["look 1", "look 2"]
    assert stored is not None
    assert "3" in [each["content"] for each in stored.messages if each["role"] == "tool"]
