"""A group of exceptions: the model reads the errors inside of it, not their number."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, RunError, ToolError, agent_tool
from aswarm.code import code_tool
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call

LEAVES = "ValueError: no such order; KeyError: 'b'; ToolError: stop"


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def together() -> str:
    """Fail in a task group."""

    async def fail() -> None:
        raise ValueError("no such order")

    async with anyio.create_task_group() as group:
        group.start_soon(fail)
    return ""


async def nested() -> str:
    """Fail with a group in a group."""
    inner = ExceptionGroup("inner", [KeyError("b"), ToolError("stop")])
    raise ExceptionGroup("outer", [ValueError("no such order"), inner])


async def many() -> str:
    """Fail with many errors."""
    raise ExceptionGroup("many", [Silent(), *(ValueError("x" * 10_000) for _ in range(1000))])


async def answers(*names: str, **options: Any) -> list[str]:
    model = ScriptedModel([[call(name) for name in names], "Done."])
    agent = Agent(functions=[together, nested, many])
    response = await AsyncSwarm(model.client(), **options).run(agent, "Go")
    return [each["content"] for each in response.messages[1:-1]]


async def test_the_model_reads_the_errors_of_a_group() -> None:
    """Their types and texts, also of nested groups."""
    of_task_group, of_nested = await answers("together", "nested")
    assert of_task_group == (
        "Error: ExceptionGroup: unhandled errors in a TaskGroup (ValueError: no such order)"
        if "TaskGroup" in of_task_group
        else "Error: ExceptionGroup: Exceptions from Trio nursery (ValueError: no such order)"
    )
    assert of_nested == f"Error: ExceptionGroup: outer ({LEAVES})"


async def test_the_text_of_a_large_group_is_bounded() -> None:
    (text,) = await answers("many")
    assert text.startswith("Error: ExceptionGroup: many (Silent; ValueError: xxx")
    assert text.endswith("; and 991 more)")
    assert len(text) < 6000


async def test_code_and_an_agent_tool_show_the_errors_of_a_group() -> None:
    inner = Agent(name="Inner", functions=[nested])

    def answer(request: Request) -> Any:
        last = request.messages[-1]
        if last["role"] == "tool":
            return f"seen: {last['content']}"
        name = "nested" if last["content"] == "inside" else "inner"
        return ScriptedAnswer(calls=[call(name, **({} if name == "nested" else {"request": "inside"}))])

    response = await AsyncSwarm(ScriptedModel(answer).client()).run(Agent(functions=[agent_tool(inner)]), "Go")
    assert LEAVES in response.text
    model = ScriptedModel([call("run_code", code="await nested()"), "Done."])
    response = await AsyncSwarm(model.client()).run(Agent(functions=[code_tool(nested)]), "Go")
    assert LEAVES in response.messages[1]["content"]


async def test_a_run_error_names_the_errors_of_a_group() -> None:
    def instructions() -> str:
        raise ExceptionGroup("both", [ValueError("a"), OSError("b")])

    with pytest.raises(RunError, match=r"ExceptionGroup: both \(ValueError: a; OSError: b\)"):
        await AsyncSwarm(ScriptedModel(["Done."]).client()).run(Agent(instructions=instructions), "Go")
