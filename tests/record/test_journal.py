"""The journal of a batch: a rerun returns finished items, resumes the others, and repeats no call."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, CompletionError, ConfigurationError, Hold, Resource, Result, RunError, tool
from aswarm.middleware import Handlers
from aswarm.sources import CompletionRequest
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, call, check_history
from aswarm.types import UnknownCall
from tests.support.record.journaled import Died, Json, Script, calls, dies, kinds, noting, rerun, says
from tests.support.run.one_turn import contents

UNKNOWN = "cancelled; its outcome is unknown"


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


async def test_a_call_that_waits_for_its_limiter_has_not_started(path: Path) -> None:
    """A call that waits for its limiter is not recorded as started: the rerun runs it."""
    notes: list[str] = []
    limiter = anyio.CapacityLimiter(1)
    function = tool(limiter=limiter)(noting(notes, "one"))
    agent = Agent(functions=[function])
    await limiter.acquire_on_behalf_of("another")
    async with anyio.create_task_group() as group:
        group.start_soon(rerun, path, Script(calls("one")), agent)
        while not limiter.statistics().tasks_waiting:
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
    limiter.release_on_behalf_of("another")
    response = await rerun(path, Script(says("Done")), agent)
    assert notes == ["one"]
    assert contents(response) == ["done"]


async def test_a_start_is_on_the_disk_before_the_function_runs(path: Path) -> None:
    """While a function runs, the file has its start, and the completion that asked for it."""
    written: list[str] = []

    async def look() -> str:
        copy = path.with_name("copy.sqlite")  # no other process may look while it is open
        shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
        written.extend(kinds(copy))
        return "seen"

    await rerun(path, Script(calls("look"), says("Done")), Agent(functions=[look]))
    assert written == ["CompletionFinished", "ToolCallStarted"]


async def test_a_call_that_was_withdrawn_is_recorded_when_it_starts_again(path: Path) -> None:
    """If the process dies in it, it does not run a third time."""
    notes: list[str] = []
    answers = iter([True, False])

    def act() -> str:
        if next(answers):
            raise Hold("now?")
        raise Died

    async def two() -> str:
        await anyio.sleep(0.05)
        raise Died

    agent = Agent(functions=[noting(notes, "one", act), two])
    for script in (Script(calls("one", "two")), Script()):
        with pytest.raises(Died):
            await rerun(path, script, agent)
    assert contents(await rerun(path, Script(says("Done")), agent)) == [UNKNOWN, UNKNOWN]
    assert notes == ["one", "one"]


async def test_other_middleware_does_not_see_recorded_answers(path: Path) -> None:
    """Middleware inside the journal (the user's, retries, limits) sees only new requests and calls."""
    asked: list[str] = []

    def noting_requests(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> Any:
            asked.append(request.body["messages"][-1]["role"])
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    agent = Agent(functions=[noting([], "one")])
    with pytest.raises(Died):
        await rerun(path, Script(calls("one"), dies()), agent)
    await rerun(path, Script(says("Done")), agent, middleware=[noting_requests])
    assert asked == ["tool"]


async def test_a_failed_call_stays_failed(path: Path) -> None:
    """The model reads the same text of a failed call again."""
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
    missing = "Error: Tool missing not found. Tools: one, two."
    assert contents(response) == ["Error: ValueError: no ink", "Error: Mute", missing]
    assert ran == ["one"]


async def test_a_call_that_ended_the_run_by_its_error(path: Path) -> None:
    """If `tool_error` ends the run after the function has failed, the call does not run again."""
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


@pytest.mark.parametrize("second_api", ["chat", "responses"])
@pytest.mark.parametrize("first_api", ["chat", "responses"])
async def test_an_item_is_resumed_over_either_api(path: Path, first_api: Any, second_api: Any) -> None:
    """The recorded turn is not asked again, no function runs twice, and the other API gets no output items."""
    ran: list[str] = []
    agent = Agent(model="gpt-6-luna", functions=[noting(ran, "order")])
    asking = ScriptedAnswer(calls=[call("order", call_id="c1")], extra={"reasoning_content": "Hm."})
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


@dataclass
class Shop:
    cart: list[str] = field(default_factory=list)
    day: date | None = None


class Clock:
    """A client, which is in no record."""


async def put(context_variables: Shop, clock: Resource[Clock]) -> str:
    assert isinstance(clock, Clock)
    context_variables.cart.append("ink")
    context_variables.day = date(2026, 11, 24)
    return f"{len(context_variables.cart)} things"


async def test_the_changes_of_a_typed_view_are_repeated(path: Path) -> None:
    """They are JSON in the record. The resources are passed again, and a rerun without them starts nothing."""
    agent = Agent(functions=[put])
    resources = {"clock": Clock()}
    with pytest.raises(Died):
        await rerun(path, Script(calls("put"), dies()), agent, context={"other": 1}, resources=resources)
    with pytest.raises(ConfigurationError, match="the resource 'clock' is missing"):
        await rerun(path, Script(), agent, context={"other": 1})
    response = await rerun(path, Script(calls("put"), says("Done")), agent, context={"other": 1}, resources=resources)
    assert response.context_variables == {"other": 1, "cart": ["ink", "ink"], "day": "2026-11-24"}
    assert contents(response) == ["1 things", "2 things"]
    assert await rerun(path, Script(), agent, context={"other": 1}, resources=resources) == response
