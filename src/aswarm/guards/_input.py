"""Guards of what is sent, as middleware.

Decides when a check is due, and what follows from its verdict. While an async check runs, the completion is asked for
already. None of its chunks is passed on before the verdict, so that the run has no delta and no call of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import anyio

from aswarm._agent import Agent
from aswarm._errors import AswarmError, ConfigurationError
from aswarm._json import is_array, is_object, shown
from aswarm._messages import Message
from aswarm._run.handlers import Handlers, Middleware
from aswarm._runtime.backend import TaskResult
from aswarm._usage import Usage
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.request import CompletionRequest

from ._check import Check, OnError, Pending, guarding
from ._checked import CheckedInput, last_of_user
from ._verdicts import Block, Blocked, Content, Replace, Say, Verdict, refusal

Chunk: TypeAlias = Mapping[str, Any]
Chunks: TypeAlias = AsyncGenerator[Chunk, None]
_InputVerdict: TypeAlias = Block | Say | Replace | None
_END: Any = object()
_SHOWN = 80
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def guard_input(
    check: Callable[[CheckedInput], _InputVerdict | Awaitable[_InputVerdict]],
    parallel: bool = True,
    every: Literal["run", "turn"] = "run",
    agents: Iterable[Agent | str] | None = None,
    *,
    on_error: OnError = "block",
) -> Middleware:
    """Middleware that asks a check before the model's answer counts: None lets it pass, `Block`, `Say` or `Replace`.

    `parallel=True`: the completion is asked for while an async check runs. No delta and no call of it exists for the run
    before the verdict; without a pass, the request is cancelled. The provider has seen the messages, may have run its own
    tools, and may charge for it. With False it is asked only after the verdict.

    `every="run"` asks the check before the first completion of a run, and once more for messages of the user that come
    later, such as those of `run.send`; `Say` holds for the rest of the run. "turn" asks it before each completion. `agents`: only before completions of these agents, compared by name.
    `on_error="pass"`: a check that raises is logged and lets pass; by default it blocks.

    A plain check is called on the event loop and must not block it. Calls that `resume=` runs at the beginning of a run
    are not judged here; see `guard_tool`.

    Raises ConfigurationError for other values. The run raises it if the check returns anything else.
    """
    judged = Check(check, "an input", (Block, Say, Replace), is_content, on_error)
    if every not in ("run", "turn"):
        raise ConfigurationError(f"every must be 'run' or 'turn', not {shown(every, _SHOWN)}")
    names = None if agents is None else _names(agents)

    def wrap(handlers: Handlers) -> Handlers:
        guard = _InputGuard(handlers, judged, parallel, every == "turn", names)
        return replace(handlers, complete=guard.complete)

    return guarding(wrap)


def is_content(value: object) -> bool:
    """Whether a message may have it as its content."""
    return isinstance(value, str) or (is_array(value) and bool(value) and all(map(is_object, value)))


def _names(agents: Iterable[Agent | str]) -> frozenset[str]:
    listed: list[Any] = [agents] if isinstance(agents, str | Agent) else [*agents]
    if not listed or not all(isinstance(each, str | Agent) for each in listed):
        raise ConfigurationError(f"agents must be agents or their names, and not empty: {shown(listed, _SHOWN)}")
    # By name, because a function may return a new Agent each time: by identity, it would pass unseen.
    return frozenset(each.name if isinstance(each, Agent) else each for each in listed)


class _InputGuard:
    """The guard of one run."""

    def __init__(
        self, handlers: Handlers, check: Check, parallel: bool, every_turn: bool, names: frozenset[str] | None
    ) -> None:
        self._handlers = handlers
        self._check = check
        self._parallel = parallel
        self._every_turn = every_turn
        self._names = names
        self._passed: list[Message] | None = None  # the messages of the user that were let pass
        self._said: Say | None = None  # holds for the run: an answer with a type may be asked for again
        self._replaced: list[tuple[Message, Message | None]] = []  # the history keeps the originals

    def complete(self, request: CompletionRequest) -> Chunks:
        """The completion, once it may be seen."""
        self._replace_known(request)
        if self._said is not None:
            return _said(self._said)
        return self._judged(request) if self._is_due(request) else self._handlers.complete(request)

    def _is_due(self, request: CompletionRequest) -> bool:
        if self._names is not None and request.agent.name not in self._names:
            return False
        if self._every_turn or self._passed is None:
            return True
        passed = self._passed  # compared as values, as below
        return any(message not in passed for message in last_of_user(request.body["messages"]))

    def _let_pass(self, messages: Sequence[Message]) -> None:
        self._passed = [*(self._passed or ()), *last_of_user(messages)]

    async def _judged(self, request: CompletionRequest) -> Chunks:
        checked = CheckedInput(request.body["messages"], request.agent, self._handlers.run)
        unused: list[Chunk] = []
        found = self._check.begin(checked)
        if not isinstance(found, Pending):
            verdict = found
        elif not self._parallel:
            verdict = await found.verdict()
        else:
            with closing(found):
                async with aclosing(self._handlers.complete(request.copy())) as chunks:
                    ahead = _ReadAhead(found)
                    unused = ahead.received
                    try:
                        verdict = await ahead.read(chunks)
                    except Blocked:
                        self._count(unused, request)
                        raise
                    if verdict is None:
                        self._let_pass(checked.messages)
                        for chunk in ahead.received:
                            yield chunk
                        ahead.failure.get()
                        async for chunk in chunks:
                            yield chunk
                        return
        async with aclosing(self._after(verdict, checked, request, unused)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _after(
        self, verdict: Verdict, checked: CheckedInput, request: CompletionRequest, unused: list[Chunk]
    ) -> Chunks:
        """What follows from the verdict. `unused`: the chunks of a completion that was asked for and is not used."""
        if isinstance(verdict, Say):
            self._said = None if self._every_turn else verdict
            return _said(verdict, _usage_of(unused))
        self._count(unused, request)
        if isinstance(verdict, Block):
            raise refusal(self._check.name, verdict.reason)
        if isinstance(verdict, Replace):
            self._replace_text(last_of_user(checked.messages), verdict.value)
            self._replace_known(request)
        self._let_pass(request.body["messages"])
        return self._handlers.complete(request)

    def _count(self, unused: list[Chunk], request: CompletionRequest) -> None:
        """Count the tokens of a completion that is not used. Of one that is cut, the provider has told none."""
        if (usage := _usage_of(unused)) is not None:
            self._handlers.run.add_usage(usage, request.body["model"])

    def _replace_text(self, messages: list[Message], content: Content) -> None:
        if not messages:
            raise refusal(
                self._check.name, "it replaces a message of the user, and there is none after the last answer"
            )
        *earlier, last = messages
        self._replaced += [(message, None) for message in earlier] + [(last, {**last, "content": content})]

    def _replace_known(self, request: CompletionRequest) -> None:
        if self._replaced:
            sent = [self._replacement(message) for message in request.body["messages"]]
            request.body["messages"] = [message for message in sent if message is not None]

    def _replacement(self, message: Message) -> Message | None:
        # Compared as values: other middleware may send copies, or leave out some of the history.
        current: Message | None = message
        for original, instead in self._replaced:
            current = instead if current == original else current
        return current


class _ReadAhead:
    """Reads a completion while its check runs. `received`: the chunks so far. `failure`: what the completion has raised."""

    def __init__(self, pending: Pending) -> None:
        self.received: list[Chunk] = []
        self.failure = TaskResult[None]()
        self._pending = pending
        self._verdict = TaskResult[Verdict]()

    async def read(self, chunks: Chunks) -> Verdict:
        """Read until the verdict. It is awaited also if the completion fails: timing must not decide what happens.

        This is one await, so the task group stands across no `yield`. Raises what the check raises.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._judge, group.cancel_scope)
            try:
                while not self._verdict.is_there and (chunk := await anext(chunks, _END)) is not _END:
                    self.received.append(chunk)
            except Exception as error:  # noqa: BLE001 - raised once the verdict is there
                self.failure.set_error(error)
        return self._verdict.get() if self._verdict.is_there else Block("the check has given no verdict")

    async def _judge(self, scope: anyio.CancelScope) -> None:
        try:
            self._verdict.set_value(await self._pending.verdict())
        except Exception as error:  # noqa: BLE001 - raised by `read`, outside of the group
            self._verdict.set_error(error)
        if self._verdict.error is not None or self._verdict.value is not None:
            scope.cancel()


async def _said(say: Say, usage: Usage | None = None) -> Chunks:
    yield said(say.text, usage)


def said(text: str, usage: Usage | None = None) -> Chunk:
    """A whole completion with this text. `usage`: that of the completion in whose place it stands."""
    message = {"role": "assistant", "content": text}
    reported = usage and {**usage.details, **{key: getattr(usage, key) for key in _COUNTS}}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": reported}


def _usage_of(chunks: list[Chunk]) -> Usage | None:
    """The usage of a completion, or None if it had not ended."""
    accumulator = Accumulator()
    try:
        for chunk in chunks:
            accumulator.feed(chunk)
        return accumulator.finish().usage
    except AswarmError:
        return None
