"""Concurrent where safe: the context, the active agent and the history are the same as after serial execution."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Result, ToolCallFinished, tool
from aswarm.testing import ScriptedModel, call
from aswarm.tools import ToolFailure
from tests.support.run.one_turn import contents, run_turn


class Together:
    """Counts the calls that are inside at once."""

    def __init__(self) -> None:
        self._inside = self.most = 0

    async def meet(self) -> None:
        self._inside += 1
        self.most = max(self.most, self._inside)
        for _ in range(3):
            await anyio.sleep(0)
        self._inside -= 1


async def test_messages_are_in_call_order() -> None:
    """Live events come in the order of the ends of the calls, and the tool messages in call order."""
    done = [anyio.Event() for _ in range(5)]
    done[4].set()

    async def wait(number: int) -> int:
        await done[number + 1].wait()
        done[number].set()
        return number

    swarm = AsyncSwarm(client=ScriptedModel([[call("wait", number=number) for number in range(4)], "Done"]).client())
    with anyio.fail_after(60):
        async with swarm.stream(Agent(functions=[wait]), "Go") as run:
            finished = [event.index async for event in run if isinstance(event, ToolCallFinished)]
    assert finished == [3, 2, 1, 0]
    assert contents(run.response) == ["0", "1", "2", "3"]


def probe(together: Together, hint: Any = None, returns: Any = str) -> Callable[..., Awaitable[str]]:
    """Return an async function with these hints for the context and the result. None: it does not take the context."""

    async def probe(context_variables: Any = None) -> str:
        await together.meet()
        return "ok"

    async def without_context() -> str:
        return await probe()

    probe.__annotations__ = {"context_variables": hint, "return": returns}
    return probe if hint is not None else tool(name="probe")(without_context)


@pytest.mark.parametrize(
    ("make", "overlaps"),
    [
        (probe, True),
        (lambda together: probe(together, Mapping[str, Any]), True),
        (lambda together: probe(together, Annotated[Mapping[str, Any], "seen"]), True),
        (lambda together: functools.partial(probe(together, Mapping[str, Any])), True),
        (lambda together: probe(together, dict[str, Any]), False),
        (lambda together: probe(together, Any), False),
        (
            lambda together: probe(together, Mapping[str, Any], Any),
            False,
        ),  # a reader after a call that may return a Result
        (lambda together: tool(concurrent=True)(probe(together, dict[str, Any])), True),
        (lambda together: tool(concurrent=False)(probe(together)), False),
    ],
)
async def test_calls_overlap_exactly_if_that_is_safe(make: Callable[[Together], Any], overlaps: bool) -> None:
    """Calls of one turn run together if their functions allow it, and never with `concurrent_tools=False`."""
    for concurrent in (True, False):
        together = Together()
        response = await run_turn([make(together)], [call("probe")] * 3, concurrent_tools=concurrent)
        assert contents(response) == ["ok"] * 3
        assert together.most == (3 if overlaps and concurrent else 1)


async def test_tool_error_rewrites_the_text() -> None:
    """`tool_error` gets the failure of a call and returns the text for the model."""
    failures: list[ToolFailure] = []

    def hide(failure: ToolFailure) -> str:
        failures.append(failure)
        return "Error: something went wrong"

    async def fail(secret: str) -> str:
        raise ValueError(secret)

    response = await run_turn([fail], [call("fail", secret="s3cret", call_id="c1")], tool_error=hide)
    assert contents(response) == ["Error: something went wrong"]
    (failure,) = failures
    assert isinstance(failure.error, ValueError)
    assert (failure.text, failure.id, failure.name) == ("Error: ValueError: s3cret", "c1", "fail")
    assert (failure.arguments, failure.agent.name) == ('{"secret": "s3cret"}', "A")


# --- the order of the calls ---


async def test_a_writer_sees_and_is_seen_in_order() -> None:
    """A writer, reader or result of a turn sees every write before it and no write after it."""

    async def write(context_variables: dict[str, Any], number: int) -> str:
        await anyio.sleep(0)
        context_variables["log"] = [*context_variables.get("log", []), number]
        return str(context_variables["log"])

    def plain(context_variables: dict[str, Any], number: int) -> Result:
        log = [*context_variables.get("log", []), number]
        return Result(value=str(log), context_variables={"log": log})

    async def read(context_variables: Mapping[str, Any]) -> str:
        return str(context_variables.get("log", []))

    calls = [call("read"), call("write", number=1), call("plain", number=2), call("read"), call("write", number=3)]
    response = await run_turn([write, plain, read], calls)
    assert contents(response) == ["[]", "[1]", "[1, 2]", "[1, 2]", "[1, 2, 3]"]
    assert response.context_variables == {"log": [1, 2, 3]}


async def test_results_are_merged_in_call_order() -> None:
    """Of several results of one group the last in call order wins, whichever finishes last."""
    second_done = anyio.Event()

    async def slow() -> Result:
        await second_done.wait()
        return Result(value="slow", context_variables={"x": "slow", "only slow": 1})

    async def quick() -> Result:
        second_done.set()
        return Result(value="quick", context_variables={"x": "quick"})

    response = await run_turn([slow, quick], [call("slow"), call("quick")])
    assert response.context_variables == {"x": "quick", "only slow": 1}


async def test_the_next_agent_sees_the_changes_of_the_turn_that_hands_off() -> None:
    """The changes of all calls of the turn are in the context before the next agent reads it."""

    async def hand_over() -> Result:
        return Result(
            agent=Agent(name="Next", instructions=lambda context: str(dict(context))), context_variables={"a": 1}
        )

    async def change() -> Result:
        return Result(context_variables={"b": 2})

    model = ScriptedModel([[call("change"), call("hand_over")], "Done"])
    response = await AsyncSwarm(model.client()).run(Agent(functions=[change, hand_over]), "Go")
    assert model.requests[1].messages[0]["content"] == "{'b': 2, 'a': 1}"
    assert response.context_variables == {"a": 1, "b": 2}


async def test_a_mapping_is_a_read_only_view() -> None:
    """Writing to the view fails like any other error of a tool, and changes nothing."""

    async def write(context_variables: Mapping[str, Any]) -> str:
        context_variables["x"] = 1  # type: ignore[index]
        return "written"

    response = await run_turn([write], [call("write")], context_variables={"y": 2})
    assert contents(response)[0].startswith("Error: TypeError")
    assert response.context_variables == {"y": 2}


async def test_a_nested_run_on_the_view_changes_nothing_outside() -> None:
    """A function may pass its read-only view to an inner run, whose writes stay inside, also to nested lists."""

    def write(context_variables: dict[str, Any]) -> str:
        context_variables["items"].append("inner")
        return "ok"

    async def nest(context_variables: Mapping[str, Any]) -> str:
        inner = AsyncSwarm(client=ScriptedModel([call("write"), "inner done"]).client())
        response = await inner.run(Agent(functions=[write]), "Go", context_variables=context_variables)
        return str(response.context_variables["items"])

    response = await run_turn([nest], [call("nest")], context_variables={"items": ["outer"]})
    assert contents(response) == ["['outer', 'inner']"]
    assert response.context_variables == {"items": ["outer"]}


async def test_any_order_of_calls_gives_the_same_answers(anyio_backend: str) -> None:
    """In all orders of two handoffs, an unknown tool, bad arguments and an exception, texts and agent are the same."""

    async def look() -> str:
        return "seen"

    async def fail() -> str:
        raise ValueError("no luck")

    functions = [look, fail, Agent(name="B"), Agent(name="C")]
    kinds = {
        "look": ("look", "{}", "seen"),
        "b": ("transfer_to_b", "{}", '{"assistant": "B"}'),
        "c": ("transfer_to_c", "{}", '{"assistant": "C"}'),
        "unknown": ("nobody", "{}", "Error: Tool nobody not found. Tools: look, fail, transfer_to_b, transfer_to_c."),
        "arguments": ("look", "[1]", "Error: the arguments must be a JSON object, not list; you sent '[1]'"),
        "raises": ("fail", "{}", "Error: ValueError: no luck"),
    }
    for order in itertools.islice(itertools.permutations(kinds), 0, None, 1 if anyio_backend == "asyncio" else 7):
        calls = [call(kinds[kind][0], kinds[kind][1], call_id=str(number)) for number, kind in enumerate(order)]
        response = await run_turn(functions, calls)
        winner, loser = ("b", "c") if order.index("b") > order.index("c") else ("c", "b")
        assert response.agent is not None and response.agent.name == winner.upper(), order
        replaced = f" (replaces the handoff to {loser.upper()})"
        assert contents(response) == [kinds[kind][2] + replaced * (kind == winner) for kind in order]
