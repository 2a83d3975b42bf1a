"""The value of a call inside code: exactly the result of the function, also when the code is replayed."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import pytest
from pydantic import BaseModel, Field

from aswarm import Agent, Approve, AsyncSwarm, Reply, Result, ToolCallFinished, external_tool, tool
from aswarm.code._stubs import result_text
from aswarm.guards import Block, Replace, Say, guard_tool
from aswarm.middleware import clip_results
from aswarm.testing import ScriptedModel, call
from tests.support.code.coded import (
    agent_of,
    recorded,
    result_in,
    result_of,
    resumed,
    run_code,
)

NO_HINT: Any = object()


class Color(enum.Enum):
    RED = "red"
    TWO = 2


class Mode(enum.StrEnum):
    FAST = "fast"


@dataclass
class Order:
    id: int
    note: str | None = None


class Row(TypedDict):
    key: str | None


class Pair(NamedTuple):
    left: int
    right: str


class Meeting(BaseModel):
    number: int = Field(alias="no")
    when: dt.date


VALUES: list[tuple[Any, Any, Any]] = [
    (str | None, None, None),
    (str | None, "None", "None"),
    (str | None, "null", "null"),
    (str | None, '{"a": 1}', '{"a": 1}'),
    (bool | str, False, False),
    (bool | str, "False", "False"),
    (int | str, 5, 5),
    (int | str, "5", "5"),
    (str | list[int], "[1]", "[1]"),
    (str | list[int], [1], [1]),
    (dict[str, int] | str, "{}", "{}"),
    (int, "12", 12),
    (list[int], "None", None),
    (list[int], "no data", "no data"),
    (NO_HINT, "[1", "[1"),
    (Literal["1", 1], "1", "1"),
    (Literal["1", 1], 1, 1),
    (Literal["a"] | None, None, None),
    (int | None, 0, 0),
    (Color, Color.RED, "red"),
    (Color, Color.TWO, 2),
    (Color | None, None, None),
    (Mode, Mode.FAST, "fast"),
    (tuple[int, str], (1, "x"), [1, "x"]),
    (frozenset[str], frozenset({"a"}), ["a"]),
    (Order, Order(1), {"id": 1, "note": None}),
    (Order | None, None, None),
    (list[Order], [Order(1, "None")], [{"id": 1, "note": "None"}]),
    (Row, {"key": None}, {"key": None}),
    (Pair, Pair(1, "b"), [1, "b"]),
    (Meeting, Meeting(no=1, when=dt.date(2026, 1, 2)), {"no": 1, "when": "2026-01-02"}),
    (bytes, b"abc", "abc"),
    (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), "2026-01-02T03:04:00Z"),
    (dt.timedelta, dt.timedelta(seconds=5), "PT5S"),
    (decimal.Decimal, decimal.Decimal("1.50"), "1.50"),
    (dict[int, str], {1: "a"}, {"1": "a"}),
    (float, math.inf, math.inf),
    (dict[str, float], {"a": -math.inf}, {"a": -math.inf}),
    (str, "5", "5"),
    (str, '{"a": 1}', '{"a": 1}'),
    (int, 10**30, 10**30),
    (None, None, None),
    (bool, True, True),
    (Any, None, None),
    (Any, "5", "5"),
    (Any, '{"a": 1}', {"a": 1}),
    (Result, Result(value="5"), "5"),
    (NO_HINT, None, None),
    (NO_HINT, False, False),
    (NO_HINT, 3.5, 3.5),
    (NO_HINT, "text", "text"),
    (NO_HINT, "[1]", [1]),
    (NO_HINT, iter([1]), None),
]


def function_of(hint: Any, value: Any) -> Callable[[], Any]:
    """Return a function with this return hint, which returns this value."""

    async def get() -> Any:
        return value

    if hint is NO_HINT:
        del get.__annotations__["return"]
    else:
        get.__annotations__["return"] = hint
    return get


@tool(approve=True)
async def gate() -> None:
    """Wait for an approval."""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("hint", "returned", "value"), VALUES)
async def test_a_value_has_its_declared_type_and_is_the_same_in_each_replay(
    hint: Any, returned: Any, value: Any, tmp_path: Path
) -> None:
    """A replay is from the history, or from the journal of a process that has died after the first or the second call."""
    functions = [function_of(hint, returned), gate]
    shown = "v = await get()\nkind = type(v).__name__\nawait gate()\n[repr(v), kind]"
    waiting = await run_code(shown, *functions, type_check=False)
    replayed = json.loads(result_in(await resumed(agent_of(*functions, type_check=False), waiting, True)))
    text, kind = json.loads(await result_of(shown.replace("await gate()\n", ""), *functions, type_check=False))
    assert replayed == [text, kind]
    if not hasattr(returned, "__next__"):  # an iterator is not read: it may have no end
        same = await result_of(f"from math import inf\nv = await get()\nv == {value!r}", *functions, type_check=False)
        assert (same, kind) == ("true", type(value).__name__)
    twice = "v = await get()\nawait get()\n[repr(v), type(v).__name__]"
    log, first = await recorded(tmp_path, twice, functions)
    assert json.loads(result_in(first)) == [text, kind]
    for place in log.places("ToolProgress", "ToolCallFinished"):
        _, again = await recorded(tmp_path, twice, functions, log.first(place + 1))
        assert result_in(again) == result_in(first)


async def price(number: int) -> int:
    """Get the price."""
    return number * 10


SUM = "a = await price(1)\nb = await price(2)\nc = await price(3)\na + b + c"


async def decided(code: str, functions: list[Any], decisions: list[Any], **options: Any) -> Any:
    """Run the code, and decide on its calls one after the other. Return the last response."""
    response, history = await run_code(code, *functions, swarm=options), list[Any]()
    for decision in decisions:
        assert response.stop == "waiting"
        history += response.messages
        response = await resumed(
            agent_of(*functions), response, Reply(decision), *history[: -len(response.messages)], **options
        )
    return response


async def test_changed_arguments_change_nothing_else_in_the_replay() -> None:
    """Each decision replays the results of the earlier calls, with their changed arguments."""
    decisions = [{f"outer.{place}": Approve({"number": place + 5})} for place in range(3)]
    assert result_in(await decided(SUM, [tool(approve=True)(price)], decisions)) == "180"


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (Replace("7"), "21"),
        (Replace("True"), "3"),
        (Say("8"), "24"),
        (Replace([{"type": "text", "text": "9"}]), "27"),
        (None, "60"),
    ],
)
async def test_the_code_gets_the_result_of_a_guard_in_each_replay(verdict: Any, result: str) -> None:
    """The code never gets the value that the guard has replaced."""

    def after(checked: Any) -> Any:
        return verdict if checked.name == "price" else None

    decisions = [{f"outer.{place}": True} for place in range(3)]
    options = {"middleware": [guard_tool(after=after)]}
    assert result_in(await decided(SUM, [tool(approve=True)(price)], decisions, **options)) == result


async def test_the_code_gets_the_changes_of_a_guard_to_arguments_in_each_replay() -> None:
    """The function gets the arguments of the guard in each replay."""

    def before(checked: Any) -> Any:
        if checked.name != "price" or checked.arguments["number"] > 9:
            return None
        return Replace({"number": checked.arguments["number"] + 10})

    decisions = [{f"outer.{place}": True} for place in range(3)]
    options = {"middleware": [guard_tool(before)]}
    assert result_in(await decided(SUM, [tool(approve=True)(price)], decisions, **options)) == "360"


async def test_a_withheld_result_is_an_error_in_the_code() -> None:
    """The text of the guard is no data, in each replay; outside of code it is the result."""
    code = "out = []\nfor n in (1, 2):\n    try:\n        out.append(await price(n) + 1)\n    except RuntimeError as e:\n        out.append(str(e))\n    await gate()\nout"
    guard = guard_tool(after=lambda made: Block("odd") if made.name == "price" and "1" in made.arguments else None)
    response = await decided(code, [price, gate], [{"outer.1": True}, {"outer.3": True}], middleware=[guard])
    assert json.loads(result_in(response)) == ["the result is withheld: odd", 21]
    swarm = AsyncSwarm(ScriptedModel([call("price", number=1), "Done."]).client(), middleware=[guard])
    async with swarm.stream(Agent(functions=[price]), "Go") as run:
        (end,) = [event async for event in run if isinstance(event, ToolCallFinished)]
    assert (end.content, end.error) == ("the result is withheld: odd", None)


async def rows(count: int) -> list[dict[str, Any]]:
    """Get rows."""
    return [{"row": number, "text": "x" * 200} for number in range(count)]


async def test_clip_results_leaves_the_data_of_the_code_whole() -> None:
    """Only the result of the code, which the model reads, is shortened."""
    code = "data = await rows(5)\nprint(data)\nlen(data)"
    response = await run_code(code, rows, swarm={"middleware": [clip_results(120)]})
    assert result_in(response).endswith("5")
    assert len(result_in(response)) == 120
    code = "data = await rows(5)\nawait gate()\n[len(data), len(data[0]['text'])]"
    waiting = await run_code(code, rows, gate, swarm={"middleware": [clip_results(120)]})
    assert result_in(await resumed(agent_of(rows, gate), waiting, True, middleware=[clip_results(120)])) == "[5, 200]"


async def test_an_external_result_is_the_data_of_the_answer() -> None:
    """None and numbers stay data, also in the replay."""
    nothing = {"type": "object", "properties": {}}
    locate = external_tool(name="locate", description="Where the user is.", parameters=nothing)
    code = "a = await locate()\nb = await locate()\nc = await locate()\n[a, b, c]"
    decisions = [{"outer.0": Reply(None)}, {"outer.1": Reply(5)}, {"outer.2": "5"}]
    assert result_in(await decided(code, [locate], decisions)) == '[null, 5, "5"]'


async def test_values_that_have_no_text() -> None:
    """Arguments that are not JSON fail the call; a value that cannot be shown is named by its type."""

    async def take(value: list[Any]) -> int:
        return 1

    assert "cannot be JSON" in result_in(await run_code("await take([...])", take))
    looped: list[Any] = []
    looped.append(looped)
    assert result_text("", looped, 100) == "(a value of the type list, which cannot be shown)"
