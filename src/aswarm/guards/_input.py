"""Guards of the input, as middleware.

Decides when a check is asked, and what follows from its verdict. While an async check runs, the completion is requested
already. No chunk of it is passed on before the verdict, so the run gets no delta and no call of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import anyio

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._json import shown
from aswarm._messages import Message
from aswarm._run.handlers import Handlers, Middleware
from aswarm._runtime.backend import TaskResult
from aswarm._usage import Usage
from aswarm._wire.request import CompletionRequest

from ._check import Check, OnError, Pending, guarding
from ._checked import CheckedInput, last_of_user
from ._chunks import Chunk, Chunks, text_completion, usage_of
from ._verdicts import Block, Blocked, Content, Replace, Say, Verdict, is_content, refusal

_InputVerdict: TypeAlias = Block | Say | Replace | None
_END: Any = object()
_SHOWN = 80


def guard_input(
    check: Callable[[CheckedInput], _InputVerdict | Awaitable[_InputVerdict]],
    parallel: bool = True,
    every: Literal["run", "turn"] = "run",
    agents: Iterable[Agent | str] | None = None,
    *,
    on_error: OnError = "block",
) -> Middleware:
    """Middleware that asks a check of the messages before the run gets a completion.

    None lets them pass. `Block(reason)` ends the run with `Blocked`. `Say(text)` is the answer of the run. `Replace(content)` is
    sent as the user's last message, in each request of the run; the history keeps the original.

    `parallel=True`: the completion is requested while an async check runs. The run gets no delta and no call of it before the
    verdict. Unless the check lets the messages pass, the request is cancelled; but the provider has seen the messages, may
    have run tools of its own, and may charge for it. With False the completion is requested only after the verdict.

    `every="run"` asks the check before the first completion of a run, and again for messages of the user that come later,
    such as those of `run.send`. A `Say` then holds for the rest of the run. "turn" asks it before each completion. `agents`:
    the check is asked only before completions of these agents, which are compared by name. `on_error="pass"`: if the check
    raises, the error is logged and the messages pass; by default the run ends with `Blocked`.

    A plain check is called on the event loop and must not block it. Calls that `resume=` runs at the beginning of a run
    are not judged here; see `guard_tool`. Raises ConfigurationError for an argument of another kind. The run raises it for a
    value of the check that is not one of these verdicts.
    """
    judged = Check(check, "an input", (Block, Say, Replace), is_content, on_error)
    if every not in ("run", "turn"):
        raise ConfigurationError(f"every must be 'run' or 'turn', not {shown(every, _SHOWN)}")
    names = None if agents is None else _names(agents)

    def wrap(handlers: Handlers) -> Handlers:
        guard = _InputGuard(handlers, judged, parallel, every == "turn", names)
        return replace(handlers, complete=guard.complete)

    return guarding(wrap)


def _names(agents: Iterable[Agent | str]) -> frozenset[str]:
    listed: list[Any] = [agents] if isinstance(agents, str | Agent) else [*agents]
    if not listed or not all(isinstance(each, str | Agent) for each in listed):
        raise ConfigurationError(f"agents must be agents or their names, at least one, not {shown(listed, _SHOWN)}")
    # By name, because a function may return a new Agent each time: a comparison by identity would miss it.
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
        self._passed: list[Message] | None = None  # the messages of the user that have passed
        self._answer: Say | None = None  # it holds for the run, because the run may ask again for an answer with a type
        self._replacements = _Replacements()

    def complete(self, request: CompletionRequest) -> Chunks:
        """The completion, after the verdict if the check is asked. Raises Blocked while it is read."""
        self._replacements.apply(request)
        if self._answer is not None:
            return _only(self._answer)
        return self._judged(request) if self._is_due(request) else self._handlers.complete(request)

    def _is_due(self, request: CompletionRequest) -> bool:
        if self._names is not None and request.agent.name not in self._names:
            return False
        if self._every_turn or self._passed is None:
            return True
        passed = self._passed  # compared as values, as in _Replacements
        return any(message not in passed for message in last_of_user(request.body["messages"]))

    def _let_pass(self, messages: Sequence[Message]) -> None:
        self._passed = [*(self._passed or ()), *last_of_user(messages)]

    async def _judged(self, request: CompletionRequest) -> Chunks:
        checked = CheckedInput(request.body["messages"], request.agent, self._handlers.run)
        unused: list[Chunk] = []
        begun = self._check.begin(checked)
        if not isinstance(begun, Pending):
            verdict = begun
        elif not self._parallel:
            verdict = await begun.verdict()
        else:
            with closing(begun):
                async with aclosing(self._handlers.complete(request.copy())) as chunks:
                    ahead = _ReadAhead(begun)
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
        """The chunks that follow from the verdict. `unused`: the chunks of a completion that was requested and is not used."""
        if isinstance(verdict, Say):
            self._answer = None if self._every_turn else verdict
            return _only(verdict, usage_of(unused))
        self._count(unused, request)
        if isinstance(verdict, Block):
            raise refusal(self._check.name, verdict.reason)
        if isinstance(verdict, Replace):
            self._replace(last_of_user(checked.messages), verdict.value)
            self._replacements.apply(request)
        self._let_pass(request.body["messages"])
        return self._handlers.complete(request)

    def _count(self, unused: list[Chunk], request: CompletionRequest) -> None:
        """Count the tokens of a completion that is not used. For a request that was cancelled, the provider reports none."""
        if (usage := usage_of(unused)) is not None:
            self._handlers.run.add_usage(usage, request.body["model"])

    def _replace(self, messages: list[Message], content: Content) -> None:
        if not messages:
            raise refusal(
                self._check.name,
                "it replaces the message of the user, but the user has sent nothing since the last answer",
            )
        self._replacements.add(messages, content)


class _Replacements:
    """What is sent in place of messages of the user. The history keeps the originals.

    Messages are compared as values: other middleware may send copies, or leave out a part of the history.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Message, Message | None]] = []

    def add(self, messages: list[Message], content: Content) -> None:
        """Send the last of these messages with this content, and the others not at all."""
        *earlier, last = messages
        self._pairs += [(message, None) for message in earlier] + [(last, {**last, "content": content})]

    def apply(self, request: CompletionRequest) -> None:
        """Replace what is known in the messages of this request."""
        if self._pairs:
            sent = [self._replaced(message) for message in request.body["messages"]]
            request.body["messages"] = [message for message in sent if message is not None]

    def _replaced(self, message: Message) -> Message | None:
        current: Message | None = message
        for original, instead in self._pairs:
            current = instead if current == original else current
        return current


