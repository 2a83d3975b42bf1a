"""A typed context and resources as type checkers see them. Checked, never run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypedDict, assert_type

from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, Resource, Response, Result, Swarm, agent_tool, tool
from aswarm.batch import Item
from aswarm.conversations import Conversation
from aswarm.guards import Block, CheckedCall, CheckedInput, guard_input, guard_tool
from aswarm.middleware import RunInfo


class Database(Protocol):
    async def order(self, number: int) -> str: ...


@dataclass
class Shop:
    customer: str
    points: int = 0
    cart: list[str] = field(default_factory=list[str])


class ShopModel(BaseModel):
    customer: str


class ShopItems(TypedDict):
    customer: str


@dataclass(frozen=True)
class Seen:
    customer: str


async def order(number: int, context_variables: Shop, db: Resource[Database]) -> str:
    assert_type(context_variables.cart, list[str])
    assert_type(db, Database)
    context_variables.points = "many"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    print(context_variables.name)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    return await db.order(number)


def refund(context_variables: ShopItems, db: Resource[Database | None] = None) -> Result:
    assert_type(context_variables["customer"], str)
    assert_type(db, Database | None)
    return Result(value=context_variables["customer"], context_variables={"points": 7})


@tool(approve=lambda arguments, context: bool(context["points"]))
async def read(context_variables: Seen) -> str:
    context_variables.customer = "Eve"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    return context_variables.customer


def is_large(arguments: dict[str, Any], shop: Seen, db: Resource[Database]) -> bool:
    return bool(arguments["amount"] > 100 and shop.customer != "Ada")


@tool(approve=is_large)
async def buy(amount: int) -> str:
    return str(amount)


def instructions(shop: Seen, db: Resource[Database]) -> str:
    return shop.customer


async def check(checked: CheckedCall, context_variables: Seen) -> Block | None:
    assert_type(checked.run.context_as(Shop), Shop)
    return Block(context_variables.customer)


def about(run: RunInfo) -> None:
    assert_type(run.context_as(ShopModel), ShopModel)
    assert_type(run.context_as(ShopItems), ShopItems)


class Rows:
    async def order(self, number: int) -> str:
        return str(number)


async def direct_calls() -> None:
    """A function with a type is an ordinary function."""
    assert_type(await order(7, Shop("Ada"), Rows()), str)
    await order(7, {"customer": "Ada"}, Rows())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await order(7, Shop("Ada"), 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await read(Seen("Ada")), str)


async def runs(conversation: Conversation) -> None:
    desk = Agent(instructions=instructions, functions=[order, refund, read, agent_tool(Agent())])
    swarm = AsyncSwarm(resources={"db": Rows()}, middleware=[guard_tool(check)])
    items: ShopItems = {"customer": "Ada"}
    response = await swarm.run(desk, "Hi", items, resources={"db": Rows()})
    assert_type(response, Response)
    assert_type(response.context_as(Shop), Shop)
    assert_type(response.context_as(ShopItems), ShopItems)
    await swarm.run(desk, "Hi", asdict(Shop("Ada")))
    await swarm.run(desk, "Hi", ShopModel(customer="Ada").model_dump())
    await swarm.run(desk, "Hi", resources=[Rows()])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await conversation.run("Hi", resources={"db": Rows()})
    async with swarm.batch(desk, [Item("Hi", context_variables=items)], resources={"db": Rows()}) as outcomes:
        async for outcome in outcomes:
            print(outcome)
    Swarm(resources={"db": Rows()}).run(desk, "Hi", items, resources={"db": Rows()})


def checks_of_other_kinds(context: Mapping[str, Any]) -> None:
    def of_input(checked: CheckedInput) -> None:
        assert_type(checked.run.context_variables, Mapping[str, Any])

    guard_input(of_input)
