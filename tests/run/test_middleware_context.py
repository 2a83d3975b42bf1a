"""What a middleware writes into the context variables, as after serial execution: in every kind of run, and in each replay."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Result, RunError, agent_tool, tool
from aswarm._record.journal import Journal
from aswarm._run.options import RunOptions
from aswarm.code import code_tool
from aswarm.middleware import CompletionRequest, Handlers, Middleware, Started, ToolCall, ToolOutcome
from aswarm.runs import LocalRuns, NewRun, Run
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call
from tests.support.record.journaled import BATCH, Died
from tests.support.runs.kept_runs import entries_of

pytestmark = pytest.mark.anyio


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
    """With eager tools, in groups, with functions that write, fail, or return changes."""
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


async def test_a_started_call_that_is_executed_again_is_counted_once() -> None:
    """The final message has other arguments than the stream: the writes of the early calls are dropped."""
    calls = [call("search", call_id=f"{n}", n=n) for n in range(3)]

    def change(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    await anyio.wait_all_tasks_blocked()

        return replace(handlers, complete=complete)

    model = ScriptedModel([ScriptedAnswer(calls=calls), "Done."])
    swarm = AsyncSwarm(model.client(), middleware=[count, change], eager_tools=True)
    async with swarm.stream(Agent(functions=[search]), "Go") as run:
        async for event in run:
            if type(event).__name__ == "CompletionFinished":
                for each in run._state.turn.calls[1:2]:
                    each.arguments = '{"n": 9}'
    assert (run.response.context_variables["before"], run.response.context_variables["after"]) == (3, 3)
    assert [each["content"] for each in run.response.messages[1:4]] == ["found 0", "found 9", "found 2"]


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


def dying(turns: list[list[str]], at: int) -> ScriptedModel:
    """Return a model whose request with this number ends the process."""
    answers = answers_of(turns)

    def answer(request: Request) -> Any:
        number = sum(message["role"] == "assistant" for message in request.messages)
        if number == at:
            raise Died
        return answers[number]

    return ScriptedModel(answer)


def told(context_variables: dict[str, Any]) -> str:
    return f"You have counted {context_variables.get('before')} calls, {context_variables.get('counts')} completions."


@pytest.mark.parametrize("eager", [False, "always"])
@pytest.mark.parametrize("middleware", [*LISTS, [count, around_completions], [around_completions]])
async def test_a_replay_repeats_the_writes_of_a_middleware(
    tmp_path: Path, eager: Any, middleware: list[Middleware]
) -> None:
    """The instructions read them, so a record without them could not be continued."""
    agent = Agent(functions=FUNCTIONS, instructions=told)
    for at in range(1, len(TURNS) + 1):
        responses: list[Any] = []
        for model in (dying(TURNS, at), dying(TURNS, -1)):
            swarm = AsyncSwarm(model.client(), middleware=middleware, eager_tools=eager)
            async with Journal(tmp_path / f"{at}.sqlite", BATCH) as journal:
                try:
                    context = {"kept": 1, "gone": 1, "counts": {"asked": 0, "answered": 0}}
                    options = RunOptions(agent, "Go", context)
                    responses.append(await journal.run("a", options, swarm._run_to_end))
                except Died:
                    continue
        (response,) = responses
        number = (len(TURNS) + 1) * (around_completions in middleware)
        counts = {"counts": {"asked": number, "answered": number}}
        assert unordered(response.context_variables) == {**expected(TURNS, middleware), **counts}


@pytest.mark.parametrize("at", [1, 2])
async def test_code_that_runs_again_counts_each_call_once(tmp_path: Path, at: int) -> None:
    """The process dies inside of the code, after one of its calls, or after the code."""
    deaths = [Died()]

    async def second(n: int) -> str:
        if at == 1 and deaths:
            raise deaths.pop()
        return f"second {n}"

    code = "a = await look(n=1)\nb = await second(n=2)\na + b"

    def answer(request: Request) -> Any:
        number = sum(message["role"] == "assistant" for message in request.messages)
        if number and at == 2 and deaths:
            raise deaths.pop()
        return "Done." if number else ScriptedAnswer(calls=[call("run_code", code=code)])

    agent = Agent(functions=[code_tool(look, tool(repeatable=True)(second))], instructions=told)
    contexts: list[Any] = []
    for _ in range(2):
        swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=[count])
        async with Journal(tmp_path / "j.sqlite", BATCH) as journal:
            try:
                response = await journal.run("a", RunOptions(agent, "Go", {}), swarm._run_to_end)
                contexts.append(response.context_variables)
            except Died:
                continue
    (context,) = contexts
    assert context["nested"]["look"] == ["in", "out"]
    assert context["before"] == 3
    assert context["after"] == 3


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
    contexts: list[Any] = []
    for dies in (True, False):

        def answer(request: Request, dies: bool = dies) -> Any:
            number = sum(message["role"] == "assistant" for message in request.messages)
            if number and dies:
                raise Died
            return "Done." if number else ScriptedAnswer(calls=[call("start"), call("add"), call("add", call_id="x")])

        swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=middleware)
        async with Journal(tmp_path / "j.sqlite", BATCH) as journal:
            try:
                response = await journal.run("a", RunOptions(agent, "Go", {}), swarm._run_to_end)
                contexts.append(response.context_variables["cart"])
            except Died:
                continue
    assert contexts == [["ink", "pen", "pen"]]


async def test_a_handoff_in_a_replay_is_counted_once(tmp_path: Path) -> None:
    clerk = Agent(name="Clerk", instructions=told)
    boss = Agent(name="Boss", functions=[look, clerk], instructions=told)
    contexts: list[Any] = []
    for dies in (True, False):

        def answer(request: Request, dies: bool = dies) -> Any:
            number = sum(message["role"] == "assistant" for message in request.messages)
            if number and dies:
                raise Died
            calls = [call("look", n=1), call("transfer_to_clerk"), call("look", call_id="x", n=2)]
            return "Done." if number else ScriptedAnswer(calls=calls)

        swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=[count])
        async with Journal(tmp_path / "j.sqlite", BATCH) as journal:
            try:
                response = await journal.run("a", RunOptions(boss, "Go", {}), swarm._run_to_end)
                contexts.append(response.context_variables)
            except Died:
                continue
    (context,) = contexts
    assert (context["before"], context["after"]) == (3, 3)


async def test_an_agent_tool_with_a_shared_context_keeps_the_writes_inside() -> None:
    inner = Agent(name="Inner", functions=[look])

    def answer(request: Request) -> Any:
        if request.messages[-1]["role"] == "tool":
            return "Done."
        is_inner = request.messages[-1]["content"] == "inside"
        return ScriptedAnswer(calls=[call("look", n=1)] if is_inner else [call("inner", request="inside")])

    for context, count_of in (("share", 2), ("copy", 1)):
        agent = Agent(functions=[agent_tool(inner, context=context)])  # type: ignore[arg-type]
        response = await AsyncSwarm(ScriptedModel(answer).client(), middleware=[count]).run(agent, "Go")
        assert response.context_variables["before"] == count_of


def _finished(file: sqlite3.Connection) -> int:
    """Return the number of the calls whose ends are in the file."""
    if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'aswarm_entry'").fetchone():
        return 0
    return sum(data.count(b"ToolCallFinished") for (data,) in file.execute("SELECT data FROM aswarm_entry"))


async def test_local_runs_continue_with_the_writes_of_a_middleware(tmp_path: Path) -> None:
    """The process stops between two requests; the next process continues the run with the same instructions."""
    stopped, may_go = anyio.Event(), anyio.Event()
    agent = Agent(name="Agent", functions=[search, look], instructions=told)

    def stopping(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            if any(message["role"] == "tool" for message in request.body["messages"]) and not may_go.is_set():
                stopped.set()
                await anyio.sleep_forever()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

        return replace(handlers, complete=complete)

    def runs_of(path: Path) -> LocalRuns:
        model = ScriptedModel(lambda request: answers_of([["search", "look", "look"]])[len(request.messages) > 2])
        swarm = AsyncSwarm(model.client(), middleware=[count, stopping], eager_tools=True)
        return LocalRuns(swarm, agents=agent, store=path, version="1")

    new = NewRun("ann", "c", [{"role": "user", "content": "Go"}], run_id="r", context_variables={"kept": 1})
    path, copy = tmp_path / "first.sqlite", tmp_path / "copy.sqlite"
    async with runs_of(path) as runs:
        await runs.start(new)
        await stopped.wait()
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target, anyio.fail_after(60):
            while _finished(target) < 3:
                await anyio.sleep(0.01)
                source.backup(target)  # what a dead process leaves
        may_go.set()
        async with runs_of(copy) as later:
            with anyio.fail_after(60):
                entries = await entries_of(Run(later, await later.get("r", user="ann")))
        await runs.cancel("r", user="ann")
    assert entries[-1].type == "RunFinished"
    context = entries[-1].response["context_variables"]
    assert (context["before"], context["after"], context["kept"]) == (3, 3, 1)
