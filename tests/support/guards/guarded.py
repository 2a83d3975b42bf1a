"""A model that runs step by step, a function that counts its calls, and slow checks, all without clocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from aswarm import Agent, AsyncSwarm, Response
from aswarm.guards import guard_answer, guard_input, guard_tool
from aswarm.sources import CompletionRequest
from aswarm.testing import ScriptedAnswer, call

WAYS = ["run", "run(stream=True)", "stream", "stream(deltas=False)"]


async def steps(count: float) -> None:
    """Let other tasks run so many times; for ever if it is infinite."""
    if count == float("inf"):
        await anyio.sleep_forever()
    for _ in range(int(count)):
        await anyio.lowlevel.checkpoint()


def chunk_of(key: str, value: Mapping[str, Any], answer: ScriptedAnswer | None = None) -> dict[str, Any]:
    """Return a chunk, or a whole completion with the usage of its answer."""
    end: dict[str, Any] = {} if answer is None else {"finish_reason": answer.finish}
    return {"choices": [{"index": 0, key: value, **end}], **({} if answer is None else {"usage": answer.usage})}


def chunks(answer: ScriptedAnswer) -> Iterator[dict[str, Any]]:
    """Yield an answer in pieces: its text, then its calls."""
    text, calls = answer.text or "", answer.message.get("tool_calls", ())
    for at in range(0, len(text), 4):
        yield chunk_of("delta", {"content": text[at : at + 4]})
    for index, each in enumerate(calls):
        yield chunk_of("delta", {"tool_calls": [{"index": index, **each}]})
    yield chunk_of("delta", {}, answer)


@dataclass
class Scene:
    """A swarm whose model calls `work` and then answers. `before`, `between`: its steps before and between chunks.

    `fails`: its error after the first chunk. `seen`: the output for a reader. `asked`: the requests. `log`: the events, in order.
    """

    before: float = 0
    between: float = 1
    fails: Exception | None = None
    calls: tuple[Any, ...] = field(default_factory=lambda: (call("work", call_id="c1"),))
    text: str = "Let me see."
    seen: list[Any] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    open_streams: int = 0
    worked: int = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Answer: first with calls, if there are any, and then with a text."""
        self.asked.append(request.body)
        self.log.append("asked")
        is_answered = any(message["role"] == "tool" for message in request.body["messages"])
        calls = () if is_answered else self.calls
        answer = ScriptedAnswer(self.text if calls else "It is done.", calls)
        self.open_streams += 1
        try:
            await steps(self.before)
            for chunk in chunks(answer) if request.stream else [chunk_of("message", answer.message, answer)]:
                yield chunk
                if self.fails is not None:
                    raise self.fails
                await steps(self.between)
        finally:
            self.open_streams -= 1

    async def work(self) -> str:
        """Do the work."""
        self.worked += 1
        self.log.append("worked")
        return "worked"

    def agent(self, name: str = "Agent") -> Agent:
        """Return an agent with the function."""
        return Agent(name=name, functions=[self.work])

    def check(self, verdict: Any = None, count: float = 3) -> Callable[[Any], Any]:
        """Return an async check that takes so many steps."""

        async def check(checked: Any) -> Any:
            await steps(count)
            self.log.append("verdict")
            if isinstance(verdict, Exception):
                raise verdict
            return verdict(checked) if callable(verdict) else verdict

        return check

    async def run(self, *middleware: Any, way: str = "run", messages: Any = "Hi", **options: Any) -> Response:
        """Return the response of a run in one of the ways; `seen` gets everything with text or calls."""
        return await self.read(AsyncSwarm(self, middleware=middleware), way, messages, **options)

    async def read(self, swarm: AsyncSwarm, way: str, messages: Any = "Hi", **options: Any) -> Response:
        """Do the same with another swarm."""
        agent = options.pop("agent", None) or self.agent()
        if way == "run":
            return await swarm.run(agent, messages, **options)
        if way == "run(stream=True)":
            stream = swarm.run(agent, messages, stream=True, **options)
            async for event in stream:
                self.seen += [event] if event.get("content") or event.get("tool_calls") else []
            return stream.response
        async with swarm.stream(agent, messages, deltas=way == "stream", **options) as run:
            async for event in run:
                self.seen += [event] if type(event).__name__ not in ("TurnStarted", "RunFinished") else []
        return run.response


GUARDS: dict[str, Callable[..., Any]] = {
    "input": guard_input,
    "input, every turn": lambda check, **more: guard_input(check, every="turn", **more),
    "input, not parallel": lambda check, **more: guard_input(check, parallel=False, **more),
    "before a call": lambda check, **more: guard_tool(before=check, **more),
    "after a call": lambda check, **more: guard_tool(after=check, **more),
    "answer": guard_answer,
}
