"""The functions as Python: what the model reads, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from aswarm import Agent, ConfigurationError, Result, external_tool, tool
from aswarm._tools.tool import as_tool, function_tool, may_hand_off, runs_together, takes_context, writes_context
from aswarm.code import code_tool
from aswarm.code._stubs import stubs_of
from aswarm.code._values import value_of
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


class Plain(TypedDict):
    """A dict."""

    number: int


class Colour(Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


def text_of(*functions: Any) -> str:
    return stubs_of(map(as_tool, functions)).text


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
    """A parameter without a type is a text there, as in Swarm; a result without a hint may be anything."""

    async def odd(value: Any, other: Annotated[int, Field(ge=1)], more: int | list[Any] | None = None):  # type: ignore[no-untyped-def]
        """Odd."""

    assert "async def odd(value: str, other: int, more: int | list[Any] | None = ...) -> Any:" in text_of(odd)


@pytest.mark.anyio
async def test_names_that_python_does_not_allow_are_changed() -> None:
    """A parameter with such a name makes the function take one dict."""
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


@pytest.mark.anyio
async def test_classes_are_names_in_the_code() -> None:
    async def total(order: Order) -> float:
        return sum(line.price for line in order.lines)

    code = 'order: Order = {"id": 1, "lines": [{"item": "a", "price": 2.5}, {"item": "b"}]}\nawait total(order)'
    assert await result_of(code, total) == "4.0"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "code", ["await rows(n=None)", "n: int | None = None\nawait rows(n=n, many=None)", "await rows()"]
)
async def test_none_means_the_default(code: str) -> None:
    """As `null` does in a call of the model."""

    async def rows(n: int = 3, many: list[int | None] = [1]) -> str:  # noqa: B006
        return f"{n} {many}"

    assert await result_of(code, rows) == "3 [1]"
    assert "async def rows(n: int = ..., many: list[int | None] = ...) -> str:" in text_of(rows)


@pytest.mark.anyio
async def test_none_is_refused_for_a_parameter_without_a_default() -> None:
    async def rows(n: int) -> str:
        return str(n)

    assert "Expected `int`, found `None`" in await result_of("await rows(n=None)", rows)


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
    async def odd() -> Callable[[], int]:
        raise NotImplementedError

    async def day() -> date:
        raise NotImplementedError

    async def either() -> str | int:
        raise NotImplementedError

    async def steps() -> AsyncIterator[list[int]]:
        yield []

    text = text_of(odd, day, either, steps)
    assert [line.partition("-> ")[2] for line in text.splitlines() if "->" in line] == [
        "Any:",
        "str:",
        "str | int:",
        "list[int]:",
    ]
    assert stubs_of(map(as_tool, (odd, day, either, steps))).readings == {
        "odd": "any",
        "day": "text",
        "either": "both",
        "steps": "data",
    }


def test_what_is_refused() -> None:
    """With the remedy in the text."""

    async def look() -> str:
        return ""

    one = function_tool(look, name="a-b", description="", parameters={"type": "object", "properties": {}})
    other = function_tool(look, name="a_b", description="", parameters={"type": "object", "properties": {}})
    for functions, options, text in (
        ((), {}, "code_tool needs functions"),
        ((one, other), {}, "the name 'a_b' is used twice in Python"),
        ((code_tool(look),), {}, "is a code tool itself; pass its functions to one code_tool"),
        ((5,), {}, "cannot be used as a function of an agent"),
        ((look,), {"timezone": "Moon/Sea"}, "unknown time zone 'Moon/Sea'"),
        ((look,), {"timezone": ""}, "unknown time zone ''"),
        ((look,), {"name": "a b"}, "a b"),
    ):
        with pytest.raises(ConfigurationError, match=text.replace("(", r"\(")):
            code_tool(*functions, **options)


@pytest.mark.anyio
async def test_the_tool_works_only_in_a_run() -> None:
    async def look() -> str:
        return ""

    with pytest.raises(ConfigurationError, match="works only as a function of an agent"):
        await code_tool(look)(code="1")


def test_the_plan_knows_what_the_calls_of_the_code_may_do() -> None:
    """The tool runs beside others if all its functions do, and takes the context if one of them does."""

    async def free(number: int) -> int:
        return number

    async def reads(context_variables: dict[str, Any]) -> str:
        return ""

    async def results() -> Result:
        return Result()

    def plain() -> str:
        return ""

    async def typed() -> Plain:
        return Plain(number=1)

    assert not may_hand_off(as_tool(typed))
    harmless = code_tool(free, typed)
    assert (runs_together(harmless), takes_context(harmless), may_hand_off(harmless)) == (True, False, False)
    assert not runs_together(code_tool(free, plain))
    assert writes_context(code_tool(free, reads))
    assert may_hand_off(code_tool(free, results))
    assert may_hand_off(code_tool(free, Agent(name="Other")))
    assert code_tool(free)._may_wait


def test_external_tools_are_functions_of_the_code() -> None:
    locate = external_tool(
        name="locate", description="Where the user is.", parameters={"type": "object", "properties": {}}
    )
    assert 'async def locate() -> Any:\n    """Where the user is."""' in text_of(locate)


@pytest.mark.parametrize(
    ("content", "reading", "value"),
    [
        ("12", "text", "12"),
        ("12", "data", 12),
        ("12", "any", "12"),
        ('{"a": 1}', "any", {"a": 1}),
        ("[1", "any", "[1"),
        ("None", "data", None),
        ("True", "data", True),
        ("(1, 'x')", "data", (1, "x")),
        ("no data", "data", "no data"),
        ([{"type": "text", "text": "seen"}], "text", "seen"),
    ],
)
def test_how_a_content_becomes_a_value(content: Any, reading: Any, value: Any) -> None:
    assert value_of(content, reading) == value


@pytest.mark.anyio
async def test_options_of_the_tool() -> None:
    """Its name, a description before its own, and the options of `@tool`."""

    async def look() -> int:
        return 1

    made = tool(approve=True)(code_tool(look, name="python", description="For sums."))
    assert made._schema.name == "python"
    assert str(made.description).startswith("For sums.\n\nRun Python code")
    assert made._is_replayed
    assert agent_of(look).functions[0]._schema.json["function"]["parameters"]["required"] == ["code"]


@pytest.mark.processes
def test_importing_aswarm_does_not_import_the_sandbox() -> None:
    """Nor does a run without code mode."""
    import subprocess

    program = "import sys, aswarm, aswarm.testing; print([name for name in sys.modules if 'monty' in name or 'aswarm.code' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.processes
def test_a_missing_package_names_the_extra() -> None:
    import subprocess

    program = "import sys; sys.modules['pydantic_monty'] = None\ntry:\n    import aswarm.code\nexcept Exception as error:\n    print(type(error).__name__, error)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 'ConfigurationError aswarm.code needs the package pydantic-monty: install the extra "code"' in done.stdout
