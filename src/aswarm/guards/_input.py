"""Guards of the input, as middleware.

While an async check runs, the completion is already requested. No chunk is passed on before the verdict. So until then, the run
gets no delta and no call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import anyio

from aswarm._runtime.backend import TaskResult
from aswarm._values.agent import Agent
from aswarm._values.errors import AswarmError, ConfigurationError
from aswarm._values.json import shown
from aswarm._values.messages import SENT_INPUT, Message, last_of_user
from aswarm._values.usage import Usage
from aswarm.extensions import Accumulator, CompletionRequest, Handlers, Middleware

from ._check import Check, CheckFunction, Guard, OnError, Pending
from ._checked import (
    Block,
    Blocked,
    CheckedInput,
    Chunk,
    Chunks,
    Replace,
    Say,
    Verdict,
    is_content,
    refusal,
    text_completion,
)

_InputVerdict: TypeAlias = Block | Say | Replace | None
_END: Any = object()
_SHOWN = 80


def guard_input(
    check: CheckFunction[CheckedInput, _InputVerdict | Awaitable[_InputVerdict]],
    *,
    parallel: bool = True,
    every: Literal["run", "turn"] = "run",
    agents: Iterable[Agent | str] | None = None,
    on_error: OnError = "block",
) -> Middleware:
    """Return middleware that checks the messages before the run gets a completion.

    If the check returns None, the messages pass. With `Block(reason)`, the run ends with `Blocked`. With `Say(text)`, the text
    is the answer of the run. With `Replace(content)`, each request of the run contains the content in place of the user's last
    message. The history keeps the original message, and the assistant message after it contains the replacement as
    `sent_input`. Every later run with this history sends the replacement, with or without the guard.

    A plain check is called on the event loop and must not block it. Calls that `resume=` runs at the start of a run are not
    judged here; see `guard_tool`. If the check returns a value that is not listed here, the run raises ConfigurationError.

    Args:
        check: The check.
        parallel: Whether to request the completion while an async check runs. The run gets no delta and no call before the
            verdict. If the messages do not pass, the request is cancelled. But the provider has then read the messages, may
            have run its own tools, and may charge for the request. With False, the completion is requested after the verdict.
        every: "run": check before the first completion of a run, and again after later messages of the user, for example from
            `run.send`. A `Say` applies to the rest of the run. "turn": check before each completion.
        agents: Check only before completions of these agents. They are compared by name.
        on_error: With "pass", an error of the check is logged, and the messages pass. By default, the run ends with `Blocked`.

    Raises:
        ConfigurationError: An argument has a wrong type or value.
    """
    judged = Check(check, "an input", (Block, Say, Replace), is_content, on_error)
    if every not in ("run", "turn"):
        raise ConfigurationError(f"every must be 'run' or 'turn', not {shown(every, _SHOWN)}")
    names = None if agents is None else _names(agents)

    def wrap(handlers: Handlers) -> Handlers:
        guard = _InputGuard(handlers, judged, parallel, every == "turn", names)
        return replace(handlers, complete=guard.complete)

    return Guard(wrap, (judged,), names)


def _names(agents: Iterable[Agent | str]) -> frozenset[str]:
    listed: list[Any] = [agents] if isinstance(agents, str | Agent) else [*agents]
    if not listed or not all(isinstance(each, str | Agent) for each in listed):
        raise ConfigurationError(f"agents must be agents or their names, at least one, not {shown(listed, _SHOWN)}")
    # Agents are compared by name, not by identity, because a function may return a new Agent object each time.
    return frozenset(each.name if isinstance(each, Agent) else each for each in listed)


class _InputGuard:
    """Guard of one run."""

    def __init__(
        self, handlers: Handlers, check: Check, parallel: bool, every_turn: bool, names: frozenset[str] | None
    ) -> None:
        self._handlers = handlers
        self._check = check
        self._parallel = parallel
        self._every_turn = every_turn
        self._names = names
        self._passed: list[Message] | None = None  # the user's messages that have passed
        self._answer: Say | None = None  # the answer to all further requests, for example retries of structured output
        # Pairs of a message of the user and its replacement; None if the message is removed. The history keeps the originals.
        # Messages are compared by value, because other middleware may send copies, or only a part of the history.
        self._replacements: list[tuple[Message, Message | None]] = []
        self._sent: Any = None  # the content of a replacement that the history does not contain yet

    def complete(self, request: CompletionRequest) -> Chunks:
        """Return the completion. If a check is due, the completion waits for the verdict, and may raise Blocked."""
        self._replace_in(request)
        if self._answer is not None:
            return _only(self._answer)
        return self._judged(request) if self._is_due(request) else self._requested(request)

    def _requested(self, request: CompletionRequest) -> Chunks:
        return self._handlers.complete(request) if self._sent is None else self._marked(request)

    async def _marked(self, request: CompletionRequest) -> Chunks:
        """Yield the completion, then a chunk with the sent content. As the first chunk, it would prevent a retry."""
        async with aclosing(self._handlers.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk
        sent, self._sent = self._sent, None
        yield {"choices": [{"index": 0, "delta": {SENT_INPUT: sent}}]}

    def _is_due(self, request: CompletionRequest) -> bool:
        if self._names is not None and request.agent.name not in self._names:
            return False
        if self._every_turn or self._passed is None:
            return True
        passed = self._passed  # compared by value, like `_replacements`
        return any(message not in passed for message in last_of_user(request.body["messages"]))

    def _let_pass(self, messages: Sequence[Message]) -> None:
        self._passed = [*(self._passed or ()), *last_of_user(messages)]

    async def _judged(self, request: CompletionRequest) -> Chunks:
        checked = CheckedInput(request.body["messages"], request.agent, self._handlers.run)
        unused: list[Chunk] = []  # the chunks of a completion that was requested before the verdict
        started = self._check.start(checked)
        if not isinstance(started, Pending):
            verdict = started
        elif not self._parallel:
            verdict = await started.verdict()
        else:
            with closing(started):
                # A copy, because inner middleware may change the request, which may be sent again after the verdict.
                async with aclosing(self._requested(request.copy())) as chunks:
                    try:
                        verdict, failure = await _read_ahead(started, chunks, unused)
                    except Blocked:
                        self._count(unused, request)
                        raise
                    if verdict is None:
                        self._let_pass(checked.messages)
                        for chunk in unused:
                            yield chunk
                        failure.get()
                        async for chunk in chunks:
                            yield chunk
                        return
        async with aclosing(self._after(verdict, checked, request, unused)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _after(
        self, verdict: Verdict, checked: CheckedInput, request: CompletionRequest, unused: list[Chunk]
    ) -> Chunks:
        """Return the chunks after the verdict. `unused`: the chunks of a completion that was requested too early."""
        if isinstance(verdict, Say):
            self._answer = None if self._every_turn else verdict
            return _only(verdict, _usage_of(unused))
        self._count(unused, request)
        if isinstance(verdict, Block):
            raise refusal(self._check.name, verdict.reason)
        if isinstance(verdict, Replace):
            messages = last_of_user(checked.messages)
            if not messages:
                reason = "it replaces the message of the user, but the user has sent nothing since the last answer"
                raise refusal(self._check.name, reason)
            self._replacements += [(message, None) for message in messages[:-1]]
            self._replacements.append((messages[-1], {**messages[-1], "content": verdict.value}))
            self._replace_in(request)
            self._sent = verdict.value
        self._let_pass(request.body["messages"])
        return self._requested(request)

    def _count(self, unused: list[Chunk], request: CompletionRequest) -> None:
        """Count the tokens of an unused completion. For a cancelled request, the provider reports no tokens."""
        if (usage := _usage_of(unused)) is not None:
            self._handlers.run.add_usage(usage, request.body["model"])

    def _replace_in(self, request: CompletionRequest) -> None:
        """Apply all replacements to the messages of this request."""
        if self._replacements:
            sent = map(self._replaced, request.body["messages"])
            request.body["messages"] = [message for message in sent if message is not None]

    def _replaced(self, message: Message) -> Message | None:
        current: Message | None = message
        for original, replacement in self._replacements:
            current = replacement if current == original else current
        return current


async def _read_ahead(pending: Pending, chunks: Chunks, received: list[Chunk]) -> tuple[Verdict, TaskResult[None]]:
    """Read a completion into `received` until the verdict of the check. Return the verdict and the completion's failure.

    If the completion fails before the verdict, its error waits for the verdict, so that the outcome does not depend on timing.
    This is a coroutine, not a generator, so that the task group is not open across a `yield`. Raises the exception of the
    check.
    """
    verdict, failure = TaskResult[Verdict](), TaskResult[None]()

    async def judge(scope: anyio.CancelScope) -> None:
        try:
            verdict.set_value(await pending.verdict())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised below, because the group would wrap it
            verdict.set_error(error)
        if verdict.error is not None or verdict.value is not None:
            scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(judge, group.cancel_scope)
        try:
            while not verdict.is_there and (chunk := await anext(chunks, _END)) is not _END:
                received.append(chunk)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised after the verdict
            failure.set_error(error)
    # No verdict: the check was cancelled, either by its own code or at the end of the event loop.
    return verdict.get() if verdict.is_there else Block("the check gave no verdict"), failure


def _usage_of(chunks: Sequence[Chunk]) -> Usage | None:
    """Return the usage of a completion, or None if it is incomplete."""
    accumulator = Accumulator()
    try:
        for chunk in chunks:
            accumulator.feed(chunk)
        return accumulator.finish().usage
    except AswarmError:
        return None


async def _only(answer: Say, usage: Usage | None = None) -> Chunks:
    yield text_completion(answer.text, usage)
