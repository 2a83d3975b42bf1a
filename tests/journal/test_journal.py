"""The journal of a batch: what a rerun skips, what it resumes, and what it never does twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from journaled import BATCH, Died, Json, Script, calls, dies, noting, rerun, run, says
from one_turn import contents

from aswarm import (
    Agent,
    AsyncSwarm,
    CompletionError,
    CompletionRequest,
    Result,
    RunError,
    UnknownCall,
    tool,
)
from aswarm._journal import Journal
from aswarm._journal.sqlite import Step
from aswarm._run.loop import Handlers
from aswarm._run.options import RunOptions
from aswarm._run.plan import ToolOutcome
from aswarm.testing import Answer, Failure, ScriptedModel, call, check_history

UNKNOWN = "cancelled; its outcome is unknown"


@pytest.mark.anyio
async def test_the_response_of_a_finished_item_is_returned(path: Path) -> None:
    """The recorded Response is complete, nothing runs, and no request is sent."""

    async def order(context_variables: Json) -> Result:
        context_variables["cart"]["items"].append("pen")
        del context_variables["old"]
        return Result(value="ordered", agent=second, context_variables={"paid": True})

    second = Agent(name="Second")
    first = Agent(name="First", functions=[order])
    lock = object()
    context = {"cart": {"items": ["ink"]}, "old": 1, "lock": lock}
    model = Script(calls("order"), says("Done"))
    response = await rerun(path, model, first, "Hi", context)
    again = await rerun(path, Script(), first, [{"role": "user", "content": "Hi"}], context)
    assert again == response
    assert again.agent is second
    assert again.context_variables == {"cart": {"items": ["ink", "pen"]}, "lock": lock, "paid": True}
    assert again.usage.requests == 2
    assert again.usage.details == {"prompt_tokens_details": {"cached": 4}}
    assert context["cart"] == {"items": ["ink"]}


@pytest.mark.anyio
async def test_an_item_in_the_middle_is_resumed(path: Path) -> None:
    """Recorded steps are answered from the record: no completion is requested again, and no call runs again."""
    notes: list[str] = []
    agent = Agent(functions=[noting(notes, "one"), noting(notes, "two")])
    with pytest.raises(Died):
        await rerun(path, Script(calls("one", "two"), calls("one"), dies()), agent)
    model = Script(says("Done"))
    response = await rerun(path, model, agent)
    assert sorted(notes) == ["one", "one", "two"]
    assert contents(response) == ["done", "done", "done"]
    assert len(model.asked) == 1
    assert response.usage.requests == 3
    check_history(response.messages)


@pytest.mark.anyio
async def test_a_call_without_an_outcome_is_not_repeated(path: Path) -> None:
    """A call that was started and has no outcome is answered as unknown; a later call of the turn runs."""
    notes: list[str] = []

    def die() -> str:
        raise Died

    agent = Agent(
        functions=[noting(notes, "one"), tool(concurrent=False)(noting(notes, "two", die)), noting(notes, "three")]
    )
    with pytest.raises(Died):
        await rerun(path, Script(calls("one", "two", "three")), agent)
    response = await rerun(path, Script(says("Done")), agent)
    assert notes == ["one", "two", "three"]
    assert contents(response) == ["done", UNKNOWN, "done"]
    again = await rerun(path, Script(), agent)
    assert contents(again) == ["done", UNKNOWN, "done"]
    assert again.unknown_calls == response.unknown_calls == [UnknownCall("two-1", "two", "{}", "Agent")]


@pytest.mark.anyio
async def test_a_repeatable_call_without_an_outcome_runs_again(path: Path) -> None:
    """A call that ended does not; nothing is unknown."""
    notes: list[str] = []
    luck: list[BaseException | None] = [None, Died(), Died(), None]

    def search() -> str:
        if (bad := luck.pop(0)) is not None:
            raise bad
        return "found"

    agent = Agent(functions=[tool(repeatable=True, concurrent=False)(noting(notes, "search", search))])
    with pytest.raises(Died):
        await rerun(path, Script(calls("search", "search")), agent)
    with pytest.raises(Died):
        await rerun(path, Script(), agent)
    response = await rerun(path, Script(says("Done")), agent)
    assert (contents(response), response.unknown_calls) == (["found", "found"], [])
    assert len(notes) == 4
    assert contents(await rerun(path, Script(), agent)) == ["found", "found"]


@pytest.mark.anyio
async def test_a_journal_of_an_older_version_knows_no_unknown_calls(path: Path) -> None:
    """The records of a finished item that have none give an empty list; those of a middleware are recorded."""

    def durable(handlers: Handlers) -> Handlers:
        async def call_tool(*_: Any) -> ToolOutcome:
            return ToolOutcome("perhaps", unknown=True)

        return replace(handlers, call_tool=call_tool)

    agent = Agent(functions=[noting([], "one")])
    with pytest.raises(Died):
        await rerun(path, Script(calls("one"), dies()), agent, middleware=[durable])
    response = await rerun(path, Script(says("Done")), agent)
    assert [made.name for made in response.unknown_calls] == ["one"]
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE step SET data = json_remove(data, '$.unknown_calls') WHERE kind = 'finished'")
    old = await rerun(path, Script(), agent)
    assert (contents(old), old.unknown_calls) == (["perhaps"], [])


@pytest.mark.anyio
async def test_a_call_that_waits_for_its_limiter_has_not_started(path: Path) -> None:
    """A call that waits for its limiter is not recorded as started: the rerun runs it."""
    notes: list[str] = []
    limiter = anyio.CapacityLimiter(1)
    function = tool(limiter=limiter)(noting(notes, "one"))
    agent = Agent(functions=[function])
    async with Journal(path, BATCH) as journal:
        entry = await journal.begin("a", agent, "Hi")
        await limiter.acquire_on_behalf_of("another")
        with anyio.move_on_after(0.05):
            await run(entry, Script(calls("one")), agent)
        limiter.release_on_behalf_of("another")
    response = await rerun(path, Script(says("Done")), agent)
    assert notes == ["one"]
    assert contents(response) == ["done"]


@pytest.mark.anyio
async def test_a_start_is_on_the_disk_before_the_function_runs(path: Path) -> None:
    """While a function runs, the file has its start, and the completion that asked for it."""
    kinds: list[str] = []

    async def look() -> str:
        journal_file = entry.writer._file  # no other process may look while it is open
        rows = journal_file._connection.execute("SELECT kind FROM step ORDER BY seq").fetchall()
        kinds.extend(kind for (kind,) in rows)
        return "seen"

    agent = Agent(functions=[look])
    async with Journal(path, BATCH) as journal:
        entry = await journal.begin("a", agent, "Hi")
        await entry.finish(await run(entry, Script(calls("look"), says("Done")), agent))
    assert kinds == ["completion", "started"]


@pytest.mark.anyio
async def test_a_cancelled_start_is_withdrawn(path: Path) -> None:
    """A call that is cancelled while its start is being written has not run, and runs in the rerun."""
    notes: list[str] = []
    agent = Agent(functions=[noting(notes, "one")])
    async with Journal(path, BATCH) as journal:
        entry = await journal.begin("a", agent, "Hi")
        with anyio.CancelScope() as scope:
            commit, entry.writer.commit = entry.writer.commit, partial(_cancelled, scope, entry.writer.commit)
            await run(entry, Script(calls("one")), agent)
        entry.writer.commit = commit
        assert notes == []
    assert contents(await rerun(path, Script(says("Done")), agent)) == ["done"]
    assert notes == ["one"]


async def _cancelled(scope: anyio.CancelScope, commit: Callable[[Step], Awaitable[None]], step: Step) -> None:
    scope.cancel()
    await commit(step)


@pytest.mark.anyio
async def test_another_attempt_replays_the_first(path: Path) -> None:
    """A second attempt in the same process continues where the first failed."""
    notes: list[str] = []
    agent = Agent(functions=[noting(notes, "one")])
    model = Script(calls("one"), CompletionError("later", retryable=True), says("Done"))
    async with Journal(path, BATCH) as journal:
        entry = await journal.begin("a", agent, "Hi")
        with pytest.raises(CompletionError):
            await run(entry, model, agent)
        assert (await run(entry, model, agent)).text == "Done"
    assert notes == ["one"]


@pytest.mark.anyio
async def test_other_middleware_does_not_see_what_the_record_answers(path: Path) -> None:
    """Middleware inside the journal (the user's, retries, limits) sees only what the record does not answer."""
    asked: list[str] = []

    def noting_requests(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> Any:
            asked.append(request.body["messages"][-1]["role"])
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    agent = Agent(functions=[noting([], "one")])
    with pytest.raises(Died):
        await rerun(path, Script(calls("one"), dies()), agent)
    swarm = AsyncSwarm(client=Script(says("Done")), middleware=[noting_requests])
    async with Journal(path, BATCH) as journal:
        await journal.run("a", RunOptions(agent, "Hi"), swarm._run_to_end)
    assert asked == ["tool"]


@pytest.mark.anyio
async def test_a_failed_call_stays_failed(path: Path) -> None:
    """The model is told the same text of a failed call again."""
    ran: list[str] = []

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    async def one() -> str:
        ran.append("one")
        raise ValueError("no ink")

    async def two() -> str:
        raise Mute

    agent = Agent(functions=[one, two])
    with pytest.raises(Died):
        await rerun(path, Script(calls("one", "two", "missing"), dies()), agent)
    response = await rerun(path, Script(says("Done")), agent)
    assert contents(response) == [
        "Error: ValueError: no ink",
        "Error: Mute",
        "Error: Tool missing not found. Tools: one, two.",
    ]
    assert ran == ["one"]


@pytest.mark.anyio
async def test_a_call_that_ended_the_run_by_its_error(path: Path) -> None:
    """If `tool_error` ends the run after the function has failed, the call has ended and does not run again."""
    ran: list[str] = []

    async def one() -> str:
        ran.append("one")
        raise ValueError("no ink")

    def end(_: Any) -> str:
        raise RuntimeError("stop here")

    agent = Agent(functions=[one])
    with pytest.raises(RunError, match="stop here"):
        await rerun(path, Script(calls("one")), agent, tool_error=end)
    assert contents(await rerun(path, Script(says("Done")), agent)) == ["Error: the call failed."]
    assert ran == ["one"]


@pytest.mark.anyio
@pytest.mark.parametrize("second_api", ["chat", "responses"])
@pytest.mark.parametrize("first_api", ["chat", "responses"])
async def test_an_item_is_resumed_over_either_api(path: Path, first_api: Any, second_api: Any) -> None:
    """The recorded turn is not asked again, no function runs twice, and the other API gets no output items."""
    ran: list[str] = []
    agent = Agent(model="gpt-6-luna", functions=[noting(ran, "order")])
    asking = Answer(calls=[call("order", call_id="c1")], extra={"reasoning_content": "Hm."})
    first = ScriptedModel([asking, Failure(400, "bad")], api=first_api)
    with pytest.raises(CompletionError):
        await rerun(path, first.client(), agent)
    second = ScriptedModel(["Done"], api=second_api)
    response = await rerun(path, second.client(), agent)
    check_history(response.messages)
    assert (response.text, ran, len(second.requests)) == ("Done", ["order"], 1)
    assert ("responses_output" in response.messages[0]) is (first_api == "responses")
    if first_api == second_api:
        assert second.requests[0].body == first.requests[1].body
    elif second_api == "chat":
        assert second.requests[0].messages[-2:] == [
            {"role": "assistant", "content": None, "tool_calls": response.messages[0]["tool_calls"]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ]
    else:
        assert second.requests[0].body["input"][-2:] == [
            {"type": "function_call", "call_id": "c1", "name": "order", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
        ]
