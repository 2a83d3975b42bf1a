"""The three kinds of client, with the same script: a real client, a completion source, and a mock with `create`."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import anyio.lowlevel

from aswarm.sources import CompletionRequest
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, Step
from tests.support.providers.loopback import data_of, sse, whole

Json = dict[str, Any]


class Script(ScriptedModel):
    """A scripted model that can be asked without HTTP too. `bodies`: copies of the requests at their arrival."""

    @property
    def bodies(self) -> list[Json]:
        return [request.body for request in self.requests]

    def answer_to(self, body: Mapping[str, Any]) -> ScriptedAnswer:
        step = self._next_step(Request(copy.deepcopy(dict(body)), {}))
        if isinstance(step, Exception):
            raise step
        if isinstance(step, str):
            return ScriptedAnswer(step)
        return (
            step
            if isinstance(step, ScriptedAnswer)
            else ScriptedAnswer(calls=step if isinstance(step, list) else [step])
        )


class ForeignSource:
    """A `CompletionSource` of a user. `harm` gets each request first, and may change it."""

    def __init__(self, script: Script, harm: Callable[[Json], object] = lambda body: None) -> None:
        self._script = script
        self._harm = harm
        self.open_streams = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        answer = self._script.answer_to(request.body)
        self._harm(request.body)
        self.open_streams += 1
        try:
            for chunk in data_of(sse(answer, cut=3) if request.stream else whole(answer)):
                await anyio.lowlevel.checkpoint()
                yield chunk
        finally:
            self.open_streams -= 1


class MockClient:
    """A client with `chat.completions.create`. `harm`: as in `ForeignSource`."""

    def __init__(self, script: Script, harm: Callable[[Json], object] = lambda body: None) -> None:
        self._script = script
        self._harm = harm
        self.chat = self.completions = self

    async def create(self, **body: Any) -> Any:
        answer = self._script.answer_to(body)
        self._harm(body)
        return self._stream(answer) if body["stream"] else data_of(whole(answer))[0]

    async def _stream(self, answer: ScriptedAnswer) -> AsyncIterator[Json]:
        for chunk in data_of(sse(answer, cut=3)):
            await anyio.lowlevel.checkpoint()
            yield chunk


KINDS = ["openai", "source", "mock"]


def client_of(kind: str, script: Script) -> Any:
    """Return a client of this kind that follows the script."""
    if kind == "openai":
        return script.client()
    return ForeignSource(script) if kind == "source" else MockClient(script)


def script_of(steps: Iterable[Any] | Callable[[Request], Step]) -> Script:
    """Return a script whose streamed text is cut into pieces of three characters."""
    return Script(steps, cut=3)
