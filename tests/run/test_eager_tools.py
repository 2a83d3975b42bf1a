"""Eager tools: calls start while the model writes, and the rest of the run is the same as without them."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    CompletionFinished,
    ConfigurationError,
    RunError,
    ToolCallFinished,
    ToolCallStarted,
    tool,
)
from aswarm.events import ToolProgress
from aswarm.guards import Block, Blocked, guard_input, guard_tool
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome
from aswarm.testing import ScriptedAnswer, ScriptedCall, ScriptedModel, check_history, check_middleware
from tests.support.run.eager_desk import BOTH, VIRTUAL, Desk, calls_of
from tests.support.runtime.virtual_time import run_virtual


@VIRTUAL
@pytest.mark.parametrize("eager", [True, "always"])
async def test_a_call_starts_when_the_next_call_starts_to_arrive(eager: Any) -> None:
    """A call overlaps with the rest of the completion; the events of its turn come after the completion."""
    desk, model = Desk(), ScriptedModel([calls_of(*["search"] * 4), "Done"])
    swarm, start = AsyncSwarm(model.client(), eager_tools=eager), anyio.current_time()
    async with swarm.stream(desk.agent(), "Go", run_id="r", deltas=eager is True) as run:
        events = [type(event) async for event in run]
    assert desk.keys == ["r:1:0", "r:1:1", "r:1:2", "r:1:3"]
    assert events.index(CompletionFinished) < events.index(ToolCallStarted)
    assert events.index(ToolCallStarted) < events.index(ToolProgress) < events.index(ToolCallFinished)
    first, second, third, last = desk.started
    assert first < second < third < last
    assert anyio.current_time() - first < last - start + 3  # less than the sum of completion and function


# --- leaving ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("way", ["break", "aclose", "cancel", "error", "cut", "budget"])
@pytest.mark.parametrize("kind", ["async", "thread", "limiter"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_run_ends_after_its_eager_calls(backend: str, way: str, kind: str, api: Any) -> None:
    """After a run is left during its completion, no function runs, and the history has no trace of the calls."""
    if kind == "thread":
        anyio.run(_leave, way, kind, api, backend=backend)
    else:
        run_virtual(backend, _leave, way, kind, api)


async def _leave(way: str, kind: str, api: Any) -> None:
    desk, gate, in_thread = Desk(), threading.Event(), [0, 0]

    @tool(repeatable=True)
    def blocking(x: str) -> str:
        in_thread[0] += 1
        gate.wait(0.5)  # a run that is cut or over its budget opens no gate
        in_thread[1] += 1
        return x

    limiter = anyio.CapacityLimiter(1)
    if kind == "limiter":
        limiter.acquire_on_behalf_of_nowait(desk)
    agent = Agent(functions=[blocking]) if kind == "thread" else desk.agent(1000, limiter=limiter)
    answer = calls_of(*[agent.functions[0].__name__] * 4, pause=0.05)
    if way == "cut":
        answer = ScriptedAnswer(calls=answer.calls, pause=0.05, break_after=7)
    swarm = AsyncSwarm(ScriptedModel(["Hello", answer], api=api).client(), eager_tools=True)
    # The SDK looks up its platform in a thread, once, and the clock must not jump meanwhile.
    await swarm.run(agent, "Hi")
    run = swarm.stream(agent, "Go", budget=Budget(seconds=0.4) if way == "budget" else None)
    with suppress(RunError, ZeroDivisionError), anyio.CancelScope() as scope:
        async with run:
            seen = 0
            async for _ in run:
                seen += 1
                if seen == 6:
                    gate.set()
                    if way == "break":
                        break
                    if way == "aclose":
                        await run.aclose()
                    elif way == "cancel":
                        scope.cancel()
                    elif way == "error":
                        raise ZeroDivisionError
    assert in_thread[0] == in_thread[1]
    if kind == "async" or way != "budget":  # a busy machine may start no thread within the budget
        assert (in_thread[0] > 0) == (kind == "thread")
    assert len(desk.started) == desk.ended == desk.cancelled == (1 if kind == "async" else desk.ended)
    assert run.response.messages == []
    assert run.response.unknown_calls == []
    if kind == "limiter":
        assert limiter.statistics().tasks_waiting == 0


@VIRTUAL
async def test_a_cancelled_turn_stops_its_eager_calls() -> None:
    """A call whose start was reported is unknown when its run is left, like any other call."""
    desk = Desk()
    swarm = AsyncSwarm(ScriptedModel([calls_of("search", "search")]).client(), eager_tools=True)
    async with swarm.stream(desk.agent(1000), "Go") as run:
        async for event in run:
            if isinstance(event, ToolCallStarted) and event.index == 1:
                break
    assert desk.cancelled == 2
    assert [each.id for each in run.response.unknown_calls] == ["search-0", "search-1"]


@VIRTUAL
@pytest.mark.parametrize(("calls", "turns"), [(102, 2), (2, 1)])
async def test_calls_above_a_limit_are_answered(calls: int, turns: int) -> None:
    """At most 100 calls of a completion start early."""
    desk, model = Desk(), ScriptedModel([calls_of(*["search"] * calls, pause=0.01), "Done"])
    response = await AsyncSwarm(model.client(), eager_tools="always").run(desk.agent(), "Go", max_turns=turns)
    assert len([each for each in response.messages if each["role"] == "tool"]) == desk.ended == calls


def test_the_rules_of_middleware_hold() -> None:
    """The middleware of eager tools passes `check_middleware`."""
    from aswarm._run.eager import EagerMiddleware

    check_middleware(lambda handlers: EagerMiddleware(handlers.run._run.state)(handlers))


# --- what does not start ----------------------------------------------------------------------------------------------


@VIRTUAL
@pytest.mark.parametrize(
    ("options", "swarm_options"),
    [({"approve": True}, {}), ({"repeatable": False}, {}), ({}, {"budget": Budget(tool_calls=0, then="answer")})],
    ids=["approval", "not repeatable", "budget"],
)
async def test_other_calls_wait_for_their_turn(options: Any, swarm_options: Any) -> None:
    """A call that is not repeatable, needs an approval or exceeds a budget does not start during the completion."""

    desk, agent = Desk(), Agent()
    agent.functions = [tool(**options)(desk.agent(0).functions[0])]  # type: ignore[list-item]
    swarm = AsyncSwarm(ScriptedModel([calls_of(*["search"] * 3), "Done"]).client(), eager_tools=True, **swarm_options)
    async with swarm.stream(agent, "Go") as run:
        async for event in run:
            if isinstance(event, CompletionFinished) and event.message["tool_calls"]:
                assert desk.started == []


@VIRTUAL
async def test_a_call_that_changes_after_its_start_runs_again() -> None:
    """The result for the first arguments is discarded, and so are the writes of a middleware around that call."""

    async def complete(request: Any) -> AsyncGenerator[Mapping[str, Any], None]:
        def chunk(index: int, arguments: str, **more: Any) -> dict[str, Any]:
            made = {"index": index, "function": {"name": "look", "arguments": arguments}, **more}
            return {"choices": [{"index": 0, "delta": {"tool_calls": [made]}, "finish_reason": None}]}

        if request.body["messages"][-1]["role"] == "tool":
            yield {"choices": [{"index": 0, "delta": {"content": "Done"}, "finish_reason": "stop"}]}
            return
        yield chunk(0, '{"x": "1"}', id="a", type="function")
        yield chunk(1, '{"x": "2"}', id="b", type="function")
        await anyio.sleep(1)
        yield chunk(0, " ")
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}

    seen: list[str] = []

    @tool(repeatable=True)
    async def look(x: str) -> str:
        seen.append(x)
        return x

    def count(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            context["calls"] = context.get("calls", 0) + 1
            return await handlers.call_tool(call, context, started)

        return replace(handlers, call_tool=call_tool)

    source = type("Source", (), {"complete": staticmethod(complete)})()
    response = await AsyncSwarm(source, eager_tools="always", middleware=[count]).run(Agent(functions=[look]), "Go")
    assert response.context_variables == {"calls": 2}
    assert sorted(seen) == ["1", "1", "2"]
    assert [m["content"] for m in response.messages if m["role"] == "tool"] == ["1", "2"]


@VIRTUAL
async def test_guards_hold() -> None:
    """A blocked question starts no function, and a guard of tools judges each call once."""

    desk, judged = Desk(), list[str]()

    def allow(checked: Any) -> None:
        judged.append(checked.id)

    model = ScriptedModel(lambda request: "Done" if len(request.messages) > 2 else calls_of("search", "search"))
    swarm = AsyncSwarm(model.client(), eager_tools=True, middleware=[guard_tool(allow)])
    async for _ in swarm.run(desk.agent(1), "Go", stream=True):
        pass
    assert judged == ["search-0", "search-1"]

    async def block(_: Any) -> Block:
        await anyio.sleep(100)
        return Block("no")

    refused = Desk()
    swarm = AsyncSwarm(model.client(), eager_tools=True, middleware=[guard_input(block)])
    with pytest.raises(Blocked):
        async for _ in swarm.run(refused.agent(1), "Go", stream=True):
            pass
    assert refused.started == []


def test_other_values_of_the_option_are_refused() -> None:
    """The error of a wrong `eager_tools` names the values."""
    with pytest.raises(ConfigurationError, match="always"):
        AsyncSwarm(eager_tools="sometimes")  # type: ignore[arg-type]


# --- the same as without ----------------------------------------------------------------------------------------------


def _tools(log: list[str]) -> list[Any]:
    @tool(repeatable=True)
    async def quick(x: str) -> str:
        log.append(x)
        return f"quick {x}"

    @tool(repeatable=True)
    async def slow(x: str) -> str:
        await anyio.sleep(0.3)
        return f"slow {x}"

    @tool(repeatable=True)
    def plain(x: str) -> str:
        return f"plain {x}"

    @tool(repeatable=True)
    async def fails(x: str) -> str:
        raise ValueError(x)

    async def writes(x: str, context_variables: dict[str, Any]) -> str:
        context_variables[x] = len(context_variables)
        return "written"

    return [quick, slow, plain, fails, writes]


_made = st.builds(
    ScriptedCall,
    st.sampled_from(["quick", "slow", "plain", "fails", "writes", "missing"]),
    st.sampled_from(['{"x": "1"}', '{"x": "2"}', "{}", '{"x": ', ""]),
    st.sampled_from(["a", "b", "c", "d"]),
)
_turns = st.lists(st.lists(_made, min_size=1, max_size=5), min_size=1, max_size=3)


async def _played(eager: Any, face: str, api: Any, turns: Any, cut: int, broken: int | None) -> list[Any]:
    script: list[Any] = [ScriptedAnswer(calls=made, pause=0.1) for made in turns]
    script.append(ScriptedAnswer("The end", break_after=broken))
    if broken:
        script[0] = ScriptedAnswer(calls=turns[0], pause=0.1, break_after=broken)
    model = ScriptedModel(script, cut=cut, api=api)
    swarm = AsyncSwarm(model.client(), eager_tools=eager)
    per_call: dict[Any, list[str]] = {}
    order: list[str] = []
    async with swarm.stream(Agent(functions=_tools([])), "Go", deltas=face == "stream") as run:
        with suppress(RunError):
            async for event in run:
                name = type(event).__name__
                if isinstance(event, ToolCallStarted | ToolCallFinished):
                    per_call.setdefault((len(order), event.index), []).append(repr(event))
                else:
                    order.append(name)
    response = run.response
    check_history(response.messages, allow_open=True)
    assert model.open_streams == 0
    return [
        response.messages,
        response.context_variables,
        response.usage,
        response.unknown_calls,
        response.stop,
        run.partial,
        per_call,
        order,
    ]


@pytest.mark.slow
@BOTH
@settings(deadline=None, max_examples=60)
@given(
    turns=_turns,
    cut=st.integers(1, 12),
    api=st.sampled_from(["chat", "responses"]),
    broken=st.none() | st.integers(1, 12),
)
def test_a_run_is_the_same_as_without(backend: str, turns: Any, cut: int, api: Any, broken: int | None) -> None:
    """History, context, usage, unknown calls and events are equal, for whole and for broken completions."""

    def played(eager: Any, face: str) -> list[Any]:
        return run_virtual(backend, _played, eager, face, api, turns, cut, broken)

    assert played(True, "stream") == played(False, "stream")
    if broken is None:
        assert played("always", "whole")[:-1] == played(False, "whole")[:-1]
