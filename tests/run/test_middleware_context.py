"""The writes of a middleware into the context variables are the same as in serial execution, in each run and replay."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Result, RunError, agent_tool, tool
from aswarm.code import code_tool
from aswarm.middleware import CompletionRequest, Handlers, Middleware, Started, ToolCall, ToolOutcome
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call


def count(handlers: Handlers) -> Handlers:
    """Count the calls in the context variables, before and after each call, at two depths."""

    async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        context["before"] = context.get("before", 0) + 1
        context.setdefault("nested", {}).setdefault(call.name, []).append("in")
        try:
            return await handlers.call_tool(call, context, started)
        finally:
            context["after"] = context.get("after", 0) + 1
            context["nested"][call.name].append("out")

    return replace(handlers, call_tool=call_tool)


def forget(handlers: Handlers) -> Handlers:
    """Remove a key before each call, and add it after the call, after a step of the event loop."""

    async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        context.pop("gone", None)
        outcome = await handlers.call_tool(call, context, started)
        await anyio.lowlevel.checkpoint()
        context["seen"] = sorted({*context.get("seen", []), call.name})
        return outcome

    return replace(handlers, call_tool=call_tool)


def around_completions(handlers: Handlers) -> Handlers:
    """Count the completions before and after them, inside of a value of the context variables."""

    async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        counts = handlers.run.context_variables["counts"]
        counts["asked"] += 1
        async with aclosing(handlers.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk
        counts["answered"] += 1

    return replace(handlers, complete=complete)


LISTS: tuple[list[Middleware], ...] = ([count], [forget, count], [count, count, forget])


@tool(repeatable=True)
async def search(n: int) -> str:
    """Search, harmless."""
    await anyio.lowlevel.checkpoint()
    return f"found {n}"


async def look(n: int) -> str:
    """Look."""
    await anyio.lowlevel.checkpoint()
    return f"seen {n}"


async def note(n: int, context_variables: dict[str, Any]) -> str:
    """Write."""
    context_variables["noted"] = [*context_variables.get("noted", []), n]
    return "noted"


async def put(n: int) -> Result:
    """Return a change."""
    return Result(value="put", context_variables={"put": n})


async def fail(n: int) -> str:
    """Fail."""
    raise ValueError(n)


FUNCTIONS = [search, look, note, put, fail]
TURNS = [
    ["search", "search", "search"],
    ["search", "search", "look", "note"],
    ["look", "look", "search"],
    ["search", "fail", "search", "put", "search", "search"],
    ["note", "search", "search"],
]


def answers_of(turns: list[list[str]]) -> list[Any]:
    return [
        *(
            ScriptedAnswer(calls=[call(name, call_id=f"{turn}.{n}", n=n) for n, name in enumerate(names)])
            for turn, names in enumerate(turns)
        ),
        "Done.",
    ]


def expected(turns: list[list[str]], middleware: list[Middleware]) -> dict[str, Any]:
    """Return the context after serial execution of these turns."""
    context: dict[str, Any] = {"kept": 1}
    counts, names = middleware.count(count), [name for names in turns for name in names]
    if counts:
        context |= {"before": counts * len(names), "after": counts * len(names)}
        context["nested"] = {name: sorted(["in", "out"] * counts * names.count(name)) for name in names}
    if forget in middleware:
        context["seen"] = sorted({*names})
    else:
        context["gone"] = 1
    if noted := [n for turn in turns for n, name in enumerate(turn) if name == "note"]:
        context["noted"] = noted
    if put_last := [n for turn in turns for n, name in enumerate(turn) if name == "put"]:
        context["put"] = put_last[-1]
    return context


def unordered(context: Mapping[str, Any]) -> dict[str, Any]:
    nested = {name: sorted(items) for name, items in context.get("nested", {}).items()}
    return {**context, **({"nested": nested} if nested else {})}


@pytest.mark.parametrize("eager", [False, True, "always"])
@pytest.mark.parametrize("middleware", LISTS)
@pytest.mark.parametrize("streams", [False, True])
async def test_writes_of_a_middleware_are_the_same_as_in_serial_execution(
    eager: Any, middleware: list[Middleware], streams: bool
) -> None:
    """The writes are the same with eager tools and in groups, around functions that write, fail, or return changes."""
    for turns in [*([turn] for turn in TURNS), TURNS]:
        swarm = AsyncSwarm(ScriptedModel(answers_of(turns)).client(), middleware=middleware, eager_tools=eager)
        agent, context = Agent(functions=FUNCTIONS), {"kept": 1, "gone": 1}
        if streams:
            async with swarm.stream(agent, "Go", context) as run:
                async for _ in run:
                    pass
            response = run.response
        else:
            response = await swarm.run(agent, "Go", context)
        assert unordered(response.context_variables) == expected(turns, middleware)


async def test_a_completion_that_fails_leaves_no_writes_of_its_early_calls() -> None:
    def cut(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    await anyio.wait_all_tasks_blocked()
            raise ValueError("cut")

        return replace(handlers, complete=complete)

    model = ScriptedModel([ScriptedAnswer(calls=[call("search", n=n) for n in range(3)])])
    swarm = AsyncSwarm(model.client(), middleware=[count, cut], eager_tools=True)
    run = swarm.stream(Agent(functions=[search]), "Go", {"kept": 1})

    async def read() -> None:
        async with run:
            async for _ in run:
                pass

    with pytest.raises(RunError, match="cut"):
        await read()
    assert run.response.context_variables == {"kept": 1}


# --- replays ---


class Died(BaseException):
    """The end of the process."""


def told(context_variables: dict[str, Any]) -> str:
    return f"You have counted {context_variables.get('before')} calls, {context_variables.get('counts')} completions."


async def replayed(
    path: Path, agent: Agent, answers: list[Any], middleware: list[Middleware], at: int = 1, **options: Any
) -> dict[str, Any]:
    """Run an item of a batch whose process dies at the request with this number, run it again, and return the context."""
    context = options.pop("context", {})
    for dies in (True, False):

        def answer(request: Request, dies: bool = dies) -> Any:
            number = sum(message["role"] == "assistant" for message in request.messages)
            if dies and number == at:
                raise Died
            return answers[number]

        swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=middleware, **options)
        with suppress(Died):
            async with swarm.batch(agent, ["Go"], context_variables=context, journal=path) as outcomes:
                (outcome,) = [outcome async for outcome in outcomes]
    assert not dies and outcome.response is not None and outcome.response.stop == "answer"
    left: dict[str, Any] = outcome.response.context_variables
    return left


@pytest.mark.parametrize("eager", [False, "always"])
@pytest.mark.parametrize("middleware", [*LISTS, [count, around_completions], [around_completions]])
async def test_a_replay_repeats_the_writes_of_a_middleware(
    tmp_path: Path, eager: Any, middleware: list[Middleware]
) -> None:
    """Instructions that read the writes are the same in the replay, whenever the process dies."""
    agent, answers = Agent(functions=FUNCTIONS, instructions=told), answers_of(TURNS)
    for at in range(1, len(answers)):
        context = {"kept": 1, "gone": 1, "counts": {"asked": 0, "answered": 0}}
        file = tmp_path / f"{at}.sqlite"
        left = await replayed(file, agent, answers, middleware, at, context=context, eager_tools=eager)
        number = len(answers) * (around_completions in middleware)
        counts = {"counts": {"asked": number, "answered": number}}
        assert unordered(left) == {**expected(TURNS, middleware), **counts}


@pytest.mark.parametrize("at", [0, 1])
async def test_code_that_runs_again_counts_each_call_once(tmp_path: Path, at: int) -> None:
    """A process that dies inside of the code, or after it, counts the calls of the code once."""
    deaths = [Died()] * (at == 0)

    async def second(n: int) -> str:
        if deaths:
            raise deaths.pop()
        return f"second {n}"

    code = call("run_code", code="a = await look(n=1)\nb = await second(n=2)\na + b")
    agent = Agent(functions=[code_tool(look, tool(repeatable=True)(second))], instructions=told)
    context = await replayed(tmp_path / "j.sqlite", agent, [code, "Done."], [count], at or 9)
    assert context["nested"]["look"] == ["in", "out"]
    assert (context["before"], context["after"]) == (3, 3)


@pytest.mark.parametrize("middleware", [[], [count]], ids=["none", "count"])
async def test_a_replay_has_the_changes_that_a_call_makes_in_the_result_of_another(
    tmp_path: Path, middleware: list[Middleware]
) -> None:
    """The run merges a list of a `Result` as it is, so that the next function may change it in place."""

    def start() -> Result:
        return Result(value="started", context_variables={"cart": ["ink"]})

    def add(context_variables: dict[str, Any]) -> str:
        context_variables["cart"].append("pen")
        return "added"

    agent = Agent(functions=[start, add], instructions=lambda context_variables: f"{context_variables.get('cart')}")
    answers = [[call("start"), call("add"), call("add", call_id="x")], "Done."]
    context = await replayed(tmp_path / "j.sqlite", agent, answers, middleware)
    assert context["cart"] == ["ink", "pen", "pen"]


@pytest.mark.parametrize(("context", "counted"), [("share", 2), ("copy", 1)])
async def test_an_agent_tool_with_a_shared_context_keeps_the_writes_inside(context: Any, counted: int) -> None:
    agent = Agent(functions=[agent_tool(Agent(name="Inner", functions=[look]), context=context)])
    model = ScriptedModel([call("inner", request="x"), call("look", n=1), "Inner.", "Done."])
    response = await AsyncSwarm(model.client(), middleware=[count]).run(agent, "Go")
    assert response.context_variables["before"] == counted


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_middleware_may_drop_the_contextvars() -> None:
    """It calls the tool in a task with an empty context."""

    def drop(handlers: Handlers) -> Handlers:
        def call_tool(*args: Any) -> Any:
            return asyncio.create_task(handlers.call_tool(*args), context=contextvars.Context())  # type: ignore[arg-type]

        return replace(handlers, call_tool=call_tool)

    async def look() -> str:
        return "seen"

    swarm = AsyncSwarm(ScriptedModel([call("look"), "Done"]).client(), middleware=[drop])
    assert (await swarm.run(Agent(functions=[look]), "Go")).messages[1]["content"] == "seen"
