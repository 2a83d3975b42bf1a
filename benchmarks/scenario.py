"""The conversation of all contenders, and the check that it took place. Standard library only.

It has four turns. Agent `a` calls `get_weather`; then `a` hands off to `b`; `b` calls `get_time` and `get_news` together; then `b`
answers. All contenders and the server share the texts, the tools and the history in this module.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

MODEL = "fake"
API_KEY = "benchmark"
TURNS = 4
A_NAME, B_NAME = "a", "b"
A_TEXT = "You are the reception desk of a travel agency. Answer briefly, and hand over questions about a city."
B_TEXT = "You are the city guide of a travel agency. Look things up before you answer, and answer briefly."
HANDOFF_TEXT = "Hand over to the city guide."
QUESTION = "What is the weather in Oslo, what time is it there, and what is new?"
ANSWER = "In Oslo it is sunny, it is noon, and a new bridge was opened."
CITY = "Oslo"

Message = Mapping[str, Any]


@dataclass(slots=True)
class Tally:
    """Counts the calls of the tools in this process. `together`: the maximum of tools of a turn that ran at the same time."""

    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("get_weather", "get_time", "get_news"), 0))
    rehearsal: bool = False
    running: int = 0
    together: int = 0

    def count(self, name: str, city: str) -> None:
        """Count one call. Raises ValueError if the argument is not the argument of the fake model."""
        if city != CITY:
            raise ValueError(f"{name} was called with {city!r}")
        self.calls[name] += 1

    async def overlap(self) -> None:
        """In a rehearsal, wait, to detect whether the other tool of the turn runs at the same time."""
        if not self.rehearsal:
            return
        self.running += 1
        self.together = max(self.together, self.running)
        await asyncio.sleep(0.05)
        self.running -= 1


TALLY = Tally()


async def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    TALLY.count("get_weather", city)
    return "sunny"


async def get_time(city: str) -> str:
    """Tell the time in a city."""
    TALLY.count("get_time", city)
    await TALLY.overlap()
    return "noon"


async def get_news(city: str) -> str:
    """Tell what is new in a city."""
    TALLY.count("get_news", city)
    await TALLY.overlap()
    return "a new bridge was opened"


TOOLS: dict[str, Callable[[str], Any]] = {tool.__name__: tool for tool in (get_weather, get_time, get_news)}


def tool_json(name: str) -> dict[str, Any]:
    """Return the schema of a tool, as an engineer would write it by hand."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {
        "type": "function",
        "function": {"name": name, "description": TOOLS[name].__doc__, "parameters": parameters},
    }


def handoff_json(name: str = "transfer_to_b") -> dict[str, Any]:
    """Return the schema of the handoff, written by hand."""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": HANDOFF_TEXT, "parameters": parameters}}


def history(length: int) -> list[dict[str, str]]:
    """Return `length` earlier messages of about a hundred characters. User and assistant alternate."""
    return [
        {
            "role": "assistant" if position % 2 else "user",
            "content": f"Message {position} of a long conversation about trains, ferries and rooms in a city up north.",
        }
        for position in range(length)
    ]


class Session(Protocol):
    """A contender that is ready to work. It has already made the objects that a service makes only once."""

    def prepare(self, past: Sequence[Message]) -> Any:
        """Return the history in the contender's own form. This is not measured, because a service would store this form."""
        ...

    async def converse(self, past: Any) -> str:
        """Hold the conversation: `past`, which `prepare` returned, and then QUESTION. Returns the text of the answer."""
        ...

    def stream(self) -> AsyncIterator[str]:
        """Yield the text deltas of an answer of agent `b` to QUESTION, from the contender's stream with the least overhead."""
        ...

    async def close(self) -> None:
        """Close the client."""
        ...


OpenSession = Callable[..., Awaitable[Session]]


def opener_of(contender: str) -> OpenSession:
    """Return the function `open_session(url, connections=None)` of a contender.

    `contender`: the name of a file in `contenders`, or "file:function" for a function with another name.
    """
    module, _, function = contender.partition(":")
    opener: OpenSession = getattr(importlib.import_module(f"contenders.{module}"), function or "open_session")
    return opener
