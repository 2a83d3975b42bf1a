"""A guard of answers, as middleware: no part of an answer is shown before its check has seen all of it.

Decides which completions are answers. A completion with a call is not an answer: it is passed on from its first call on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeAlias

from aswarm._messages import text_of
from aswarm._run.handlers import Handlers, Middleware
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.request import CompletionRequest

from ._check import Check, OnError, guarding
from ._checked import CheckedAnswer
from ._chunks import Chunk, Chunks, text_completion
from ._verdicts import Block, Blocked, Replace, Say, refusal

_AnswerVerdict: TypeAlias = Block | Say | Replace | None


def hold_answer(
    check: Callable[[CheckedAnswer], _AnswerVerdict | Awaitable[_AnswerVerdict]], *, on_error: OnError = "block"
) -> Middleware:
    """Middleware that holds each answer back, with its reasoning, until a check has seen all of it.

    None lets it pass, and its chunks follow at once. `Block(reason)` ends the run with `Blocked`; neither the history nor a
    reader gets the answer. `Say(text)` and `Replace(text)` put a text in its place. The tokens of the completion count
    in any case.

    A completion with calls is not an answer: its text before the first call is shown, and is not judged. A call of
    `final_answer` is not judged either: use `Output(check=...)` for answers with a type.

    `on_error="pass"`: if the check raises, the error is logged and the answer passes; by default the run ends with `Blocked`.
    A plain check is called on the event loop and must not block it. Raises ConfigurationError for an argument of another
    kind. The run raises it for a value of the check that is not one of these verdicts.
    """
    judged = Check(check, "an answer", (Block, Say, Replace), _is_text, on_error)

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> Chunks:
            messages, held, accumulator = [*request.body["messages"]], list[Chunk](), Accumulator()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    held.append(chunk)
                    if _has_calls(accumulator.feed(chunk)):
                        for each in held:
                            yield each
                        async for later in chunks:
                            yield later
                        return
            completion = accumulator.finish()
            text = text_of(completion.message["content"])
            checked = CheckedAnswer(text, completion.message, messages, request.agent, handlers.run)
            try:
                instead = await _text_instead(judged, checked)
            except Blocked:
                handlers.run.add_usage(completion.usage, request.body["model"])
                raise
            for each in held if instead is None else [text_completion(instead, completion.usage)]:
                yield each

        return replace(handlers, complete=complete)

    return guarding(wrap)


async def _text_instead(check: Check, checked: CheckedAnswer) -> str | None:
    """The text in place of the answer; None if the answer passes. Raises Blocked."""
    match await check.judge(checked):
        case Block(reason):
            raise refusal(check.name, reason)
        case Say(text) | Replace(text):
            return str(text)
        case _:
            return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _has_calls(delta: Mapping[str, Any] | None) -> bool:
    return delta is not None and bool(delta["tool_calls"])
