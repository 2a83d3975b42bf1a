"""A context of OpenTelemetry that is current only while one step of a span runs.

If a generator makes its span current across a `yield`, the span is also current in the code of its consumer, and
OpenTelemetry logs an error when another task closes the generator. Here a context is attached directly before a part of the
step runs, and detached before control leaves the step. No token crosses a `yield`, an `await` or a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

from opentelemetry.context import Context, attach, detach, get_current

T = TypeVar("T")


class SpanScope:
    """The context in which the steps of one span run. A span that one step makes current is current in the next steps too."""

    __slots__ = ("context",)

    def __init__(self, context: Context) -> None:
        self.context = context


class Within(Generic[T]):
    """Awaits a step, and runs each part of it in the context of its span."""

    __slots__ = ("_scope", "_step")

    def __init__(self, step: Awaitable[T], scope: SpanScope) -> None:
        self._step = step
        self._scope = scope

    def __await__(self) -> Generator[Any, Any, T]:
        inner: Any = self._step.__await__()
        scope, resume, value = self._scope, inner.send, None
        while True:
            token = attach(scope.context)
            try:
                waits_for = resume(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                scope.context = get_current()
                detach(token)
            try:
                resume, value = inner.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 - thrown into the step, which decides
                resume, value = inner.throw, error
