"""Hints with names that are local to a function or a class are resolved, or refused before any request."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from aswarm import Agent, AsyncSwarm, ConfigurationError, Resource, Swarm, tool
from aswarm.code import code_tool
from aswarm.testing import ScriptedModel, call
from aswarm.util import function_to_json

if TYPE_CHECKING:
    from decimal import Decimal


class Desk:
    class Query(BaseModel):
        n: int

    def find(self, q: Query) -> str:
        return str(q.n)

    @tool
    def made(self, q: Query) -> str:
        return str(q.n)

    @classmethod
    def of_class(cls, q: Query) -> str:
        return str(q.n)

    @staticmethod
    def static(q: Query) -> str:
        return str(q.n)

    async def __call__(self, q: Query) -> str:
        return str(q.n)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return inner


desk = Desk()


async def answer(function: Any, name: str) -> str:
    model = ScriptedModel([call(name, q={"n": 7}), "Done."])
    response = await AsyncSwarm(model.client()).run(Agent(functions=[function]), "Go")
    return str(response.messages[1]["content"])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (desk.find, "find"),
        (desk.made, "made"),
        (desk.of_class, "of_class"),
        (Desk.of_class, "of_class"),
        (desk.static, "static"),
        (desk, "Desk"),
        (functools.partial(desk.find), "find"),
        (functools.partial(Desk.find, desk), "find"),
        (logged(desk.find), "find"),
    ],
)
async def test_names_of_the_class_are_found(function: Any, name: str) -> None:
    """In methods, callables, partials and decorated functions."""
    assert await answer(function, name) == "7"


def local_tools() -> dict[str, Any]:
    """Return functions with hints of this function, which has returned when they are used."""

    class Query(BaseModel):
        n: int

    @dataclass
    class Outer:
        q: Query

    class Items(TypedDict):
        q: Query

    @tool
    def made(q: Query) -> str:
        return str(q.n)

    @tool(name="named")
    @logged
    def wrapped(q: Query | None = None) -> str:
        return str(q and q.n)

    def bare(q: Query) -> str:
        return str(q.n)

    def listed(q: list[Query]) -> str:
        return str(q)

    @tool
    def outer(q: Outer) -> str:
        return str(q)

    @tool
    def items(q: Items) -> str:
        return str(q)

    async def resource(n: int, db: Resource[Query]) -> str:
        return str(db)

    class Local:
        class Inner(BaseModel):
            n: int

        def find(self, q: Inner) -> str:
            return str(q.n)

        @tool
        def made_inside(self, q: Inner) -> str:
            return str(q.n)

        @staticmethod
        def static(q: Inner) -> str:
            return str(q.n)

        def of_function(self, q: Query) -> str:
            return str(q.n)

    local = Local()
    offered = [local.find, local.made_inside, local.static, local.of_function]
    return {
        "made": made, "named": wrapped, "bare": bare, "listed": listed, "outer": outer, "items": items, "resource": resource,
        **{each.__name__: each for each in offered},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["made", "named", "find", "made_inside"])
async def test_names_of_a_function_that_has_returned_are_found_if_the_tool_was_made_in_it(name: str) -> None:
    assert await answer(local_tools()[name], name) == "7"


@pytest.mark.parametrize("name", ["bare", "listed", "outer", "items", "resource", "static", "of_function"])
async def test_names_that_cannot_be_found_are_refused(name: str) -> None:
    """Before any request; the error names the function, the parameter and the remedy."""
    model = ScriptedModel(["Done."])
    with pytest.raises(ConfigurationError, match=rf"function '{name}'.*(at the top level|at run time)"):
        await AsyncSwarm(model.client()).run(Agent(functions=[local_tools()[name]]), "Go")
    assert not model.requests


async def test_names_of_a_function_that_runs_are_found() -> None:
    """The agent, or `code_tool`, sees them when it is made."""

    class Query(BaseModel):
        n: int

    def bare(q: Query, others: list[Query] | None = None) -> Query:
        return q

    assert await answer(bare, "bare") == '{"n": 7}'
    model = ScriptedModel([call("run_code", code="(await again({'n': 7}))['n']"), "Done."])

    def again(q: Query) -> dict[str, int]:
        return {"n": q.n}

    agent = Agent(functions=[code_tool(again)])
    response = await AsyncSwarm(model.client()).run(agent, "Go")
    assert "cannot be resolved" not in response.messages[1]["content"]


def agents_of_a_function() -> dict[str, Agent]:
    """Return agents that were made in a function, which has returned when they run."""

    class Query(BaseModel):
        n: int

    class Local:
        def __call__(self, q: Query) -> str:
            return str(q.n)

    class Shop(TypedDict):
        shop: str

    def find(q: Query, times: int = 1) -> str:
        return str(q.n * times)

    def told(context_variables: Shop) -> str:
        return f"Shop: {context_variables['shop']}"

    return {
        "find": Agent(functions=[functools.partial(find, times=2)]),
        "Local": Agent(functions=[Local()]),
        "told": Agent(instructions=told),
    }


@pytest.mark.parametrize(("name", "expected"), [("find", "14"), ("Local", "7")])
async def test_partials_and_callable_objects_of_an_agent_find_the_names(name: str, expected: str) -> None:
    model = ScriptedModel([call(name, q={"n": 7}), "Done."])
    response = await AsyncSwarm(model.client()).run(agents_of_a_function()[name], "Go")
    assert response.messages[1]["content"] == expected


async def test_instructions_find_the_local_type_of_the_context() -> None:
    model = ScriptedModel(["Done."])
    await AsyncSwarm(model.client()).run(agents_of_a_function()["told"], "Go", {"shop": "Bakery"})
    assert model.requests[0].messages[0]["content"] == "Shop: Bakery"


def returning() -> Callable[..., Any]:
    class Answer(TypedDict):
        n: int

    def ask(n: int) -> Answer:
        return {"n": n}

    return ask


async def test_a_local_name_of_the_result_is_only_a_warning() -> None:
    """No call fails because of it."""
    model = ScriptedModel([call("ask", n=7), "Done."])
    with pytest.warns(UserWarning, match="the hint of 'return' cannot be resolved"):
        response = await AsyncSwarm(model.client()).run(Agent(functions=[returning()]), "Go")
    assert response.messages[1]["content"] == '{"n": 7}'


def test_a_context_type_with_a_field_of_a_local_class_is_refused() -> None:
    """The error has the remedy."""

    class Inner(TypedDict):
        n: int

    class Outer(TypedDict):
        inner: Inner

    def take(context_variables: Outer) -> str:
        return ""

    with pytest.raises(ConfigurationError, match=r"Outer: a field in it names a class.*at the top level"):
        function_to_json(take)


def test_a_blocking_run_in_another_thread_finds_the_names_that_the_agent_saw() -> None:
    class Query(BaseModel):
        n: int

    def bare(q: Query) -> str:
        return str(q.n)

    swarm = Swarm(ScriptedModel([call("bare", q={"n": 7}), "Done."]).client())
    response = swarm.run(Agent(functions=[bare]), [{"role": "user", "content": "Go"}])
    assert response.messages[1]["content"] == "7"


def test_a_global_name_for_type_checkers_only_is_a_string_with_a_warning() -> None:
    """The function around this one is gone, so the name may be global, and the function may well expect a text."""

    def pay(amount: Decimal) -> str:
        return str(amount)

    pay.__qualname__ = "removed.<locals>.pay"
    with pytest.warns(UserWarning, match="the hint of 'amount' cannot be resolved"):
        described = function_to_json(pay)
    assert described["function"]["parameters"]["properties"] == {"amount": {"type": "string"}}


@dataclass
class Unfinished:
    field: NowhereDefined  # type: ignore[name-defined]  # noqa: F821


async def test_a_class_with_a_field_of_an_unknown_class_is_refused() -> None:
    """The function would get a dict, and each call would fail."""

    def take(x: Unfinished) -> str:
        return str(x)

    with pytest.raises(ConfigurationError, match="a field in it names a class that cannot be found"):
        await AsyncSwarm(ScriptedModel(["Done."]).client()).run(Agent(functions=[take]), "Go")


def test_a_class_with_an_unknown_hint() -> None:
    """The local names of a class are not searched, so the model is asked for a string."""

    class Order:
        def __init__(self, item: "Unknown") -> None:  # noqa: F821, UP037
            self.item = item

    with pytest.warns(UserWarning, match="the hint of 'item' cannot be resolved"):
        schema = tool(Order)._schema.json  # type: ignore[arg-type]
    assert schema["function"]["parameters"]["properties"] == {"item": {"type": "string"}}
