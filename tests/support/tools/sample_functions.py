"""Functions, methods and callable objects, for the tests of tools."""

from __future__ import annotations

from aswarm import tool


def look(city: str) -> str:
    """Look around."""
    return city


async def find(city: str) -> str:
    """Find something."""
    return city


class Service:
    def bare(self, city: str) -> str:
        """Bare."""
        return f"bare {city}"

    @tool
    def plain(self, city: str) -> str:
        """Plain."""
        return f"plain {city}"

    @tool(timeout=3, name="renamed")
    async def slow(self, city: str) -> str:
        """Slow."""
        return f"slow {city}"

    @tool
    @classmethod
    def made(cls, city: str) -> str:
        """A class method."""
        return f"{cls.__name__} {city}"

    @tool
    @staticmethod
    async def fixed(city: str) -> str:
        """A static method."""
        return f"fixed {city}"


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, city: str) -> str:
        """Call it."""
        return city


class Slotted:
    __slots__ = ()

    async def __call__(self, city: str) -> str:
        """Call it."""
        return city
