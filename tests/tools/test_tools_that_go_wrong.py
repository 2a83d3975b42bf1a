"""A failure of a tool is the answer to its call, and never ends the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response, Result, RunError, tool
from aswarm.testing import ScriptedModel, call
from aswarm.tools import ToolFailure
from tests.support.run import one_turn
from tests.support.run.one_turn import contents

# trio's cancellation exception cannot be made by hand.
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


async def run_turn(functions: Sequence[Any], calls: Sequence[Any], **options: Any) -> Response:
    """One turn with these calls, which never keeps the run from its answer."""
    response = await one_turn.run_turn(functions, calls, **options)
    assert (response.text, response.stop) == ("Done", "answer")
    return response


class Odd(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(kind: str, error: BaseException) -> Any:
    def plain() -> str:
        raise error

    async def slow() -> str:
        await anyio.sleep(0)
        raise error

    return {"plain": plain, "on the loop": tool(thread=False)(plain), "async": slow}[kind]


@pytest.mark.parametrize("kind", ["plain", "on the loop", "async"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no luck"), "Error: ValueError: no luck"),
        (KeyError("key"), "Error: KeyError: 'key'"),
        (TimeoutError("its own"), "Error: TimeoutError: its own"),
        (ExceptionGroup("many", [ValueError("one")]), "Error: ExceptionGroup: many (ValueError: one)"),
        (asyncio.InvalidStateError("odd"), "Error: InvalidStateError: odd"),
        (Odd(), "Error: Odd"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_an_exception_is_told(kind: str, error: Exception, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A raised exception becomes `Error: Type: message`, and a log record with its traceback."""
    function = raising(kind, error)
    with caplog.at_level(logging.ERROR, logger="aswarm"):
        assert contents(await run_turn([function], [call(function.__name__)])) == [text]
    (record,) = caplog.records
    assert record.name == "aswarm" and record.exc_info and record.exc_info[1] is error


@pytest.mark.parametrize("kind", ["plain", "on the loop"])
async def test_stop_iteration_is_told_as_it_is(kind: str) -> None:
    """StopIteration from a plain function (a bare `next()`) has its own name and text, in a thread and on the loop."""
    function = raising(kind, StopIteration("none left"))
    assert contents(await run_turn([function], [call("plain")])) == ["Error: StopIteration: none left"]


@ON_ASYNCIO
@pytest.mark.parametrize("kind", ["plain", "on the loop", "async", "of its own task"])
async def test_a_tool_that_raises_cancelled_error_has_failed(kind: str) -> None:
    """A cancellation that nobody asked for, also of its own task, is a failure of that tool; its neighbour is not touched."""

    async def cancels() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)

    async def fine() -> str:
        for _ in range(5):
            await anyio.sleep(0)
        return "fine"

    function = cancels if kind == "of its own task" else raising(kind, asyncio.CancelledError("gone"))
    first, second = contents(await run_turn([function, fine], [call(function.__name__), call("fine")]))
    assert first.startswith("Error: CancelledError")
    assert second == "fine"


class Untextable:
    """Something of which no text can be made."""

    def __str__(self) -> str:
        raise ValueError("no text of me")


@dataclass
class Holder:
    """A dataclass around it."""

    value: Any


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "value",
    [Untextable(), Holder(Untextable()), _circle(), {"bytes": b"\xff"}, Result(value=Untextable())],
    ids=["object", "dataclass", "circular", "bytes", "Result"],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_results_that_cannot_be_turned_into_text(value: object, is_async: bool) -> None:
    """A result with no text that could be sent is an `Error: …` for the model, and the run goes on."""

    def plain() -> object:
        return value

    async def slow() -> object:
        return value

    (text,) = contents(await run_turn([slow if is_async else plain], [call("slow" if is_async else "plain")]))
    assert text.startswith("Error: ")


async def test_an_error_text_that_cannot_be_sent_is_made_sendable(caplog: pytest.LogCaptureFixture) -> None:
    """A lone surrogate in an exception's text (a broken file name, half an emoji) does not end the run."""
    caplog.set_level(logging.CRITICAL, logger="aswarm")  # pytest-xdist cannot send such a text
    function = raising("plain", ValueError("half \ud83d"))
    assert contents(await run_turn([function], [call("plain")])) == ["Error: ValueError: half \\ud83d"]


async def test_what_a_failed_result_wanted_is_not_done() -> None:
    """A `Result` whose value has no text is a failed call: neither its handoff nor its context changes happen."""

    def broken() -> Result:
        return Result(value=Untextable(), agent=Agent(name="B"), context_variables={"x": 1})

    response = await run_turn([broken], [call("broken")])
    assert response.agent is not None and response.agent.name == "A"
    assert response.context_variables == {}


