"""The record of calls inside code, and the replay that continues code after the death of its process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Hold, Response, Result, ToolError, tool
from aswarm._record.entries import Entry
from aswarm._run.current_call import running
from aswarm.code import code_tool
from aswarm.conversations import MemoryStore
from aswarm.runs import CallAnswer, LocalRuns, NewRun, Run
from aswarm.testing import ScriptedModel, call
from tests.support.code.coded import Log, recorded, told
from tests.support.record.journaled import Died, Script, calls, rerun, says

CODE = """
import random, time
results = []
for step in range(3):
    number = random.randint(0, 1000)
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

    @property
    def functions(self) -> list[Any]:
        return [self.look, self.add]


def started(log: Log, until: int) -> list[str]:
    """The calls inside code whose start is in the first entries of a log, as notes."""
    notes: list[str] = []
    for entry in log.entries[:until]:
        value = entry.fields.get("value") or {}
        if entry.type == "ToolProgress" and value["type"] == "ToolCallStarted":
            notes.append(f"{value['name']} {next(iter(json.loads(value['arguments']).values()))}")
    return notes


def inside_types(entries: list[Entry]) -> list[str]:
    """The types of the entries of calls inside code."""
    return [entry.fields["value"]["type"] for entry in entries if entry.type == "ToolProgress"]


def is_cut(log: Log, until: int) -> bool:
    """Whether a call inside code has started, and has no result, in the first entries of a log."""
    types = inside_types(log.entries[:until])
    return types.count("ToolCallStarted") > types.count("ToolCallFinished")


@pytest.mark.anyio
async def test_every_place_of_a_log_is_a_place_to_continue_from() -> None:
    """No recorded call runs twice, no call is lost, and a call without a recorded result has an unknown outcome."""
    first = Desk()
    log, response = await recorded(CODE, first.functions)
    whole, context = json.loads(told(response)), response.context_variables
    assert context["last"] == 2
    assert len(log.entries) > 20
    for until in range(1, len(log.entries)):
        desk, before = Desk(), started(log, until)
        _, other = await recorded(CODE, desk.functions, log.entries[:until])
        assert not set(desk.notes) & set(before), until
        if any(entry.type == "ToolProgress" for entry in log.entries[:until]):  # else the code starts with another seed
            assert sorted([*desk.notes, *before]) == sorted(first.notes), until
            assert is_cut(log, until) or json.loads(told(other)) == whole, until
        assert bool(other.unknown_calls) == is_cut(log, until), until
        if not is_cut(log, until):
            assert other.context_variables == context
        assert {each.name for each in other.unknown_calls} <= {"look", "add"}


@pytest.mark.anyio
async def test_an_unknown_call_raises_its_text_in_the_code_and_is_listed() -> None:
    """Each of them by its own name and arguments."""
    log, _ = await recorded("await asyncio.gather(look(1), look(2))", [Desk().look])
    cut = next(place for place, entry in enumerate(log.entries) if is_cut(log, place) and len(started(log, place)) == 2)
    desk = Desk()
    _, response = await recorded("await asyncio.gather(look(1), look(2))", [desk.look], log.entries[:cut])
    assert "RuntimeError: cancelled; its outcome is unknown" in told(response)
    assert [(each.id, each.arguments) for each in response.unknown_calls] == [
        ("outer.0", '{"number": 1}'),
        ("outer.1", '{"number": 2}'),
    ]
    assert desk.notes == []


@pytest.mark.anyio
async def test_a_recorded_result_that_reads_like_a_refusal_is_a_result() -> None:
    """The code gets the recorded text as before, and no RuntimeError."""

    async def state(number: int) -> str:
        """Get the state."""
        return f"not running since {number}"

    code = "[await state(1), await state(2)]"
    log, response = await recorded(code, [state])
    end = max(n for n, entry in enumerate(log.entries) if entry.type == "ToolProgress")
    _, again = await recorded(code, [state], log.entries[: end + 1])
    assert told(again) == told(response) == '["not running since 1", "not running since 2"]'


