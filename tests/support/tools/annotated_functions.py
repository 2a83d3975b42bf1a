"""Functions whose annotations are strings, as in a module of a user who writes `from __future__ import annotations`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from aswarm import tool

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Passenger:
    """A passenger."""

    name: str
    born: date


class Booking(BaseModel):
    """A booking."""

    title: str
    passengers: list[Passenger]


def book(
    day: date,
    booking: Booking,
    seats: Annotated[int, Field(description="how many", ge=1)],
    note: Annotated[str, "anything else"] = "",
    seat: Literal["window", "aisle"] | None = None,
) -> Booking:
    """Book a flight."""
    return booking


def pay(amount: Decimal, card: str) -> Fraction:
    """`Decimal` and `Fraction` exist for the type checker only."""
    raise NotImplementedError


class Desk:
    """A class whose methods are tools."""

    def find(self, day: date) -> str:
        """Find a flight."""
        return day.isoformat()

    @tool
    def cancel(self, day: date) -> str:
        """Cancel a flight."""
        return day.isoformat()

    @classmethod
    def all(cls, day: date) -> str:
        """All flights."""
        return day.isoformat()

    @staticmethod
    def any(day: date) -> str:
        """Any flight."""
        return day.isoformat()

    def __call__(self, day: date) -> str:
        """Call the desk."""
        return day.isoformat()


def make_local() -> Callable[..., Any]:
    """Return a function with a type hint that only its closure contains."""

    class Local(BaseModel):
        x: int

    def local(value: Local) -> Local:
        """Takes a local class."""
        return Local(x=value.x)

    return local


def logged(function: F) -> F:
    """Wrap a function in the usual way."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner  # type: ignore[return-value]
