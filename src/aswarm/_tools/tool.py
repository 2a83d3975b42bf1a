"""Tools: what a function is to the loop. How it may run beside others, what it is called with, what its result means.

Decides; never runs anything. A schema is built once per function and kept as long as the function lives.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import types
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

from aswarm._agent import Result
from aswarm._errors import ConfigurationError

from .hints import name_of
from .schema import FunctionSchema, schema_of

P = ParamSpec("P")
R = TypeVar("R")
_EMPTY = inspect.Parameter.empty
_LOOK = ("__module__", "__qualname__", "__doc__", "__annotations__")


class Limiter(Protocol):
    """What `@tool(limiter=…)` takes: `anyio.CapacityLimiter` is one."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Wait for a token and give it to `borrower`."""
        ...

    def release_on_behalf_of(self, borrower: object) -> None:
        """Take the token of `borrower` back."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function with the way it runs as a tool. Made by `@tool`; calling it calls the function."""

    function: Callable[P, R]
    concurrent: bool | None = None
    limiter: Limiter | None = None
    timeout: float | None = None
    thread: bool = True
    abandon_on_cancel: bool = False
    strict: bool = False
    name: str | None = None
    # Whether it does nothing but name an agent: what stands for an agent in `functions`.
    is_handoff: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # functools.update_wrapper would assign, which a frozen dataclass refuses.
        look: dict[str, Any] = {key: getattr(self.function, key) for key in _LOOK if hasattr(self.function, key)}
        self.__dict__.update(look, __name__=self.name or name_of(self.function), __wrapped__=self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, with nothing added."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        """A tool in a class body binds like a method."""
        bind = getattr(self.function, "__get__", None)
        # Looked up on the class, a function stays itself; a classmethod or staticmethod becomes callable.
        bound = self.function if bind is None else bind(instance, owner)
        return self if bound is self.function else dataclasses.replace(self, function=bound)

    @functools.cached_property
    def schema(self) -> FunctionSchema:
        """What the model sees, and the check of what it sends."""
        return _schema_once(self.function, self.name, self.strict)

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine, so that no thread is needed."""
        return is_async(self.function)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    concurrent: bool | None = None,
    limiter: Limiter | None = None,
    timeout: float | None = None,
    thread: bool = True,
    abandon_on_cancel: bool = False,
    strict: bool = False,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Say how a function runs as a tool; without options, `@tool` and the bare function are the same.

    `concurrent`: True or False overrides the rule of the concurrency table. `limiter`: an `anyio.CapacityLimiter` that
    bounds the calls of this tool, or of all tools that are given the same one, across all runs. `timeout`: seconds,
    from when the limiter let the call in. `thread=False`: a plain function that never blocks runs on the event loop.
    `abandon_on_cancel=True`: a cancelled run does not wait for the plain function, which then works on a copy of the
    context. `strict=True`: OpenAI's strict schema. `name`: the name for the model, where it is not the function's.

    Raises ConfigurationError for a timeout that is not a positive number, and for a limiter of another kind.
    """
    timeout = options.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ConfigurationError(f"timeout is in seconds and must be positive, not {timeout!r}")
    limiter = options.get("limiter")
    if limiter is not None and not callable(getattr(limiter, "acquire_on_behalf_of", None)):
        raise ConfigurationError(f"limiter must be an anyio.CapacityLimiter, or work like one, not {limiter!r}")
    if function is None:
        return functools.partial(_make_tool, options)
    return _make_tool(options, function)


def _make_tool(options: dict[str, Any], function: Callable[P, R]) -> Tool[P, R]:
    if not (callable(function) or isinstance(function, classmethod)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"@tool takes a function, not {function!r}; a name is given as @tool(name=...)")
    if isinstance(function, Tool):  # a second @tool adds to the first
        return dataclasses.replace(cast("Tool[P, R]", function), **options)
    return Tool(function, **options)


def function_to_json(function: Callable[..., Any]) -> dict[str, Any]:
    """The function as a tool of the Chat Completions API, exactly as Swarm gives it where Swarm could.

    Returns `{"type": "function", "function": {"name", "description", "parameters"}}`; the dict is the caller's own.
    `context_variables` is hidden. Raises ConfigurationError for what the API or the model could not use: `*args`,
    positional-only parameters, refused names.
    """
    return cast("dict[str, Any]", json.loads(json.dumps(as_tool(function).schema.json)))


# Weak, so that a schema goes with its function. By identity, because a callable need not be hashable; the schema
# holds no reference to the function, or the entry would keep itself alive.
_schemas: dict[object, tuple[weakref.ref[Any], FunctionSchema]] = {}


def _schema_once(function: Callable[..., Any], name: str | None = None, strict: bool = False) -> FunctionSchema:
    # A bound method is a new object each time it is looked up; what stays is its function.
    kept: Any = function.__func__ if inspect.ismethod(function) else function
    key = (id(kept), kept is function, name, strict)
    known = _schemas.get(key)
    if known is not None and known[0]() is kept:
        return known[1]
    schema = schema_of(function, name=name, strict=strict)
    try:
        reference = weakref.ref(kept, lambda _: _schemas.pop(key, None))
    except TypeError:  # an instance with __slots__ and no __weakref__
        return schema
    _schemas[key] = (reference, schema)
    return schema


def as_tool(function: Any) -> Tool[..., Any]:
    """The tool that a function is. Raises ConfigurationError for what cannot be called."""
    if isinstance(function, Tool):
        return cast("Tool[..., Any]", function)
    if not callable(function):
        raise ConfigurationError(
            f"{function!r} cannot be offered as a function: expected a callable, something made by @tool, or an Agent"
        )
    return Tool(function)


def is_async(function: Any) -> bool:
    """Whether calling the function gives a coroutine."""
    while isinstance(function, functools.partial | Tool):
        function = cast("Any", function.func if isinstance(function, functools.partial) else function.function)
    if isinstance(function, type):  # calling it makes an instance, whatever the instance's own __call__ is
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - asks what calling it does


def takes_context(tool: Tool[..., Any]) -> bool:
    """Whether the function wants the context variables."""
    return tool.schema.context_hint is not None


def reads_context(tool: Tool[..., Any]) -> bool:
    """Whether the context variables are asked for as a `Mapping`: to read, not to write."""
    hint = tool.schema.context_hint
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return (get_origin(hint) or hint) in (Mapping, types.MappingProxyType)


def writes_context(tool: Tool[..., Any]) -> bool:
    """Whether the function may write to the context variables: it asks for them, and not as a `Mapping`."""
    return takes_context(tool) and not reads_context(tool)


def runs_together(tool: Tool[..., Any]) -> bool:
    """Whether a call of this tool may run beside its neighbours (the table of the README)."""
    if tool.concurrent is not None:
        return tool.concurrent
    return tool.is_async and not writes_context(tool)


def may_return_result(tool: Tool[..., Any]) -> bool:
    """Whether it may return a `Result`, and with it change the context: no return hint, or one that admits it."""
    return _admits_result(tool.schema.returns)


def _admits_result(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _admits_result(get_args(hint)[0])
    if origin in (Union, types.UnionType) or (isinstance(origin, type) and issubclass(origin, Awaitable)):
        return any(map(_admits_result, get_args(hint)))
    if hint is None or origin is Literal:
        return False
    return _is_related_to_result(get_origin(hint) or hint)


def _is_related_to_result(kind: Any) -> bool:
    if kind is Any or kind is _EMPTY or not isinstance(kind, type):
        return True  # nothing is said, or something (a type variable, a NewType) that does not tell
    try:
        return issubclass(Result, kind) or issubclass(kind, Result)
    except TypeError:  # a protocol that cannot be asked
        return True
