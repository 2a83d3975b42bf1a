"""A wrapper of `create`, as instrumentation makes it."""

from __future__ import annotations

import types
from typing import Any

Seen = list[dict[str, Any]]


class FunctionLike:
    """A wrapper as wrapt makes them: isinstance takes it for a function, and it has the attributes of the function.

    OpenTelemetry, Traceloop, Datadog and New Relic patch methods with such wrappers.
    """

    def __init__(self, function: Any, seen: Seen, instance: Any = None) -> None:
        self.__wrapped__ = function
        self._seen = seen
        self._instance = instance

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return types.FunctionType

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __get__(self, instance: Any, owner: type) -> FunctionLike:
        return self if instance is None else FunctionLike(self.__wrapped__, self._seen, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._seen.append(kwargs)
        bound = args if self._instance is None else (self._instance, *args)
        return self.__wrapped__(*bound, **kwargs)
