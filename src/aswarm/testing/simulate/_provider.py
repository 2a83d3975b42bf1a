"""`Provider`: a scripted model with the faults of real providers, drawn from the seed of a world."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

import anyio
import httpx

from aswarm._values.usage import Usage
from aswarm.testing._answer import Cut, ScriptedAnswer, ScriptedCall
from aswarm.testing._scripted_model import Failure, RawAnswer, Request, Script, ScriptedModel, Step

from ._loop import owner
from ._world import SimulatedAnswer, World

Fault: TypeAlias = Literal["429", "500", "refused", "reset", "cut", "hang", "ids"]
"""A fault of a provider: see `Provider`."""


class Provider(ScriptedModel):
    """A `ScriptedModel` in a world: each piece of an answer arrives after a drawn delay, and some requests fail.

    Use one provider for each conversation: the choices depend on the order of the requests of a provider.

    Args:
        world: The world.
        script: As for `ScriptedModel`. A failed request uses no step.
        faults: The faults that may happen: "429" with and without `Retry-After`, "500", "refused" (no connection), "reset" (the
            connection breaks before the answer), "cut" (it breaks at any byte of the answer), "hang" (no more bytes arrive
            after any byte), "ids" (the calls of an answer have equal or empty ids).
        name: The name of the provider in the time line and in the names of its choices.
        cut: As for `ScriptedModel`.
        api: As for `ScriptedModel`: Chat Completions or Responses.
    """

    def __init__(
        self,
        world: World,
        script: Script,
        *,
        faults: Collection[Fault] = (),
        name: str = "model",
        cut: Cut = 5,
        api: Literal["chat", "responses"] = "chat",
    ) -> None:
        super().__init__(script, cut=cut, api=api)
        if unknown := set(faults).difference(get_args(Fault)):
            raise ValueError(f"unknown faults {sorted(unknown)}; use some of {list(get_args(Fault))}")
        world.providers.append(self)
        self._world = world
        self._faults = sorted(faults)
        self._name = name
        self._usages: dict[int, Usage | None] = {}  # by the id of a request that has no response yet

    async def _respond(self, request: Request) -> httpx.Response:
        # One request of four has a fault.
        drawn = self._world.draw(f"{self._name}: fault", 4 * len(self._faults)) if self._faults else 0
        fault = self._faults[drawn - 1] if 0 < drawn <= len(self._faults) else ""
        self._world.note(f"{self._name}: request with {len(request.messages)} messages{fault and f', {fault}'}")
        await self._world.pause(f"{self._name}: first byte")
        if fault == "refused":
            raise httpx.ConnectError("the connection was refused")
        if fault in {"429", "500"}:
            return self._failure(int(fault))
        response = await super()._respond(request)
        usage = self._usages.pop(id(request))
        if fault == "reset":
            raise httpx.ReadError("the connection was reset")
        if response.is_success and isinstance(response.stream, httpx.AsyncByteStream):
            stream: Any = response.stream
            size = len(response.content) if isinstance(stream, httpx.ByteStream) else sum(map(len, stream.pieces))
            answer = SimulatedAnswer(anyio.current_time(), self._name, size, usage, size, owner=owner.get())
            self._world.answers.append(answer)
            body = _FaultyBody(self._world, answer, stream, fault)
            return httpx.Response(response.status_code, headers=response.headers, stream=body)
        return response

    def _next_step(self, request: Request) -> Step:
        """Record the request and return the step that answers it; with the fault "ids", its calls have equal or empty ids."""
        step = super()._next_step(request)
        reported = step.usage if isinstance(step, ScriptedAnswer) else ScriptedAnswer().usage
        self._usages[id(request)] = None if isinstance(step, RawAnswer) else Usage.of_completion(reported)
        if "ids" not in self._faults or isinstance(step, str | Failure | RawAnswer | Exception):
            return step
        ids = (None, "same", "")[self._world.draw(f"{self._name}: ids", 3)]
        answer = ScriptedAnswer(calls=[step]) if isinstance(step, ScriptedCall) else step
        answer = answer if isinstance(answer, ScriptedAnswer) else ScriptedAnswer(calls=answer)
        return answer if ids is None else replace(answer, calls=[replace(each, id=ids) for each in answer.calls])

    def _failure(self, status: int) -> httpx.Response:
        headers = {"retry-after": "2"} if self._world.draw(f"{self._name}: Retry-After", 2) else {}
        return httpx.Response(status, headers=headers, json={"error": {"message": "simulated", "code": None}})


class _FaultyBody(httpx.AsyncByteStream):
    """The body of a response whose pieces arrive after delays, and that breaks or hangs at a drawn byte."""

    def __init__(self, world: World, answer: SimulatedAnswer, body: httpx.AsyncByteStream, fault: str) -> None:
        self._world = world
        self._answer = answer
        self._body = body
        self._pieces = aiter(body)
        self._fault = fault if fault in {"cut", "hang"} else ""
        drawn = world.draw(f"{answer.provider}: byte of the fault", answer.size) if self._fault else answer.size
        self._last = answer.size - drawn  # the number of bytes that never arrive

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        answer = self._answer
        if self._fault and answer.left <= self._last:
            await self._fail()
        piece = await anext(self._pieces)
        await self._world.pause(f"{answer.provider}: piece")
        piece = piece[: answer.left - self._last]
        answer.left -= len(piece)
        return piece or await anext(self)

    async def _fail(self) -> None:
        if self._fault == "hang":
            await anyio.sleep(3600)
        raise httpx.ReadError("the connection was cut")

    async def aclose(self) -> None:
        if self._answer.closed_at is None:
            self._answer.closed_at = anyio.current_time()
        await self._body.aclose()
