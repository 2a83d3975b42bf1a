"""However the calls of a turn run, what they leave is what running them one after another would have left."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Result
from aswarm.testing import ScriptedModel, call
from tests.support.run.one_turn import contents, run_turn

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_reader_sees_what_a_result_before_it_changed() -> None:
    """A `Mapping` reader never joins a call that may return a `Result`: it sees what running in order would show."""

    async def change() -> Result:
        await anyio.sleep(0)
        return Result(value="ok", context_variables={"x": 1})

    async def read(context_variables: Mapping[str, Any]) -> str:
        return f"x={context_variables.get('x')}"

    calls = [call("read"), call("change"), call("read"), call("read")]
    for concurrent in (True, False):
        response = await run_turn([change, read], calls, concurrent_tools=concurrent)
        assert contents(response) == ["x=None", "ok", "x=1", "x=1"]
        assert response.context_variables == {"x": 1}


async def test_a_writer_sees_and_is_seen_in_order() -> None:
    """Writers, readers and results in one turn: each sees everything before it and nothing after it."""

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
    """Of several results of one group the last in call order wins, whichever finished last."""
    second_done = anyio.Event()

    async def slow() -> Result:
        await second_done.wait()
        return Result(value="slow", context_variables={"x": "slow", "only slow": 1})

    async def quick() -> Result:
        second_done.set()
        return Result(value="quick", context_variables={"x": "quick"})

    response = await run_turn([slow, quick], [call("slow"), call("quick")])
    assert response.context_variables == {"x": "quick", "only slow": 1}


async def test_a_mapping_is_a_read_only_view() -> None:
    """Writing to the view fails like any other error of a tool, and changes nothing."""

    async def write(context_variables: Mapping[str, Any]) -> str:
        context_variables["x"] = 1  # type: ignore[index]
        return "written"

    response = await run_turn([write], [call("write")], context_variables={"y": 2})
    assert contents(response)[0].startswith("Error: TypeError")
    assert response.context_variables == {"y": 2}


async def test_a_nested_run_on_the_view_changes_nothing_outside() -> None:
    """A tool may pass its read-only view to a run of its own, whose writes stay inside, also those to nested lists."""

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


async def test_any_order_of_calls_gives_what_running_in_order_gives(anyio_backend: str) -> None:
    """All orders of a tool, two handoffs, an unknown tool, bad arguments and a raising tool: history and agent hold."""

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
        said = dict(zip(order, contents(response), strict=True))
        assert {kind: said[kind] for kind in order if kind != winner} == {
            kind: kinds[kind][2] for kind in order if kind != winner
        }
        assert said[winner].startswith(kinds[winner][2]) and loser.upper() in said[winner].removeprefix(
            kinds[winner][2]
        )


async def test_equal_ids_in_one_message_are_separate_calls() -> None:
    """Calls are told apart by position: two calls of one id are both run and both answered."""

    async def double(number: int) -> int:
        return number * 2

    calls = [call("double", number=1, call_id="same"), call("double", number=2, call_id="same")]
    assert contents(await run_turn([double], calls)) == ["2", "4"]
