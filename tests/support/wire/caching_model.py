"""A model with a prompt cache: it counts a token for each four characters, and keeps the prompts that it has evaluated."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from aswarm.extensions import CompletionRequest, CompletionSource

Json = dict[str, Any]
_CHARACTERS = 4


class CachingModel(CompletionSource):
    """A model that evaluates the part of a prompt that no earlier prompt has.

    `script`: the answers in their order: a text, or the calls as pairs of a name and arguments. `reports`: whether it reports the
    tokens from the cache. `base_url`: decides the prices.
    """

    base_url = "https://api.openai.com/v1"

    def __init__(self, script: Sequence[str | list[tuple[str, Json]]], *, reports: bool = True) -> None:
        self.script = list(script)
        self.reports = reports
        self.requests: list[Json] = []
        self.usages: list[Json] = []
        self.fails: Callable[[Json], Exception | None] = lambda _: None
        self._prompts: list[str] = []

    def forget(self) -> None:
        """Remove all prompts from the cache."""
        self._prompts.clear()

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield one whole completion."""
        body = request.body
        if (error := self.fails(body)) is not None:
            raise error
        usage = self._evaluate(body)
        self.requests.append(body)
        self.usages.append(usage)
        answer = self.script.pop(0)
        message: Json = {"role": "assistant", "content": answer if isinstance(answer, str) else None}
        if not isinstance(answer, str):
            message["tool_calls"] = [
                {
                    "index": at,
                    "id": f"call_{len(self.requests)}_{at}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for at, (name, arguments) in enumerate(answer)
            ]
        yield {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    def _evaluate(self, body: Json) -> Json:
        prompt = json.dumps([body["model"], body.get("tools"), *body["messages"]])[:-1]
        cached = max((_common(prompt, earlier) for earlier in self._prompts), default=0) // _CHARACTERS
        self._prompts.append(prompt)
        tokens = len(prompt) // _CHARACTERS
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if self.reports else {}
        return {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10, **details}


def _common(text: str, other: str) -> int:
    """Return the number of equal characters at the start."""
    length = min(len(text), len(other))
    return bisect_left(range(1, length + 1), True, key=lambda end: text[:end] != other[:end])
