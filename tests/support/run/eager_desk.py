"""A repeatable tool that notes its calls, for runs with eager tools in virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aswarm import Agent, current_call, progress, tool
from aswarm.testing import ScriptedAnswer, call
from tests.support.runtime.virtual_time import virtual_backend

BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])
VIRTUAL = pytest.mark.parametrize(
    "anyio_backend", [virtual_backend("asyncio"), virtual_backend("trio")], ids=["asyncio", "trio"]
)


def calls_of(*names: str, pause: float = 0.5) -> ScriptedAnswer:
    """Return an answer with these calls, each in two chunks, with a pause in seconds before each chunk."""
    made = [call(name, call_id=f"{name}-{number}", x=str(number)) for number, name in enumerate(names)]
    return ScriptedAnswer(calls=made, pause=pause)


class Desk:
    """A tool that notes its calls, in the time of the event loop."""

    def __init__(self) -> None:
        self.started: list[float] = []
        self.ended = self.most = 0
        self.cancelled = 0
        self.keys: list[str] = []

    def agent(self, seconds: float = 3, **options: Any) -> Agent:
        @tool(repeatable=True, **options)
        async def search(x: str) -> str:
            self.started.append(anyio.current_time())
            self.most = max(self.most, len(self.started) - self.ended)
            self.keys.append(current_call().key)
            progress(x)
            try:
                await anyio.sleep(seconds)
            except BaseException:
                self.cancelled += 1
                raise
            finally:
                self.ended += 1
            return f"found {x}"

        return Agent(functions=[search])
