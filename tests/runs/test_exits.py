"""SystemExit of a user's code in a kept run, as `sys.exit` and argparse raise it: never the end of the process."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, agent_tool, tool
from aswarm.code import code_tool
from aswarm.guards import guard_answer, guard_input, guard_tool
from aswarm.middleware import CompletionRequest, Handlers, Middleware
from aswarm.runs import Entry, LocalRuns, NewRun
from aswarm.testing import ScriptedAnswer, ScriptedModel, call


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="aswarm")


def plain() -> str:
    parser = argparse.ArgumentParser()
    parser.print_usage = parser.exit = lambda *_: None  # type: ignore[assignment,method-assign]
    parser.error = lambda text: sys.exit(2)  # type: ignore[method-assign]
    parser.parse_args(["--unknown"])
    return "parsed"


async def slow() -> str:
    await anyio.lowlevel.checkpoint()
    sys.exit(2)


@tool(concurrent=True)
def in_own_thread() -> str:
    sys.exit(2)


@tool(timeout=60)
def with_timeout() -> str:
    sys.exit(2)


@tool(thread=False)
def on_the_loop() -> str:
    sys.exit(2)


@tool(approve=lambda _, __: sys.exit(2))
async def asking() -> str:
    return "never"


@tool(repeatable=True)
async def eager() -> str:
    sys.exit(2)


async def streaming() -> AsyncGenerator[str, None]:
    yield "1"
    sys.exit(2)


TOOLS: dict[str, Any] = {
    each.__name__: each for each in (plain, slow, in_own_thread, with_timeout, on_the_loop, asking, eager, streaming)
}


OTHER = Agent(name="Other")


async def last_of(model: ScriptedModel, *functions: Any, agent: dict[str, Any] | None = None, **options: Any) -> Entry:
    """Return the last entry of a run, and prove that the runs of other users go on."""
    swarm, agents = (
        AsyncSwarm(model.client(), **options),
        [Agent(name="A", functions=functions, **(agent or {})), OTHER],
    )
    async with LocalRuns(swarm, agents=agents) as runs:
        last = await (await runs.start(NewRun("ann", "c", "Hi!"))).last_entry()
        other = await runs.start(NewRun("bob", "c", "Hi!", agent="Other"))
        assert (await other.last_entry()).is_last
        return last


async def check_goes_on(model: ScriptedModel, *functions: Any, **options: Any) -> None:
    last = await last_of(model, *functions, **options)
    assert (last.type, last.response["text"]) == ("RunFinished", "Done.")


async def check_fails(model: ScriptedModel, *functions: Any, **options: Any) -> Entry:
    last = await last_of(model, *functions, **options)
    assert last.type == "RunFailed"
    assert "SystemExit(2)" in last.fields["error"]["message"]
    return last


async def also() -> str:
    return "fine"


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("eager_tools", [False, "always"])
async def test_an_exit_of_a_function_is_a_failed_call(name: str, eager_tools: Any) -> None:
    """The model reads it, and the run goes on."""
    model = ScriptedModel([ScriptedAnswer(calls=[call(name), call("also")]), "Done.", "Hello."])
    await check_goes_on(model, TOOLS[name], also, eager_tools=eager_tools)
    sent = [each["content"] for each in model.requests[1].messages if each["role"] == "tool"]
    assert sent == ["Error: SystemExit: 2", "fine"]


async def in_task_group(*_: Any) -> Any:
    async with anyio.create_task_group():
        sys.exit(2)


async def test_an_exit_in_a_task_group_is_a_failed_call() -> None:
    """The group wraps the exit."""

    async def group() -> str:
        result: str = await in_task_group()
        return result

    model = ScriptedModel([[call("group"), call("slow")], "Done.", "Hello."])
    await check_goes_on(model, group, slow)
    assert "SystemExit: 2" in model.requests[1].messages[-2]["content"]


@pytest.mark.parametrize("is_middleware", [False, True], ids=["function", "middleware"])
async def test_a_group_with_another_exception_is_raised(is_middleware: bool) -> None:
    """Only a SystemExit is a failure."""

    async def slow() -> str:
        raise BaseExceptionGroup("two", [SystemExit(2), GeneratorExit()])

    def wrap(handlers: Handlers) -> Handlers:
        return replace(handlers, call_tool=lambda *_: slow()) if is_middleware else handlers

    with pytest.raises(BaseExceptionGroup) as caught:
        await last_of(ScriptedModel([call("slow")]), slow, middleware=[wrap])
    assert caught.group_contains(GeneratorExit)


async def test_an_exit_inside_an_agent_tool_is_a_failed_call_of_the_inner_run() -> None:
    """Neither run ends."""
    model = ScriptedModel([call("helper", request="x"), call("slow"), "I could not.", "Done.", "Hello."])
    await check_goes_on(model, agent_tool(Agent(name="Helper", functions=[slow]), name="helper"))
    assert model.requests[2].messages[-1]["content"] == "Error: SystemExit: 2"


@pytest.mark.processes
@pytest.mark.slow
async def test_an_exit_of_a_function_in_code_is_a_failed_call() -> None:
    """The code gets an error."""
    code = "try:\n    await slow()\nexcept Exception as error:\n    print('caught', error)"
    model = ScriptedModel([call("code", code=code), "Done.", "Hello."])
    await check_goes_on(model, code_tool(slow, name="code"))
    assert "SystemExit: 2" in model.requests[1].messages[-1]["content"]


def leave(*_: Any) -> Any:
    sys.exit(2)


async def leave_later(*_: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    sys.exit(2)


def on_calls(handlers: Handlers) -> Handlers:
    return replace(handlers, call_tool=leave_later)


def in_group(handlers: Handlers) -> Handlers:
    return replace(handlers, call_tool=in_task_group)


def on_completions(handlers: Handlers) -> Handlers:
    async def complete(_: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        sys.exit(2)
        yield {}

    return replace(handlers, complete=complete)


def at_the_end(handlers: Handlers) -> Handlers:
    handlers.run.on_end(leave)
    return handlers


WRAPS: dict[str, Middleware] = {
    "made": leave,
    "calls": on_calls,
    "calls in a group": in_group,
    "completions": on_completions,
    "end": at_the_end,
    "input": guard_input(leave),
    "input later": guard_input(leave_later),
    "tool": guard_tool(leave_later),
    "answer": guard_answer(leave_later),
}


@pytest.mark.parametrize("name", WRAPS)
async def test_an_exit_of_a_middleware_ends_only_its_run(name: str) -> None:
    """The entry names the exit; the run of another user has its own end."""
    await check_fails(ScriptedModel([call("also"), "Done.", "Hello.", "Hello."]), also, middleware=[WRAPS[name]])


@pytest.mark.parametrize(
    ("field", "function"), [("instructions", leave), ("instructions", leave_later), ("history", leave)]
)
async def test_an_exit_of_a_function_of_an_agent_ends_only_its_run(field: str, function: Callable[..., Any]) -> None:
    """The error of the run has the exit."""
    await check_fails(ScriptedModel(["Hello."]), agent={field: function})


async def test_an_exit_of_tool_error_ends_only_its_run() -> None:
    """The message of the call has the failure."""

    async def fails() -> str:
        raise ValueError("no")

    last = await check_fails(ScriptedModel([call("fails"), "Hello."]), fails, tool_error=leave)
    assert last.response["messages"][-1]["content"] == "Error: the call failed."


async def test_an_exit_ends_a_program_without_a_server() -> None:
    """A run of a script is as its function wants: the exit leaves `run()`."""
    swarm = AsyncSwarm(ScriptedModel([call("slow")]).client())
    with pytest.raises(SystemExit) as caught:
        await swarm.run(Agent(functions=[slow]), "Hi!")
    assert caught.value.code == 2
