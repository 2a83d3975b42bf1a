"""Types of context variables, and one function of each kind that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired

from pydantic import BaseModel
from typing_extensions import ReadOnly, TypedDict

from aswarm import Resource


@dataclass
class Box:
    items: list[int] = field(default_factory=list)


@dataclass
class Shop:
    customer: str
    points: int = 0
    cart: list[str] = field(default_factory=list)
    box: Box = field(default_factory=Box)


class BoxModel(BaseModel):
    items: list[int] = []


class ShopModel(BaseModel):
    customer: str
    points: int = 0
    cart: list[str] = []
    box: BoxModel = BoxModel()


class BoxItems(TypedDict):
    items: list[int]


class ShopItems(TypedDict):
    customer: str
    points: int
    cart: list[str]
    box: BoxItems


@dataclass(frozen=True)
class Seen:
    customer: str
    points: int = 0
    cart: tuple[str, ...] = ()


class SeenModel(BaseModel, frozen=True):
    customer: str
    points: int = 0
    cart: tuple[str, ...] = ()


class SeenItems(TypedDict):
    customer: ReadOnly[str]
    points: ReadOnly[int]
    cart: ReadOnly[tuple[str, ...]]


class Order(TypedDict):
    order: int
    note: NotRequired[str]


class Database:
    """A client, which no store can hold."""

    def __init__(self, *rows: str) -> None:
        self.rows = list(rows)

    def __deepcopy__(self, memo: object) -> Any:
        raise AssertionError("a resource is never copied")


def get(context: Any, name: str) -> Any:
    """Return a field of a view, or an item of a dict."""
    return context[name] if isinstance(context, Mapping) else getattr(context, name)


def put(context: Any, name: str, value: Any) -> None:
    """Set a field of a view, or an item of a dict."""
    if isinstance(context, dict):
        context[name] = value
    else:
        setattr(context, name, value)


async def spend(context_variables: Shop, db: Resource[Database]) -> str:
    """Spend a point."""
    context_variables.points -= 1
    context_variables.cart.append(db.rows[0])
    return f"{context_variables.points} points"


def collect(number: int, context_variables: ShopModel) -> str:
    """Collect points, in a thread."""
    context_variables.points += number
    return "collected"


async def balance(context_variables: Seen) -> str:
    """Read the points."""
    return f"{context_variables.customer} has {context_variables.points}"
