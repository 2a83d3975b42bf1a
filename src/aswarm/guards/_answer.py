"""Guard of answers, as middleware: no part of a completion is shown before a check of its whole text."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias

from aswarm._values.messages import SENT_INPUT
from aswarm.extensions import Accumulator, Completion, CompletionRequest, Handlers, Middleware

from ._check import Check, CheckFunction, Guard, OnError
from ._checked import Block, Blocked, CheckedAnswer, Chunk, Chunks, Replace, Say, refusal, text_completion, texts_of

_AnswerVerdict: TypeAlias = Block | Say | Replace | None


def guard_answer(
    check: CheckFunction[CheckedAnswer, _AnswerVerdict | Awaitable[_AnswerVerdict]],
    *,
    on_error: OnError = "block",
) -> Middleware:
    """Return middleware that delays each completion until a check has judged its text, its refusal and its reasoning.

    If the check returns None, the chunks are passed on. `Block(reason)` ends the run with `Blocked`: the completion is not
    shown and not in the history, and its calls do not run. `Say(text)` and `Replace(text)` replace all judged texts. The
    tokens of the completion count in any case.

    If a completion has a text and calls, the text is judged too, because it is shown, and may be the last text of the run.
    Calls are not judged: see `guard_tool`. They run even if the text was replaced. A completion that has only calls is not
    judged. For structured output, use `Output(check=...)`, because a call of `final_answer` is not judged either.

    With `on_error="pass"`, an error of the check is logged, and the answer passes. By default, the run ends with `Blocked`. A
    plain check is called on the event loop and must not block it. Raises ConfigurationError for a wrong argument. If the check
    returns a value that is not listed here, the run raises ConfigurationError.
    """
    judged = Check(check, "an answer", (Block, Say, Replace), lambda value: isinstance(value, str), on_error)

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> Chunks:
            messages, held, accumulator = [*request.body["messages"]], list[Chunk](), Accumulator()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    held.append(chunk)
                    accumulator.feed(chunk)
            completion = accumulator.finish()
            text, replacement = texts_of(completion.message), None
            if text or not completion.message["tool_calls"]:
                checked = CheckedAnswer(text, completion.message, messages, request.agent, handlers.run)
                try:
                    replacement = await _replacement(judged, checked)
                except Blocked:
                    handlers.run.add_usage(completion.usage, request.body["model"])
                    raise
            for each in held if replacement is None else [_with_text(replacement, completion)]:
                yield each

        return replace(handlers, complete=complete)

    return Guard(wrap, (judged,))


async def _replacement(check: Check, checked: CheckedAnswer) -> str | None:
    """Return the text that replaces the answer; None if the answer passes. Raises Blocked."""
    match await check.judge(checked):
        case Block(reason):
            raise refusal(check.name, reason)
        case Say(text) | Replace(text):
            return str(text)
        case _:
            return None


def _with_text(text: str, completion: Completion) -> Chunk:
    """Return the completion with this text in place of all texts of the model. Its calls stay."""
    kept = {key: value for key, value in completion.message.items() if key in ("tool_calls", SENT_INPUT)}
    return text_completion(text, completion.usage, kept)
