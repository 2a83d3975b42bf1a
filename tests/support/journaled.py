"""A small batch: items that run through a journal, one after another or together. And a model that follows a script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, CompletionRequest, Response
from aswarm._journal import Journal
from aswarm._journal.entry import JournalEntry
from aswarm._journal.middleware import journal_middleware
from aswarm._run.options import RunOptions

Json = dict[str, Any]
BATCH = {"agent": "Agent"}


def says(text: str) -> Json:
    """An answer."""
    return {"role": "assistant", "content": text}


def calls(*names: str, **arguments: str) -> Json:
    """An answer that calls functions; `arguments` is JSON text by name. The id of a call is its name and position."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"{name}-{n}",
                "type": "function",
                "function": {"name": name, "arguments": arguments.get(name, "{}")},
            }
            for n, name in enumerate(names)
        ],
    }


class Script:
    """A `CompletionSource` that gives these messages in order, or raises them if they are exceptions; `asked`: the requests."""

    def __init__(self, *steps: Json | BaseException) -> None:
        self._steps = iter(steps)
        self.asked: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.asked.append(request)
        step = next(self._steps)
        if isinstance(step, BaseException):
            raise step
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached": 2},
        }
        yield {"choices": [{"index": 0, "message": step, "finish_reason": "stop"}], "usage": usage}


async def run(
    entry: JournalEntry, model: Any, agent: Agent, messages: Any = "Hi", context: Json | None = None, **options: Any
) -> Response:
    """One attempt at an item."""
    arguments = RunOptions(agent, messages, context)
    return await AsyncSwarm(client=model, **options)._run_to_end(arguments, journal_middleware(entry))


async def rerun(
    path: Path,
    model: Any,
    agent: Agent,
    messages: Any = "Hi",
    context: Json | None = None,
    agents: Mapping[str, Agent] | None = None,
    **options: Any,
) -> Response:
    """A batch of the one item "a": opened, run to its end, closed."""
    swarm = AsyncSwarm(client=model, **options)
    async with Journal(path, BATCH, agents) as journal:
        return await journal.run("a", RunOptions(agent, messages, context), swarm._run_to_end)


class Died(BaseException):
    """Stands for the death of the process."""


def dies() -> BaseException:
    """A step of a `Script` at which the process dies."""
    return Died()


def noting(notes: list[str], name: str, result: Callable[[], Any] = lambda: "done") -> Callable[[], Any]:
    """A function of this name that notes that it ran."""

    async def function() -> Any:
        notes.append(name)
        return result()

    function.__name__ = name
    return function
