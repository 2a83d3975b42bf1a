"""Eager tools beside other features: the run is the same as without the option."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Budget, CompletionFinished, Hold, RunError, RunFinished, tool
from aswarm.events import ToolProgress
from aswarm.guards import CheckedCall, guard_tool
from aswarm.middleware import Handlers, Middleware, Started, ToolCall, ToolOutcome, cache
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from aswarm.tools import ToolFailure
from tests.support.leaving.run_scenes import until
from tests.support.run.eager_desk import VIRTUAL, Desk, calls_of
from tests.support.runtime.virtual_time import jump, virtual_backend

APIS = pytest.mark.parametrize("api", ["chat", "responses"])


async def played(
    desk: Desk,
    script: Sequence[Any],
    *,
    seconds: float = 1,
    api: Any = "chat",
    options: Any = None,
    deltas: bool = False,
    **run_options: Any,
) -> tuple[int, list[Any]]:
    """Return the number of calls that started before the end of the first completion, and the events and the response."""
    model = ScriptedModel(["Hello", *script], api=api)
    client = model.client()
    swarm, agent, early = AsyncSwarm(client, **options or {}), desk.agent(seconds), None
    # A client looks up its platform in a thread, once, and the clock must not jump meanwhile.
    await AsyncSwarm(client).run(Agent(), "Hi")
    error, shown = None, list[str]()
    async with swarm.stream(agent, "Go", run_id="r", deltas=deltas, **run_options) as run:
        try:
            async for event in run:
                if isinstance(event, CompletionFinished) and early is None:
                    early = len(desk.started)
                if not isinstance(event, RunFinished | ToolProgress):
                    shown.append(repr(event))
        except RunError as caught:
            error = f"{type(caught).__name__}: {caught}"
    assert len(desk.started) == desk.ended
    assert model.open_streams == 0
    check_history(run.response.messages, allow_open=True)
    return early or 0, [run.response.model_dump(exclude={"agent"}), error, sorted(shown)]


async def same(make_script: Any, early: int, **options: Any) -> Any:
    """Play the script without eager tools and with them, streamed and whole. `early`: the calls before the end of its first completion."""
    swarm_options = options.pop("options", {})
    for eager, deltas in ((True, True), ("always", False)):
        plain = await played(Desk(), make_script(), options=swarm_options, deltas=deltas, **options)
        with_eager = {**swarm_options, "eager_tools": eager}
        assert await played(Desk(), make_script(), options=with_eager, deltas=deltas, **options) == (early, plain[1])
        assert plain[0] == 0
    return plain[1]


# --- calls that wait, fail, or are stopped ----------------------------------------------------------------------------


def hold_first(checked: CheckedCall) -> Hold | None:
    return Hold("sure?") if checked.id == "search-0" else None


def holds(handlers: Handlers) -> Handlers:
    async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        if call.id == "search-0":
            raise Hold("sure?")
        return await handlers.call_tool(call, context, started)

    return Handlers(handlers.complete, call_tool, handlers.run, may_hold=True)


@VIRTUAL
@APIS
@pytest.mark.parametrize(("middleware", "debug"), [(guard_tool(hold_first, may_wait=True), False), (holds, True)])
async def test_a_middleware_that_holds_an_eager_call(api: Any, middleware: Any, debug: bool) -> None:
    """The call stays open, and later calls wait with it, also below the output of `debug=True`."""
    early, options = 2 if api == "responses" else 1, {"middleware": [middleware]}
    shown = await same(lambda: [calls_of(*["search"] * 3)], early, api=api, options=options, debug=debug)
    assert [each["id"] for each in shown[0]["open_calls"]] == ["search-0"]
    assert [m["content"] for m in shown[0]["messages"][1:]] == ["found 1", "found 2"]


@VIRTUAL
@APIS
async def test_a_tool_error_hook_that_raises(api: Any) -> None:
    """The run ends in the turn of the call, with the exception of the hook."""

    def refuse(failure: ToolFailure) -> str:
        raise LookupError(failure.name)

    shown = await same(
        lambda: [ScriptedAnswer(calls=[call("search", "{}", call_id="a"), *calls_of("search").calls], pause=0.5)],
        int(api == "responses"),
        seconds=1000,
        api=api,
        options={"tool_error": refuse},
    )
    assert "search" in shown[1]


@VIRTUAL
async def test_a_tool_error_hook_that_raises_for_a_dropped_call() -> None:
    """The run ends with the error of its completion."""
    told: list[str] = []

    def refuse(failure: ToolFailure) -> str:
        told.append(failure.id)
        raise LookupError(failure.name)

    @tool(repeatable=True)
    async def fails(x: str) -> str:
        raise ValueError(x)

    answer = ScriptedAnswer(calls=calls_of("fails", "fails").calls, pause=0.5, break_after=4)
    swarm = AsyncSwarm(ScriptedModel([answer]).client(), eager_tools="always", tool_error=refuse)
    with pytest.raises(RunError) as caught:
        await swarm.run(Agent(functions=[fails]), "Go")
    assert not isinstance(caught.value.__cause__, LookupError)
    assert caught.value.response.messages == []
    assert told == ["fails-0"]


async def test_an_abandoned_function_with_a_timeout() -> None:
    """The model reads that an eager call may still be running, and the run ends without waiting for it."""
    started, gate, ended = list[str](), threading.Event(), threading.Event()

    @tool(repeatable=True, abandon_on_cancel=True, timeout=30)
    def hang(x: str) -> str:
        started.append(x)
        gate.wait(120)
        ended.set()
        return x

    async def jump_after_each_start() -> None:
        for count in (1, 2):
            await until(lambda count=count: len(started) == count)  # type: ignore[misc]
            jump(30)

    swarm = AsyncSwarm(ScriptedModel([calls_of("hang", "hang", pause=0.02), "Done"]).client(), eager_tools="always")
    async with anyio.create_task_group() as group:
        group.start_soon(jump_after_each_start)
        response = await swarm.run(Agent(functions=[hang]), "Go")
    text = "Error: hang timed out after 30 s. It may still be running."
    assert [m["content"] for m in response.messages if m["role"] == "tool"] == [text, text]
    assert [each.id for each in response.unknown_calls] == ["hang-0", "hang-1"]
    assert not ended.is_set()
    gate.set()
    await until(ended.is_set)


@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")])
async def test_a_task_that_is_cancelled_many_times() -> None:
    """`task.cancel()` at each step of the event loop stops the eager calls."""
    desk, reached = Desk(), anyio.Event()

    async def read() -> None:
        async with swarm.stream(desk.agent(1000), "Go") as run:
            async for _ in run:
                if desk.started:
                    reached.set()

    swarm = AsyncSwarm(ScriptedModel([calls_of(*["search"] * 4)]).client(), eager_tools=True)
    task = asyncio.ensure_future(read())
    await reached.wait()
    for _ in range(100):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(desk.started) == desk.ended == desk.cancelled > 0


@VIRTUAL
async def test_a_call_that_finishes_when_its_run_is_cancelled() -> None:
    """The result of the call is kept."""

    @tool(repeatable=True)
    async def last(x: str) -> str:
        await anyio.sleep(10)
        scope.cancel()
        return x

    swarm = AsyncSwarm(ScriptedModel([calls_of("last"), "Done"], api="responses").client(), eager_tools="always")
    with anyio.CancelScope() as scope:
        run = swarm.run(Agent(functions=[last]), "Go", stream=True)
        async for _ in run:
            pass
    assert [m["content"] for m in run.response.messages if m["role"] == "tool"] == ["0"]
    assert run.response.unknown_calls == []


# --- limits -----------------------------------------------------------------------------------------------------------


@VIRTUAL
@APIS
@pytest.mark.parametrize("budget", [{"tool_calls": 1}, {"tool_calls": 3}, {"seconds": 10}], ids=str)
@pytest.mark.parametrize("then", ["stop", "answer", "raise"])
async def test_budgets(api: Any, budget: Any, then: Any) -> None:
    """A budget of calls admits the same calls, and a budget of seconds ends the same calls."""

    early = {"chat": 3, "responses": 4}[api]
    shown = await same(
        lambda: [calls_of(*["search"] * 4), "Done"],
        min(early, budget.get("tool_calls", early)),
        seconds=1000 if "seconds" in budget else 1,
        api=api,
        budget=Budget(**budget, then=then),
    )
    assert shown[0]["spent"] == next(iter(budget))
    assert (shown[1] is not None) == (then == "raise")


@VIRTUAL
async def test_the_last_completion_of_a_budget() -> None:
    """Its calls are refused, and none starts early."""
    shown = await same(lambda: [calls_of("search", "search")] * 2, 1, budget=Budget(turns=1, then="answer"))
    assert [m["content"] for m in shown[0]["messages"] if m["role"] == "tool"][:2] == ["found 0", "found 1"]


# --- typed output, and middleware -------------------------------------------------------------------------------------


@VIRTUAL
@APIS
async def test_cache(api: Any) -> None:
    """A completion is saved whole, and answers a run with or without eager tools."""

    def script() -> list[Any]:
        return [calls_of("search", "search"), "Done"]

    _, plain = await played(Desk(), script(), api=api)
    for first, second in ((False, "always"), ("always", False), ("always", "always")):
        kept: dict[str, str] = {}
        wrap: list[Middleware] = [cache(kept)]
        options = {"middleware": wrap}
        early, shown = await played(Desk(), script(), api=api, options={**options, "eager_tools": first})
        assert shown == plain
        assert (early > 0) == (first == "always")
        assert len(kept) == 2
        _, again = await played(Desk(), [], api=api, options={**options, "eager_tools": second})
        assert again[0]["messages"] == plain[0]["messages"]
