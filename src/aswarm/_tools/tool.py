"""Tools: a function, its schema, and how it may run.

Decides what a tool is called, whether it may run beside other tools, and whether it reads or writes the context. Never
runs a function. A schema is built once for each function and kept as long as the function lives.
"""

# No `from __future__ import annotations`: the class Tool would then have `__annotations__`, and on Python 3.14 a tool
# would show those in place of its function's.

import dataclasses
import functools
import inspect
import json
import types
import weakref
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

from aswarm._agent import Result
from aswarm._errors import ConfigurationError, Hold
from aswarm._json import is_object, shown

from .hints import annotations_of, has_code_flag, name_of
from .schema import FunctionSchema, ready_schema, schema_of

P = ParamSpec("P")
R = TypeVar("R")
# Gets the arguments, checked and converted, and the context variables to read. Tells whether the call needs an approval;
# a str is the reason.
Approval: TypeAlias = bool | Callable[[dict[str, Any], Mapping[str, Any]], bool | str | Awaitable[bool | str]]
NEEDS_APPROVAL = "needs approval"
RUNS_ELSEWHERE = "runs outside of this program"
_EMPTY = inspect.Parameter.empty
_COPIED = ("__module__", "__qualname__", "__doc__")  # of the function, as functools.update_wrapper copies them


