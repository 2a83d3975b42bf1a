"""`ToolError` and its kinds: the model gets the text of a tool unchanged, and hooks and events get the class."""

from __future__ import annotations

import logging
import time
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response, RunError, ToolCallFinished, ToolError, tool
from aswarm.errors import ToolArgumentsError, ToolNotFound, ToolTimeout
from aswarm.testing import ScriptedModel, check_history
from aswarm.testing import call as made_call
from aswarm.tools import ToolFailure
from tests.support.run.ways_to_run import FACES, consume


class NoSuchOrder(ToolError):
    """A kind of a user's own."""

    def __init__(self, order: int) -> None:
        super().__init__(f"There is no order {order}. Ask for another number.")
        self.order = order


class Mute(ToolError):
    """A kind whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(error: Exception, kind: str) -> Any:
    """A tool with the name "fail"."""
    if kind == "async":

        async def fail() -> str:
            await anyio.lowlevel.checkpoint()
            raise error

        return fail

    def fail_plain() -> str:
        raise error

    fail_plain.__name__ = "fail"
    return tool(thread=kind == "plain")(fail_plain)


async def watched(
    function: Any, name: str = "fail", arguments: str = "{}", **options: Any
) -> tuple[str, ToolCallFinished]:
    """Return the text of one call for the model, and the event of its end."""
    model = ScriptedModel([made_call(name, arguments), "Done."])
    async with AsyncSwarm(model.client(), **options).stream(Agent(functions=[function]), "Hi") as run:
        (event,) = [event async for event in run if isinstance(event, ToolCallFinished)]
    check_history(run.response.messages)
    assert run.response.text == "Done."
    told = model.requests[1].messages[-1]["content"]
    assert told == event.content
    return told, event


@pytest.mark.parametrize("kind", ["plain", "async", "on the loop"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("No such order."), "No such order."),
        (NoSuchOrder(7), "There is no order 7. Ask for another number."),
        (ToolError("Zoë\n\n  in two lines "), "Zoë\n\n  in two lines "),
        (ToolError(""), ""),
        (ToolError(), ""),
        (ToolError("half \ud83d"), "half \\ud83d"),
        (ToolError("a", 2), "('a', 2)"),
        (Mute("x"), "Error: Mute"),
    ],
    ids=["a text", "a kind", "lines", "empty", "nothing", "a lone surrogate", "two", "no text"],
)
async def test_a_tool_error_is_told_as_it_is(
    error: ToolError, text: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text is the answer to the call; the log has one record at INFO, without a traceback; events have the error."""
    with caplog.at_level(logging.DEBUG, logger="aswarm"):
        told, event = await watched(raising(error, kind))
    assert told == text
    assert event.error is error
    assert not event.still_running
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert not record.exc_info
    assert text in record.getMessage()


def needs(city: str) -> str:
    """Needs a city."""
    return city


@tool(timeout=0.02)
async def sleepy() -> str:
    """Sleeps for long."""
    await anyio.sleep(30)
    return "never"


@tool(timeout=0.02)
def busy() -> str:
    """Blocks for long."""
    time.sleep(0.2)
    return "never"


@pytest.mark.parametrize(
    ("function", "name", "arguments", "kind", "still_running", "text"),
    [
        (needs, "gone", "{}", ToolNotFound, False, "Error: Tool gone not found. Tools: needs."),
        (needs, "needs", "{}", ToolArgumentsError, False, "Error: city"),
        (needs, "needs", "no JSON", ToolArgumentsError, False, "Error: "),
        (needs, "needs", "[1]", ToolArgumentsError, False, "Error: "),
        (sleepy, "sleepy", "{}", ToolTimeout, False, "Error: sleepy timed out after 0.02 s."),
        (busy, "busy", "{}", ToolTimeout, True, "Error: busy timed out after 0.02 s. It may still be running."),
    ],
    ids=["not found", "missing", "no JSON", "a list", "async timeout", "plain timeout"],
)
async def test_the_kinds_reach_hooks_and_events(
    function: Any, name: str, arguments: str, kind: type[ToolError], still_running: bool, text: str
) -> None:
    """`tool_error=` and `ToolCallFinished.error` get the public class; a timeout has whether the function still runs."""
    failures: list[ToolFailure] = []

    def rewrite(failure: ToolFailure) -> str:
        failures.append(failure)
        return f"told: {failure.text}"

    told, event = await watched(function, name, arguments, tool_error=rewrite)
    (failure,) = failures
    assert type(failure.error) is kind
    assert event.error is failure.error
    assert failure.text.startswith(text)
    assert told == f"told: {failure.text}"
    assert event.still_running is still_running
    if isinstance(failure.error, ToolTimeout):
        assert failure.error.still_running is still_running
    assert str(failure.error) == failure.text.removeprefix("Error: ")


async def test_a_kind_of_aswarm_may_be_raised_by_a_function() -> None:
    """`raise ToolTimeout("...", still_running=True)` in a function counts as a timeout of aswarm."""
    error = ToolTimeout("The bank did not answer.", still_running=True)
    told, event = await watched(raising(error, "async"))
    assert told == "Error: The bank did not answer."
    assert event.error is error
    assert event.still_running


async def test_a_hook_may_end_the_run_for_a_kind() -> None:
    """The class of the error decides: here a missing tool ends the run."""

    def strict(failure: ToolFailure) -> str:
        if isinstance(failure.error, ToolNotFound):
            raise failure.error
        return failure.text

    swarm = AsyncSwarm(ScriptedModel([made_call("gone")]).client(), tool_error=strict)
    for face in FACES:
        left: list[Response] = []
        swarm = AsyncSwarm(ScriptedModel([made_call("gone")]).client(), tool_error=strict)
        with pytest.raises(RunError, match=r"ToolNotFound: Tool gone not found\.") as caught:
            await consume(swarm, Agent(), face, left)
        assert isinstance(caught.value.__cause__, ToolNotFound)
        check_history(left[0].messages, allow_open=True)


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ([], "Error: Tool gone not found. This agent has no tools."),
        ([needs, Agent(name="Sales")], "Error: Tool gone not found. Tools: needs, transfer_to_sales."),
        (
            [Agent(name=f"{number:02}") for number in range(23)],
            f"Error: Tool gone not found. Tools: {', '.join(f'transfer_to_{n:02}' for n in range(20))} and 3 more.",
        ),
    ],
    ids=["none", "two", "many"],
)
async def test_an_unknown_tool_lists_those_that_there_are(functions: list[Any], text: str) -> None:
    """The text starts like Swarm's text; at most twenty names follow."""
    response = await AsyncSwarm(ScriptedModel([made_call("gone"), "Done"]).client()).run(
        Agent(functions=functions), "Go"
    )
    assert response.messages[1]["content"] == text
