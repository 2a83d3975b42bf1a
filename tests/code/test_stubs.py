"""The functions as Python for the model, and the functions that are refused."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import anyio
import pytest
from pydantic import BaseModel, Field

from aswarm import Agent, AsyncSwarm, ConfigurationError, Result, external_tool, tool
from aswarm.code import code_tool
from aswarm.testing import ScriptedModel, call
from aswarm.tools import function_tool
from tests.support.code.coded import agent_of, result_of


class Line(BaseModel):
    """A line of an order."""

    item: str
    price: float = 1.5


class Tree(BaseModel):
    """A tree."""

    children: list[Tree]


@dataclass
class Order:
    """An order."""

    id: int
    lines: list[Line]
    note: str | None = None


class Colour(Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


def text_of(*functions: Any) -> str:
    """Return the functions as the model reads them."""
    return str(code_tool(*functions).description).partition("for the next run.\n\n")[2]


def test_the_model_reads_signatures_classes_and_docstrings() -> None:
    """Required parameters come first, and have no default."""

    async def place(
        lines: list[Line],
        colour: Colour,
        days: Literal[1, 2] = 1,
        tags: dict[str, int] | None = None,
        when: date | None = None,
    ) -> Order:
        """Place an order: "now" \\ later."""
        raise NotImplementedError

    assert (
        text_of(place)
        == '''\
class Line(TypedDict):
    item: str
    price: float

class Order(TypedDict):
    id: int
    lines: list[Line]
    note: str | None

class Line2(TypedDict):
    item: str
    price: NotRequired[float]

async def place(lines: list[Line2], colour: Literal['red', 'blue'], days: Literal[1, 2] = ..., tags: dict[str, int] | None = ..., when: str | None = ...) -> Order:
    """Place an order: "now" \\\\ later."""
'''
    )


def test_classes_may_contain_themselves() -> None:
    async def grow(tree: Tree) -> None:
        """Grow."""

    assert "class Tree(TypedDict):\n    children: list[Tree]" in text_of(grow)


def test_the_same_class_has_one_name() -> None:
    async def one(line: Line) -> None: ...
    async def two(line: Line) -> None: ...

    assert text_of(one, two).count("class ") == 1


def test_hints_are_those_of_the_schema_for_the_model() -> None:
    """A parameter without a type is a text, as in Swarm; a result without a hint may be anything."""

    async def odd(value: Any, other: Annotated[int, Field(ge=1)], more: int | list[Any] | None = None):  # type: ignore[no-untyped-def]
        """Odd."""

    assert "async def odd(value: str, other: int, more: int | list[Any] | None = ...) -> Any:" in text_of(odd)


async def test_names_that_python_does_not_allow_are_changed() -> None:
    """A function with such a parameter takes one dict."""
    seen: list[Any] = []

    async def look(**arguments: Any) -> str:
        seen.append(arguments)
        return "seen"

    schema = {"type": "object", "properties": {"max-results": {"type": "integer"}}, "required": ["max-results"]}
    dashed = function_tool(look, name="get-order", description="Get.", parameters=schema)
    plain = function_tool(look, name="class", description="", parameters={"type": "object", "properties": {}})
    assert "async def get_order(arguments: dict[str, Any]) -> str:" in text_of(dashed)
    assert await result_of('await get_order({"max-results": 3}) + await tool_class()', dashed, plain) == "seenseen"
    assert seen == [{"max-results": 3}, {}]


@pytest.mark.parametrize(
    "code", ["await rows(n=None)", "n: int | None = None\nawait rows(n=n, many=None)", "await rows()"]
)
async def test_none_means_the_default(code: str) -> None:
    """None in code is like `null` in a call of the model."""

    async def rows(n: int = 3, many: list[int | None] = [1]) -> str:  # noqa: B006
        return f"{n} {many}"

    assert await result_of(code, rows) == "3 [1]"
    assert "async def rows(n: int = ..., many: list[int | None] = ...) -> str:" in text_of(rows)


def test_schemas_of_other_programs() -> None:
    """A schema of an MCP server may have any form; a form without a hint in Python is Any."""

    async def run(**arguments: Any) -> Any: ...

    def shown(schema: dict[str, Any], **defs: Any) -> str:
        parameters = {"type": "object", "properties": {"p": schema}, "$defs": defs}
        text = text_of(function_tool(run, name="run", description="", parameters=parameters))
        return text.partition("(p: ")[2].partition(" = ...)")[0]

    assert shown({"type": ["string", "null"]}) == "str | None"
    assert shown({"oneOf": [{"type": "integer"}, {"const": "x"}]}) == "int | Literal['x']"
    assert shown({"enum": [1.5]}) == "Any"
    assert shown({"enum": []}) == "Any"
    assert shown({"$ref": "#/$defs/A"}) == "Any"
    assert shown({"$ref": "#/$defs/A"}, A={"type": "array", "items": {"$ref": "#/$defs/A"}}) == "list[Any]"
    assert shown({"$ref": "#/$defs/A"}, A={"enum": ["a"]}) == "Literal['a']"
    assert shown({"type": "object", "properties": {"a-b": {}}}) == "dict[str, Any]"
    assert shown({"type": "object", "additionalProperties": {"type": "number"}}) == "dict[str, float]"
    assert shown({"type": "object", "title": "7 days", "properties": {"a": {"type": "boolean"}}}) == "Data7Days"
    assert shown({"anyOf": []}) == "Any"
    assert shown({}) == "Any"


def test_results_without_a_schema_are_any() -> None:
    """The hint of a result is its schema; an async generator has the hint of its items."""

    async def odd() -> Callable[[], int]:
        raise NotImplementedError

    async def day() -> date:
        raise NotImplementedError

    async def either() -> str | int:
        raise NotImplementedError

    async def steps() -> AsyncIterator[list[int]]:
        yield []

    lines = text_of(odd, day, either, steps).splitlines()
    hints = [line.partition("-> ")[2] for line in lines if "->" in line]
    assert hints == ["Any:", "str:", "str | int:", "list[int]:"]


class Meeting:
    """Functions of each kind. `free` waits some seconds for another call of `free`."""

    def __init__(self, seconds: float) -> None:
        self.running = 0
        self.seconds = seconds
        self.met = anyio.Event()

    async def free(self, number: int) -> int:
        self.running += 1
        if self.running == 2:
            self.met.set()
        with anyio.move_on_after(self.seconds):
            await self.met.wait()
        self.running -= 1
        return number

    async def writes(self, context_variables: dict[str, Any]) -> str:
        return ""

    def plain(self) -> str:
        return ""

    async def results(self) -> Result:
        return Result()

    async def idle(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("names", "together"), [(["free"], True), (["free", "plain"], False), (["free", "writes"], False)]
)
async def test_two_runs_of_code_are_concurrent_if_all_their_functions_may_be(names: list[str], together: bool) -> None:
    """The tool runs beside others if all its functions do."""
    meeting = Meeting(seconds=60 if together else 0.1)
    agent = agent_of(*(getattr(meeting, name) for name in names))
    calls = [call("run_code", code=f"await free({n})") for n in range(2)]
    await AsyncSwarm(ScriptedModel([calls, "Done."]).client()).run(agent, "Go")
    assert meeting.met.is_set() == together


@pytest.mark.parametrize(("kind", "waits"), [("idle", False), ("results", True), ("handoff", True)])
async def test_a_call_after_code_that_may_hand_off_waits_with_it(kind: str, waits: bool) -> None:
    """A later call does not run beside a waiting call that could still hand off."""
    meeting, notes = Meeting(0), list[str]()

    async def look() -> str:
        notes.append("look")
        return "seen"

    other: Any = Agent(name="Other") if kind == "handoff" else getattr(meeting, kind)
    agent = agent_of(tool(approve=True)(meeting.free), other)
    agent.functions.append(look)
    steps = [[call("run_code", code="await free(1)"), call("look")], "Done."]
    response = await AsyncSwarm(ScriptedModel(steps).client()).run(agent, "Go")
    assert (response.stop, notes) == ("waiting", [] if waits else ["look"])


async def look() -> str:
    return ""


def named(name: str) -> Any:
    return function_tool(look, name=name, description="", parameters={"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("functions", "options", "text"),
    [
        ((), {}, "code_tool needs functions"),
        ((named("a-b"), named("a_b")), {}, "the name 'a_b' is used twice in Python"),
        ((code_tool(look),), {}, "makes calls itself; pass its functions to one tool"),
        ((5,), {}, "cannot be used as a function of an agent"),
        ((look,), {"timezone": "Moon/Sea"}, "unknown time zone 'Moon/Sea'"),
        ((look,), {"timezone": ""}, "unknown time zone ''"),
        ((look,), {"name": "a b"}, "a b"),
    ],
)
async def test_wrong_arguments(functions: Any, options: Any, text: str) -> None:
    """The error has the remedy."""
    with pytest.raises(ConfigurationError, match=text):
        code_tool(*functions, **options)


async def test_the_tool_works_only_in_a_run() -> None:
    """A call by a program is an error."""
    with pytest.raises(ConfigurationError, match="works only as a function of an agent"):
        await code_tool(look)(code="1")


def test_external_tools_are_functions_of_the_code() -> None:
    """An external tool has its description, and any result."""
    nothing = {"type": "object", "properties": {}}
    locate = external_tool(name="locate", description="Where the user is.", parameters=nothing)
    assert 'async def locate() -> Any:\n    """Where the user is."""' in text_of(locate)


async def test_options_of_the_tool() -> None:
    """It takes a name, a description before its own, and the options of `@tool`."""

    async def look() -> int:
        return 1

    made = tool(approve=True)(code_tool(look, name="python", description="For sums."))
    model = ScriptedModel([call("python", code="await look()")])
    response = await AsyncSwarm(model.client()).run(Agent(functions=[made]), "Go")
    assert [(each.name, each.reason) for each in response.open_calls] == [("python", "needs approval")]
    function = model.requests[0].body["tools"][0]["function"]
    assert function["name"] == "python"
    assert function["description"].startswith("For sums.\n\nRun Python code")
    assert function["parameters"]["required"] == ["code"]


def printed(program: str) -> str:
    """Return the output of a program."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.processes
def test_importing_aswarm_does_not_import_the_sandbox() -> None:
    """A run without code mode does not need it; if the package is missing, the error names the extra."""
    names = "[name for name in sys.modules if 'monty' in name or 'aswarm.code' in name]"
    assert printed(f"import sys, aswarm, aswarm.testing; print({names})") == "[]\n"
    missing = "try:\n    import aswarm.code\nexcept Exception as error:\n    print(type(error).__name__, error)"
    text = printed(f"import sys; sys.modules['pydantic_monty'] = None\n{missing}")
    assert 'ConfigurationError aswarm.code needs the package pydantic-monty: install the extra "code"' in text


def test_the_error_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """`aswarm.code` needs the package of the sandbox."""
    monkeypatch.delitem(sys.modules, "aswarm.code")
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(ConfigurationError, match="needs the package pydantic-monty"):
        importlib.import_module("aswarm.code")