class _ReadAhead:
    """Reads a completion while its check runs. `received`: the chunks so far. `failure`: the exception of the completion."""

    def __init__(self, pending: Pending) -> None:
        self.received: list[Chunk] = []
        self.failure = TaskResult[None]()
        self._pending = pending
        self._verdict = TaskResult[Verdict]()

    async def read(self, chunks: Chunks) -> Verdict:
        """Read until the verdict. A completion that fails waits for it too: the timing must not change the outcome.

        This is one await, so the task group is open across no `yield`. Raises the exception of the check.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._judge, group.cancel_scope)
            try:
                while not self._verdict.is_there and (chunk := await anext(chunks, _END)) is not _END:
                    self.received.append(chunk)
            except Exception as error:  # noqa: BLE001 - raised once the verdict is there
                self.failure.set_error(error)
        # Without a verdict the check was cancelled, by itself or by the end of the event loop.
        return self._verdict.get() if self._verdict.is_there else Block("the check has given no verdict")

    async def _judge(self, scope: anyio.CancelScope) -> None:
        try:
            self._verdict.set_value(await self._pending.verdict())
        except Exception as error:  # noqa: BLE001 - raised by `read`, outside of the group
            self._verdict.set_error(error)
        if self._verdict.error is not None or self._verdict.value is not None:
            scope.cancel()


async def _only(answer: Say, usage: Usage | None = None) -> Chunks:
    yield text_completion(answer.text, usage)