@pytest.mark.anyio
async def test_unknown_calls_are_in_the_record_of_the_finished_code() -> None:
    """A third process, which only replays, lists them too."""
    code = "try:\n    await look(1)\nexcept RuntimeError:\n    pass\nawait look(2)"
    log, _ = await recorded(code, [Desk().look])
    cut = next(place for place in range(len(log.entries)) if is_cut(log, place))
    second, response = await recorded(code, [Desk().look], log.entries[:cut])
    desk = Desk()
    end = next(n for n, entry in enumerate(second.entries) if entry.type == "ToolCallFinished")
    _, third = await recorded(code, [desk.look], second.entries[: end + 1])
    assert third.unknown_calls == response.unknown_calls != []
    assert desk.notes == []


@pytest.mark.anyio
async def test_a_repeatable_function_runs_again() -> None:
    log, _ = await recorded("await look(1)", [Desk().look])
    cut = next(place for place in range(len(log.entries)) if is_cut(log, place))
    desk = Desk()
    _, response = await recorded("await look(1)", [tool(repeatable=True)(desk.look)], log.entries[:cut])
    assert (told(response), desk.notes, response.unknown_calls) == ("1", ["look 1"], [])


@pytest.mark.anyio
async def test_code_that_makes_another_call_than_its_record_ends() -> None:
    """With an unknown outcome, before the other call runs: the name and the arguments of each call are compared."""
    log, _ = await recorded("await look(1)\nawait look(2)", [Desk().look, Desk().add])
    whole = next(n for n, entry in enumerate(log.entries) if entry.type == "ToolCallFinished")
    for entry in log.entries[:whole]:
        if entry.type == "ToolProgress" and entry.fields["value"].get("index") == 1:
            entry.fields["_made"] = '{"number": 3}'  # type: ignore[index]
    desk = Desk()
    _, response = await recorded("await look(1)\nawait look(2)", [desk.look, desk.add], log.entries[:whole])
    assert told(response) == "stopped: the code has made other calls than its record has, so its outcome is unknown"
    assert [each.name for each in response.unknown_calls] == ["run_code"]
    assert desk.notes == []


@pytest.mark.anyio
async def test_code_that_makes_fewer_calls_than_its_record_ends() -> None:
    """With an unknown outcome: a call has run that the code does not know of."""
    log, _ = await recorded("await look(1)\nawait look(2)", [Desk().look])
    entries = [*log.entries]
    end = next(n for n, entry in enumerate(entries) if entry.type == "ToolCallFinished")
    (made,) = (
        entry for entry in entries if entry.type == "CompletionFinished" and entry.fields["message"]["tool_calls"]
    )
    made.fields["message"]["tool_calls"][0]["function"]["arguments"] = json.dumps({"code": "await look(1)"})
    desk = Desk()
    _, response = await recorded("", [desk.look], entries[:end])
    assert told(response) == "stopped: the code has made other calls than its record has, so its outcome is unknown"
    assert [each.name for each in response.unknown_calls] == ["run_code"]
    assert desk.notes == []


@pytest.mark.anyio
async def test_code_inside_code_has_its_own_start_after_a_restart() -> None:
    """It does not get the clock and the random numbers of the code around it."""

    async def start() -> str:
        """Get the recorded start that code inside would get."""
        now = running()
        assert now is not None
        return str(now.recorded_start)

    code = "await start()\nawait start()"
    log, _ = await recorded(code, [start])
    first = next(
        n for n, each in enumerate(log.entries) if each.fields.get("value", {}).get("type") == "ToolCallFinished"
    )
    _, response = await recorded(code, [start], log.entries[: first + 1])
    assert told(response) == "None"


@pytest.mark.anyio
async def test_a_run_that_is_closed_keeps_what_its_code_has_done() -> None:
    """A replay that must not continue: the changes of the context stay, and the outcome of the code is unknown."""
    log, response = await recorded(CODE, Desk().functions)
    last = max(n for n, entry in enumerate(log.entries) if entry.type == "ToolProgress")
    desk = Desk()
    kept: list[Response] = []
    with anyio.CancelScope() as scope:
        try:
            await recorded(CODE, desk.functions, log.entries[: last + 1], stop=scope.cancel)
        except BaseException as error:
            kept.append(error.response)  # type: ignore[attr-defined]
            raise
    assert desk.notes == []
    assert kept[0].context_variables == response.context_variables
    assert told(kept[0]) == "cancelled; its outcome is unknown"
    assert [each.name for each in kept[0].unknown_calls] == ["run_code"]


