"""Tools: what a function is to the loop. How it may run beside others, what it is called with, what its result means.

Decides; never runs anything. A schema is built once per function and kept as long as the function lives.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import types
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
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

from ._agent import Agent, Result
from ._errors import ConfigurationError
from ._schema import FunctionSchema, name_of, schema_of

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
        if instance is None or bind is None:
            return self
        return dataclasses.replace(self, function=bind(instance, owner))

    @functools.cached_property
    def schema(self) -> FunctionSchema:
        """What the model sees, and the check of what it sends."""
        return schema_of(self.function, name=self.name, strict=self.strict)

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

    Raises ConfigurationError for a timeout that is not a positive number.
    """
    timeout = options.get("timeout")
    if timeout is not None and not timeout > 0:
        raise ConfigurationError(f"timeout is in seconds and must be positive, not {timeout!r}")
    if function is None:
        return functools.partial(_make_tool, options)
    return _make_tool(options, function)


def _make_tool(options: dict[str, Any], function: Callable[P, R]) -> Tool[P, R]:
    if isinstance(function, Tool):  # a second @tool adds to the first
        return dataclasses.replace(cast("Tool[P, R]", function), **options)
    return Tool(function, **options)


def function_to_json(function: Callable[..., Any]) -> dict[str, Any]:
    """The function as a tool of the Chat Completions API, exactly as Swarm gives it where Swarm could.

    Returns `{"type": "function", "function": {"name", "description", "parameters"}}`; the dict is the caller's own.
    `context_variables` is hidden. Raises ConfigurationError for what the API or the model could not use: `*args`,
    positional-only parameters, refused names.
    """
    return cast("dict[str, Any]", json.loads(json.dumps(_as_tool(function).schema.json)))


# Weak, so that a schema goes with its function. By identity, because a callable need not be hashable; the schema
# holds no reference to the function, or the entry would keep itself alive.
_schemas: dict[int, tuple[weakref.ref[Any], FunctionSchema]] = {}


def _schema_once(function: Callable[..., Any]) -> FunctionSchema:
    key = id(function)
    known = _schemas.get(key)
    if known is not None and known[0]() is function:
        return known[1]
    schema = schema_of(function)
    try:
        reference = weakref.ref(function, lambda _: _schemas.pop(key, None))
    except TypeError:  # an instance with __slots__ and no __weakref__
        return schema
    _schemas[key] = (reference, schema)
    return schema


def _as_tool(function: Any) -> Tool[..., Any]:
    if isinstance(function, Tool):
        return cast("Tool[..., Any]", function)
    if not callable(function):
        raise ConfigurationError(
            f"{function!r} cannot be offered as a function: expected a callable, something made by @tool, or an Agent"
        )
    made: Tool[..., Any] = Tool(function)
    made.__dict__["schema"] = _schema_once(function)
    return made


def is_async(function: Any) -> bool:
    """Whether calling the function gives a coroutine."""
    while isinstance(function, functools.partial | Tool):
        function = cast("Any", function.func if isinstance(function, functools.partial) else function.function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - asks what calling it does


# --- handoffs: an Agent among the functions ---------------------------------------------------------------------------


def _handoff(agent: Agent, number: int) -> Tool[[], Agent]:
    def transfer() -> Agent:
        return agent

    made = Tool(transfer, concurrent=True, thread=False)
    made.__dict__["schema"] = _handoff_schema(agent.name, number)
    return made


@functools.lru_cache(maxsize=1024)
def _handoff_schema(agent_name: str, number: int) -> FunctionSchema:
    def transfer() -> Agent: ...  # type: ignore[empty-body]  # only its signature is read

    transfer.__doc__ = f"Hand the conversation over to {agent_name}."
    return schema_of(transfer, name=f"transfer_to_{_slug(agent_name) or number}"[:64])


def _slug(agent_name: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "_", agent_name.lower()).strip("_")


# --- the tools of an agent --------------------------------------------------------------------------------------------


def toolbox(agent: Agent) -> dict[str, Tool[..., Any]]:
    """The tools of an agent by name, in the order in which they are listed.

    A function listed twice counts once; another agent is a handoff named `transfer_to_<name>`: lowercased, illegal
    runs as `_`, at most 64 characters, numbered where nothing is left. Raises ConfigurationError where two different
    functions have one name.
    """
    tools: dict[str, Tool[..., Any]] = {}
    for made in _distinct_tools(agent.functions):
        name = made.schema.name
        if name in tools:
            raise ConfigurationError(
                f"agent {agent.name!r} has two different functions named {name!r}; rename one, or use @tool(name=...)"
            )
        tools[name] = made
    return tools


def _distinct_tools(functions: Iterable[Any]) -> Iterator[Tool[..., Any]]:
    nameless = 0
    for function in _distinct(functions):
        if isinstance(function, Agent):
            nameless += not _slug(function.name)
            yield _handoff(function, nameless)
        else:
            yield _as_tool(function)


def _distinct(functions: Iterable[Any]) -> Iterator[Any]:
    seen: set[object] = set()
    for function in functions:
        # A bound method is a new object each time it is looked up; its equality is that of function and instance.
        identity = function if inspect.ismethod(function) else id(function)
        if identity not in seen:
            seen.add(identity)
            yield function


# --- how a tool may run -----------------------------------------------------------------------------------------------


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


def _is_related_to_result(kind: object) -> bool:
    if kind is _EMPTY or not isinstance(kind, type):
        return True  # nothing is said, or something (a type variable, a NewType) that does not tell
    try:
        return issubclass(Result, kind) or issubclass(kind, Result)
    except TypeError:  # a protocol that cannot be asked
        return True