class Limiter(Protocol):
    """What `@tool(limiter=…)` takes, for example an `anyio.CapacityLimiter`."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Wait for a token and give it to `borrower`."""
        ...

    def release_on_behalf_of(self, borrower: object) -> None:
        """Take the token of `borrower` back."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function and how it runs as a tool. `@tool` and `function_tool` make it; calling it calls the function.

    Most fields are the options of `tool`. `parameters` and `description` are those of `function_tool`; None where the
    function itself tells them. `is_external`: it has no function here, see `external_tool`. `origin`: the other program
    that it is of, for texts of errors; empty for a function of this one. `check_decision`: gets a call with its decision,
    and what earlier decisions have left; raises ConfigurationError if the call cannot take the decision.
    """

    function: Callable[P, R]
    concurrent: bool | None = None
    limiter: Limiter | None = None
    timeout: float | None = None
    thread: bool = True
    abandon_on_cancel: bool = False
    repeatable: bool = False
    polls: bool = False
    strict: bool = False
    approve: Approval = False
    name: str | None = None
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    is_external: bool = False
    check_decision: Callable[[Any, Any], None] | None = None
    origin: str = ""
    # Whether it stands for an agent in `functions`, and does nothing but return that agent.
    is_handoff: ClassVar[bool] = False
    # Whether a call of it is the answer of the run; see `answer_tool`.
    is_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # functools.update_wrapper would assign, which a frozen dataclass refuses.
        copied: dict[str, Any] = {key: getattr(self.function, key) for key in _COPIED if hasattr(self.function, key)}
        copied |= annotations_of(self.function)
        self.__dict__.update(copied, __name__=self.name or name_of(self.function), __wrapped__=self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, with nothing added."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> "Tool[..., R]":
        """A tool in a class body binds like a method."""
        bind = getattr(self.function, "__get__", None)
        # Looked up on the class, a function stays itself; a classmethod or staticmethod becomes callable.
        bound = self.function if bind is None else bind(instance, owner)
        return self if bound is self.function else dataclasses.replace(self, function=bound)

    @functools.cached_property
    def schema(self) -> FunctionSchema:
        """What the model sees of the function, and the check of the arguments that it sends."""
        if self.parameters is None:
            return _schema_once(self.function, self.name, self.strict)
        return ready_schema(
            self.function,
            name=self.name or name_of(self.function),
            description=self.description or "",
            parameters=self.parameters,
        )

    @functools.cached_property
    def classes_without_text(self) -> set[type]:
        """The classes of results without a text of their own that were logged for this tool."""
        return set()

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine or an async generator. A tool that gives neither runs in a thread."""
        return is_async(self.function) or has_code_flag(self.function, inspect.CO_ASYNC_GENERATOR)


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
    repeatable: bool = False,
    polls: bool = False,
    strict: bool = False,
    approve: Approval = False,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Say how a function runs as a tool. Without options, `@tool` and the bare function are the same.

        @tool(timeout=5, repeatable=True)
        async def search(query: str) -> list[str]: ...

    `concurrent`: True runs its calls together with their neighbours, False runs each alone. By default the signature
    decides: an async function runs together with others unless it can write to the context variables, and a plain function
    runs alone. `limiter`: an `anyio.CapacityLimiter` that bounds the calls of this tool, or of all tools with the same
    limiter, across all runs. `timeout`: in seconds, from the moment when the limiter admits the call. `thread=False`: a
    plain function that never blocks runs on the event loop. `abandon_on_cancel=True`: a cancelled run does not wait for the
    plain function, which then works on a copy of the context. `repeatable=True`: running the function twice does no harm,
    so a call that was cut in the middle runs again when the run is resumed, or when a batch continues from its journal.
    `polls=True`: the function is called until something has changed, so `Budget(repeats=...)` does not count its calls.
    `strict=True`: OpenAI's strict schema. `approve=True`: each call waits until a user has approved it; see
    `aswarm.waiting`. `approve` may also be a plain or async function. It gets the arguments (a dict) and the context
    variables (read-only), and returns whether this call needs an approval; a str is the reason that the user reads. It runs
    on the event loop, and the model is told if it raises. `name`: the name that the model sees instead of the function's.

    Raises ConfigurationError for a timeout that is not a positive number, and for a limiter of another kind.
    """
    _check_options(options)
    if function is None:
        return functools.partial(_make_tool, options)
    return _make_tool(options, function)


def function_tool(
    function: Callable[P, R],
    *,
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    concurrent: bool | None = None,
    limiter: Limiter | None = None,
    timeout: float | None = None,
    thread: bool = True,
    abandon_on_cancel: bool = False,
    repeatable: bool = False,
    polls: bool = False,
    approve: Approval = False,
) -> Tool[P, R]:
    """A tool whose schema is given, not read from the function: a tool of another process, a generated client.

    `parameters`: a JSON schema, `{"type": "object", "properties": {...}, ...}`. It is copied, and sent as it is. The
    function gets the arguments that the model sent as keyword arguments, neither checked nor converted; if they do not
    fit the function, its TypeError is told to the model. Only `context_variables` is never taken from the model: a
    function that has a parameter of that name gets the run's. The other options are those of `@tool`.

    Raises ConfigurationError for a name that the API refuses, for parameters that are no JSON schema of an object, for
    what cannot be called, and as `@tool` does.
    """
    running: dict[str, Any] = {"concurrent": concurrent, "limiter": limiter, "timeout": timeout, "approve": approve}
    _check_options(running)
    if not callable(function):
        raise ConfigurationError(f"function_tool takes a function, not {function!r}")
    running |= {"thread": thread, "abandon_on_cancel": abandon_on_cancel, "repeatable": repeatable, "polls": polls}
    copied = _checked_parameters(name, parameters)
    made = Tool(function, name=name, description=description, parameters=copied, **running)
    _ = made.schema  # raises for a name that the API refuses
    return made


def external_tool(name: str, description: str, parameters: Mapping[str, Any]) -> Tool[..., Any]:
    """A tool that runs elsewhere: in a browser, behind a webhook, or by a person. Each call of it waits.

    `parameters`: a JSON schema, as `function_tool` takes it. The arguments are not checked. The result comes with
    `run(..., resume={id: "a text"})`, or `Answer(data)` for other JSON data.

        locate = external_tool("locate", "Where the user is.", {"type": "object", "properties": {}})

    Raises ConfigurationError for a name that the API refuses, and for parameters that are no JSON schema of an object.
    """
    made = function_tool(_no_function, name=name, description=description, parameters=parameters)
    return dataclasses.replace(made, is_external=True)


async def _no_function(**_: Any) -> None:
    """Never called: each call of an external tool waits."""


def _checked_parameters(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if not is_object(parameters) or parameters.get("type") != "object":
        raise ConfigurationError(
            f"function {name!r}: parameters must be the JSON schema of an object, such as "
            f'{{"type": "object", "properties": {{}}}}, not {shown(parameters, 120)}'
        )
    try:
        return cast("dict[str, Any]", json.loads(json.dumps(dict(parameters), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"function {name!r}: parameters cannot be written as JSON: {error}") from error


def _check_options(options: Mapping[str, Any]) -> None:
    timeout = options.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ConfigurationError(f"timeout must be a positive number of seconds, not {timeout!r}")
    limiter = options.get("limiter")
    if limiter is not None and not callable(getattr(limiter, "acquire_on_behalf_of", None)):
        raise ConfigurationError(f"limiter must be an anyio.CapacityLimiter, or work like one, not {limiter!r}")
    approve = options.get("approve", False)
    if not (isinstance(approve, bool) or callable(approve)):
        raise ConfigurationError(
            f"approve must be True, False or a function of the arguments and the context, not {approve!r}"
        )


def _make_tool(options: dict[str, Any], function: Callable[P, R]) -> Tool[P, R]:
    if not (callable(function) or isinstance(function, classmethod)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"@tool takes a function, not {function!r}; write @tool(name=...) to give a name")
    if isinstance(function, Tool):  # a second @tool adds to the first
        return dataclasses.replace(cast("Tool[P, R]", function), **options)
    return Tool(function, **options)


def function_to_json(function: Callable[..., Any]) -> dict[str, Any]:
    """The function as a tool of the Chat Completions API. Where Swarm can express it, exactly Swarm's dict.

    Returns `{"type": "function", "function": {"name", "description", "parameters"}}`, a new dict on each call.
    `context_variables` is hidden. Raises ConfigurationError for what the API or the model cannot use: `*args`,
    positional-only parameters, refused names.
    """
    return cast("dict[str, Any]", json.loads(json.dumps(as_tool(function).schema.json)))


# Weak, so that a schema is freed with its function. By identity, because a callable need not be hashable. The schema
# holds no reference to the function, which would keep the entry alive.
_schemas: dict[object, tuple[weakref.ref[Any], FunctionSchema]] = {}


def _schema_once(function: Callable[..., Any], name: str | None = None, strict: bool = False) -> FunctionSchema:
    # A bound method is a new object on each look-up; only its function stays the same.
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
    """The function as a tool; a tool stays as it is. Raises ConfigurationError for what cannot be called."""
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
    if isinstance(function, type):  # calling a class makes an instance; the __call__ of instances says nothing here
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - the question is what calling it gives


def takes_context(tool: Tool[..., Any]) -> bool:
    """Whether the function wants the context variables."""
    return tool.schema.context_hint is not None


class NeedsApproval(Hold):
    """The call waits because of `approve`. Its function has asked nothing, so it can only be approved or denied."""


def standing_hold(tool: Tool[..., Any]) -> Hold | None:
    """Why every call of the tool waits for a decision, or None."""
    if tool.is_external:
        return Hold(RUNS_ELSEWHERE)
    return NeedsApproval(NEEDS_APPROVAL) if tool.approve is True else None


def reads_context(tool: Tool[..., Any]) -> bool:
    """Whether the function asks for the context variables as a `Mapping`: to read, not to write."""
    hint = tool.schema.context_hint
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return (get_origin(hint) or hint) in (Mapping, types.MappingProxyType)


def writes_context(tool: Tool[..., Any]) -> bool:
    """Whether the function may write to the context variables: it asks for them, and not as a `Mapping`."""
    return takes_context(tool) and not reads_context(tool)


def runs_together(tool: Tool[..., Any]) -> bool:
    """Whether a call of this tool may run together with its neighbours."""
    if tool.concurrent is not None:
        return tool.concurrent
    return tool.is_async and not writes_context(tool)


def may_return_result(tool: Tool[..., Any]) -> bool:
    """Whether it may return a `Result`, which can change the context: no return hint, or one that admits a `Result`."""
    return _admits_result(tool.schema.returns)


def _admits_result(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _admits_result(get_args(hint)[0])
    if origin in (Union, types.UnionType) or (
        isinstance(origin, type) and issubclass(origin, Awaitable | AsyncIterable)
    ):
        return any(map(_admits_result, get_args(hint)))
    if hint is None or origin is Literal:
        return False
    return _is_related_to_result(get_origin(hint) or hint)


def _is_related_to_result(kind: Any) -> bool:
    if kind is Any or kind is _EMPTY or not isinstance(kind, type):
        return True  # no hint, or one that leaves it open (a type variable, a NewType)
    try:
        return issubclass(Result, kind) or issubclass(kind, Result)
    except TypeError:  # a protocol that issubclass does not take
        return True