@pytest.mark.parametrize(
    "arguments", ["{", "[]", "null", '"x"', '{"number": "many"}', "{}", '{"number": 1, "more": 2}']
)
async def test_bad_arguments_never_reach_the_function(arguments: str) -> None:
    """Arguments that are not JSON, not an object, wrong, missing or unexpected cause an error for the model, without links."""
    called: list[int] = []

    def count(number: int) -> str:
        called.append(number)
        return "ok"

    (text,) = contents(await run_turn([count], [call("count", arguments)]))
    assert text.startswith("Error: ") and "http" not in text
    assert called == []
    if not arguments.endswith(("}", "null")):  # a handoff has no parameters
        response = await run_turn([Agent(name="B")], [call("transfer_to_b", arguments)])
        assert response.agent is not None and response.agent.name == "A"


@pytest.mark.parametrize("error", [StopIteration("none left"), StopAsyncIteration("none left"), KeyError("key")])
async def test_instructions_that_raise_end_the_run(error: Exception) -> None:
    """Instructions that raise are a RunError with their exception as its cause, before anything is sent."""

    def instructions() -> str:
        raise error

    model = ScriptedModel([])
    with pytest.raises(RunError, match=type(error).__name__) as caught:
        await AsyncSwarm(client=model.client()).run(Agent(instructions=instructions), "Go")
    assert model.requests == []
    assert caught.value.response is not None and caught.value.response.messages == []


@pytest.mark.parametrize("is_async", [False, True])
def test_system_exit_goes_through(is_async: bool) -> None:
    """What is no `Exception` (SystemExit, KeyboardInterrupt) is not a tool's failure: it leaves the run as it is."""

    def plain() -> str:
        raise SystemExit(3)

    async def slow() -> str:
        raise SystemExit(3)

    async def main() -> None:
        swarm = AsyncSwarm(client=ScriptedModel([call("slow" if is_async else "plain"), "never"]).client())
        await swarm.run(Agent(functions=[plain, slow]), "Go")

    with pytest.raises(SystemExit) as caught:
        asyncio.run(main())
    assert caught.value.code == 3


async def test_a_call_whose_failure_ends_the_run_has_an_outcome() -> None:
    """A hook that raises ends the run: the call has failed, and the text that the hook may hide stays hidden."""

    def stop(_: ToolFailure) -> str:
        raise LookupError("no more")

    async def bad() -> None:
        raise ValueError("secret")

    model = ScriptedModel([call("bad")])
    with pytest.raises(RunError, match="no more") as caught:
        await AsyncSwarm(client=model.client(), tool_error=stop).run(Agent(functions=[bad]), "Hi")
    assert caught.value.response is not None
    assert caught.value.response.messages[1]["content"] == "Error: the call failed."


class Shown:
    def __str__(self) -> str:
        return "shown"


async def test_a_result_without_a_text_of_its_own_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The model gets its default repr; the log names the function and the class, once."""

    class Opaque:
        pass

    def opaque() -> Opaque:
        return Opaque()

    def in_result() -> Result:
        return Result(value=Opaque())

    class Named:
        def __str__(self) -> str:
            return "<Named object at 0x1>"

    def harmless() -> str:
        return "<b at 0x1>"

    def named() -> Named:
        return Named()

    def shown() -> Shown:
        return Shown()

    caplog.set_level(logging.WARNING, "aswarm")
    calls = [call("opaque"), call("opaque"), call("in_result"), call("harmless"), call("shown"), call("named")]
    response = await run_turn([opaque, in_result, harmless, shown, named], calls)
    assert all(f"{Opaque.__qualname__} object at 0x" in text for text in contents(response)[:3])
    assert contents(response)[3:] == ["<b at 0x1>", "shown", "<Named object at 0x1>"]
    first, second = [record.getMessage() for record in caplog.records]
    assert "tool opaque returned an object without a text form" in first
    assert f"give {Opaque.__qualname__} a __str__" in first
    assert "tool in_result returned" in second


async def test_half_characters_in_a_result_are_escaped() -> None:
    """In a key, in a value, and in the value of an Enum, whose text is its name."""
    half = Enum("half", {"key": {"\ud83d": 1}})

    def made() -> Any:
        return [{"\ud83d": half["key"]}]

    assert contents(await run_turn([made], [call("made")])) == [r'[{"\ud83d": "half.key"}]']