@pytest.mark.anyio
async def test_a_call_inside_code_that_waits_is_recorded_with_its_data() -> None:
    """So that an attempt after the death of the process waits again, and its function has not run."""

    @tool(may_wait=True)
    async def ask(question: str) -> str:
        raise Hold(question, data={"n": 1})

    log, response = await recorded('await ask("why?")', [ask])
    assert response.stop == "waiting"
    waits = next(n for n, entry in enumerate(log.entries) if entry.type == "CallWaiting")
    for until in range(1, waits + 1):
        again, other = await recorded('await ask("why?")', [ask], log.entries[:until])
        if is_cut(log, until) and "CallWaiting" not in inside_types(log.entries[:until]):
            assert [each.name for each in other.unknown_calls] == ["ask"]  # it is not known whether it has asked
            continue
        assert (other.stop, other.waiting, other.unknown_calls) == ("waiting", response.waiting, [])
        assert inside_types(again.entries).count("CallWaiting") == 1


@pytest.mark.anyio
async def test_readers_of_a_run_get_the_calls_inside_and_no_private_fields() -> None:
    """As the progress of the outer call, which pages show below it."""
    model = ScriptedModel([call("run_code", call_id="outer", code="await look(1)"), "Done."])
    async with (
        MemoryStore() as store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store=store, agents=[Agent(name="A", functions=[code_tool(Desk().look)])]) as runs,
    ):
        record = await runs.start(NewRun("ann", "c", [{"role": "user", "content": "Go"}]))
        entries = [entry async for entry in Run(runs, record).entries()]
    values: list[Mapping[str, Any]] = [each.to_dict()["value"] for each in entries if each.type == "ToolProgress"]
    assert [each["type"] for each in values] == ["CodeStarted", "ToolCallStarted", "ToolCallFinished"]
    assert values[1]["id"] == "outer.0"
    assert not any(key.startswith("_") for each in entries for key in each.to_dict())


@pytest.mark.anyio
async def test_a_waiting_conversation_is_continued_from_the_store() -> None:
    """The next run of the conversation decides on the calls inside, by their ids."""
    desk = Desk()
    agent = Agent(name="A", functions=[code_tool(tool(approve=True)(desk.look))])
    model = ScriptedModel([call("run_code", call_id="outer", code="await look(1) + await look(2)"), "Done."])
    async with (
        MemoryStore() as store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store=store, agents=[agent]) as runs,
    ):
        stops: list[str] = []
        first = NewRun("ann", "c", [{"role": "user", "content": "Go"}])
        record = await runs.start(first)
        stops.append([entry async for entry in Run(runs, record).entries()][-1].response["stop"])
        for decisions in ({"outer.0": True}, {"outer.1": {"approve": True}}):
            answers = [CallAnswer("outer", data=decisions, run_id=record.id)]
            record = await runs.start(NewRun("ann", "c", answers=answers))
            stops.append([entry async for entry in Run(runs, record).entries()][-1].response["stop"])
        stored = await store.load("ann/c")
    assert stops == ["waiting", "waiting", "answer"]
    assert desk.notes == ["look 1", "look 2"]
    assert stored is not None
    assert "3" in [each["content"] for each in stored.messages if each["role"] == "tool"]


@pytest.mark.anyio
async def test_a_batch_item_continues_its_code_from_its_journal(tmp_path: Path) -> None:
    """The first process dies in the second call; the call that had finished does not run again."""
    notes: list[int] = []

    async def work(number: int) -> int:
        notes.append(number)
        if notes == [0, 1]:
            raise Died
        return number

    agent = Agent(name="A", functions=[code_tool(work)])
    code = """
out = []
for number in range(3):
    try:
        out.append(await work(number))
    except RuntimeError as error:
        out.append(str(error))
out
"""
    written = calls("run_code", run_code=json.dumps({"code": code}))
    with pytest.raises(Died):
        await rerun(tmp_path / "journal", Script(written), agent)
    response = await rerun(tmp_path / "journal", Script(says("Done.")), agent)
    assert notes == [0, 1, 2]
    assert json.loads(told(response)) == [0, "cancelled; its outcome is unknown", 2]
    assert [(each.name, each.arguments) for each in response.unknown_calls] == [("work", '{"number": 1}')]
