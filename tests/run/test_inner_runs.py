"""Runs that a middleware or the function of a call starts inside its run: `RunInfo.start`, `InnerRun`, `current_call().run`."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    Budget,
    ConfigurationError,
    Output,
    Resource,
    RunFinished,
    TextDelta,
    current_call,
    progress,
    tool,
)
from aswarm.events import ToolProgress
from aswarm.extensions import (
    CallDecision,
    CompletionRequest,
    Handlers,
    InnerRun,
    RunInfo,
    Started,
    ToolCall,
    ToolOutcome,
)
from aswarm.testing import ScriptedModel, call


@dataclass
class Answer:
    number: int


HELPER = Agent(name="Helper", model="helper")


def desk(function: Callable[..., Any]) -> Agent:
    return Agent(name="Desk", model="desk", functions=[tool(name="ask")(function)])


def model_of(*answers: Any) -> ScriptedModel:
    """Return a model whose desk asks once, and whose helper gives these answers."""
    first: list[Any] = [call("ask", call_id="ask"), *answers, "Done."]
    return ScriptedModel(first)


async def test_the_function_of_a_call_reads_the_events_of_its_run() -> None:
    """The usage counts in the outer run, and the response is there at any moment."""
    responses: list[Any] = []

    async def ask() -> str:
        run = current_call().run.start(HELPER, "Help me", {"where": "inside"})
        async with aclosing(run):
            async for event in run:
                if isinstance(event, TextDelta):
                    progress(event.text)
                responses.append((type(event).__name__, run.response.text, run.has_started))
        assert run.response.context_variables == {"where": "inside"}
        return run.response.text

    async with AsyncSwarm(model_of("42").client()).stream(desk(ask), "Go") as stream:
        texts = [event.value async for event in stream if isinstance(event, ToolProgress)]
    assert "".join(texts) == "42"
    assert stream.response.messages[1]["content"] == "42"
    assert stream.response.usage.requests == 3
    assert responses[-1] == (RunFinished.__name__, "42", False)


async def test_a_run_that_is_left_early_is_closed() -> None:
    """Its events end, and the outer run continues."""

    async def ask() -> str:
        async with aclosing(current_call().run.start(HELPER, "Help me")) as run:
            async for _ in run:
                break
        assert [event async for event in run] == []
        return run.response.stop

    response = await AsyncSwarm(model_of("42").client()).run(desk(ask), "Go")
    assert (response.messages[1]["content"], response.text) == ("cancelled", "42")


@pytest.mark.parametrize(
    ("options", "model", "turns"),
    [({}, "outer", 1), ({"model_override": None, "max_turns": 0}, "helper", 0), ({"model_override": "own"}, "own", 1)],
)
async def test_options_are_those_of_the_outer_run(options: dict[str, Any], model: str, turns: int) -> None:
    """An argument overrides one of them."""
    asked: list[str] = []

    async def look(db: Resource[str]) -> str:
        return db

    async def ask() -> str:
        agent = HELPER.model_copy(update={"functions": [look]})
        response = await current_call().run.start(agent, "Help me", **options).finish()
        return response.stop

    def watch(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            if request.agent.name == "Helper":
                asked.append(request.body["model"])
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    model_ = model_of(*[call("look")] * turns)
    response = await AsyncSwarm(model_.client(), middleware=[watch]).run(
        desk(ask), "Go", model_override="outer", max_turns=1, resources={"db": "lamp"}
    )
    assert (asked, response.messages[1]["content"]) == ([model] * turns, "max_turns")


async def test_an_unknown_option_is_refused() -> None:
    async def ask() -> str:
        current_call().run.start(HELPER, "Help me", stream=True)  # type: ignore[call-arg]
        return ""

    response = await AsyncSwarm(model_of().client()).run(desk(ask), "Go")
    assert "start() got an unexpected keyword argument 'stream'" in response.messages[1]["content"]


@pytest.mark.parametrize(
    ("default", "outer", "stop"), [(Budget(turns=1), None, "budget"), (Budget(turns=1), Budget(turns=9), "answer")]
)
async def test_the_budget_of_the_outer_run_applies(default: Budget, outer: Budget | None, stop: str) -> None:
    """With a budget of its own, the outer run does not pass on the default budget of the swarm."""

    async def ask() -> str:
        return (await current_call().run.start(HELPER, "Help me").finish()).stop

    response = await AsyncSwarm(model_of("42").client(), budget=default).run(desk(ask), "Go", budget=outer)
    assert response.messages[1]["content"] == stop


async def test_an_output_is_typed() -> None:
    async def ask() -> str:
        response = await current_call().run.start(HELPER, "Help me", output=Output(Answer, mode="prompt")).finish()
        return str(response.output.number + 1)

    response = await AsyncSwarm(model_of('{"number": 41}').client()).run(desk(ask), "Go")
    assert response.messages[1]["content"] == "42"


async def test_calls_with_an_unknown_outcome_are_those_of_the_outer_call() -> None:
    """Of each run that the function has started, once; not of a run of a middleware around the call."""
    release = threading.Event()

    @tool(timeout=0.01)
    def stuck() -> str:
        release.wait()
        return ""

    agent = HELPER.model_copy(update={"functions": [stuck]})

    async def ask() -> str:
        for _ in range(2):
            run = current_call().run.start(agent, "Help me")
            await run.finish()
            await run.aclose()
        return ""

    def around(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            if made.name == "ask":
                await handlers.run.start(agent, "Help me").finish()
            return await handlers.call_tool(made, context, started)

        return replace(handlers, call_tool=call_tool)

    rounds = [each for number in range(3) for each in ([call("stuck", call_id=f"stuck-{number}")], "Sorry.")]
    try:
        swarm = AsyncSwarm(model_of(*rounds).client(), middleware=[around])
        response = await swarm.run(desk(ask), "Go")
    finally:
        release.set()
    assert [each.id for each in response.unknown_calls] == ["stuck-1", "stuck-2"]


async def test_a_run_of_a_function_that_has_returned_is_a_run_of_its_own() -> None:
    """A task of the function may outlive its call: the run works, and the outer run does not count it."""
    kept: list[RunInfo] = []

    async def ask() -> str:
        kept.append(current_call().run)
        return ""

    response = await AsyncSwarm(ScriptedModel([call("ask"), "Done.", "42"]).client()).run(desk(ask), "Go")
    assert (await kept[0].start(HELPER, "Help me").finish()).text == "42"
    assert response.usage.requests == 2


async def test_a_cancelled_call_cancels_its_run() -> None:
    """The run ends with the scope in which the function reads it."""
    started = anyio.Event()

    @tool
    async def sleep() -> str:
        started.set()
        await anyio.sleep_forever()
        return ""

    async def ask() -> str:
        run = current_call().run.start(HELPER.model_copy(update={"functions": [sleep]}), "Help me")
        async with anyio.create_task_group() as group:
            group.start_soon(run.finish)
            await started.wait()
            group.cancel_scope.cancel()
        assert run.has_started
        return f"{run.response.stop} {[each.name for each in run.response.unknown_calls]}"

    response = await AsyncSwarm(model_of(call("sleep")).client()).run(desk(ask), "Go")
    assert response.messages[1]["content"] == "cancelled ['sleep']"
    assert [each.name for each in response.unknown_calls] == ["sleep"]


# --- the facts --------------------------------------------------------------------------------------------------------


async def test_the_run_of_a_call_is_known_in_its_function_only() -> None:
    """A middleware has `handlers.run`. In a run inside a tool, it does not get the run around it."""
    seen: list[str] = []

    def watch(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            with pytest.raises(ConfigurationError, match="works only in the function of the call"):
                _ = current_call().run
            return await handlers.call_tool(made, context, started)

        return replace(handlers, call_tool=call_tool)

    async def look() -> str:
        seen.append(current_call().run.agent.name)
        return ""

    async def ask() -> str:
        seen.append(current_call().run.agent.name)
        agent = HELPER.model_copy(update={"functions": [look]})
        return (await current_call().run.start(agent, "Help me").finish()).text

    swarm = AsyncSwarm(model_of(call("look"), "42").client(), middleware=[watch])
    assert (await swarm.run(desk(ask), "Go")).text == "Done."
    assert seen == ["Desk", "Helper"]


async def test_a_function_reads_the_decision_on_its_call() -> None:
    decisions: list[CallDecision | None] = []

    @tool(approve=True)
    async def ask(amount: int) -> str:
        decisions.append(current_call().decision)
        return ""

    agent = Agent(functions=[ask])
    swarm = AsyncSwarm(ScriptedModel([call("ask", call_id="ask", amount=1), "Done."]).client())
    response = await swarm.run(agent, "Go")
    history = [{"role": "user", "content": "Go"}, *response.messages]
    await swarm.run(agent, history, resume={"ask": Approve({"amount": 2})})
    assert decisions == [CallDecision({"amount": 2}, is_approval=True, is_changed=True, seen={"amount": 2})]


async def test_a_run_tells_its_messages_turn_and_resources() -> None:
    """The messages are those before the turn whose calls run now."""
    facts: list[Any] = []

    def noted(info: RunInfo) -> None:
        facts.append((info.turn, [message["role"] for message in info.messages], dict(info.resources)))

    async def ask() -> str:
        noted(current_call().run)
        return ""

    def watch(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            noted(handlers.run)
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    swarm = AsyncSwarm(model_of().client(), middleware=[watch], resources={"db": 1})
    await swarm.run(desk(ask), "Go", resources={"log": 2})
    resources = {"db": 1, "log": 2}
    assert facts == [
        (1, ["user"], resources),
        (1, ["user"], resources),
        (2, ["user", "assistant", "tool"], resources),
    ]


async def test_a_run_has_the_arguments_for_a_function_of_a_user() -> None:
    """Its context variables, by name or by position, and its resources."""
    arguments: list[Any] = []

    def by_name(context_variables: Mapping[str, Any], db: Resource[int]) -> None: ...

    def by_position(_: str, shop: Mapping[str, Any]) -> None: ...

    def none(_: str) -> None: ...

    async def ask() -> str:
        run = current_call().run
        arguments.extend([run.arguments_for(by_name), run.arguments_for(by_position, 1), run.arguments_for(none)])
        return ""

    swarm = AsyncSwarm(model_of().client(), resources={"db": 1})
    await swarm.run(desk(ask), "Go", {"open": True})
    assert arguments == [{"context_variables": {"open": True}, "db": 1}, {"shop": {"open": True}}, {}]


async def test_the_decisions_on_a_run_are_checked_without_a_run() -> None:
    """A tool whose call has waited for an inner run checks them before any call runs."""

    @tool(approve=True)
    async def pay() -> str:
        return ""

    agent = Agent(functions=[pay])
    response = await AsyncSwarm(ScriptedModel([call("pay", call_id="pay")]).client()).run(agent, "Go")
    history = [{"role": "user", "content": "Go"}, *response.messages]
    InnerRun.check(agent, history, resume={"pay": True})
    with pytest.raises(ConfigurationError, match="no open call has this id"):
        InnerRun.check(agent, history, resume={"buy": True})
