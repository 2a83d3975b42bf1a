"""A client with a plain `create`, in its own module, so that the processes of tests need not import openai."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from aswarm.testing import ScriptedAnswer, ScriptedCall
from tests.support.providers.bodies import chunks, completion

Step = str | ScriptedCall | list[ScriptedCall] | ScriptedAnswer


def as_answer(step: Step) -> ScriptedAnswer:
    """Return a step of a script as a `Reply`."""
    if isinstance(step, ScriptedAnswer):
        return step
    if isinstance(step, str):
        return ScriptedAnswer(step)
    return ScriptedAnswer(calls=[step] if isinstance(step, ScriptedCall) else step)


class BlockingClient:
    """A client with a plain `chat.completions.create`: answers with the steps in order, and records its threads."""

    def __init__(self, *steps: Step) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        self.requests: list[dict[str, Any]] = []
        self.threads: set[int] = set()
        self._steps = iter(steps)

    def _create(self, **request: Any) -> Any:
        self.requests.append(request)
        self.threads.add(threading.get_ident())
        answer = as_answer(next(self._steps))
        return self._streamed(answer) if request["stream"] else completion(answer)

    def _streamed(self, answer: ScriptedAnswer) -> Iterator[Any]:
        for chunk in chunks(answer, 2):
            self.threads.add(threading.get_ident())
            yield chunk
