"""Tools: a function, its schema, and its options.

The module decides the name of a tool, whether the tool may run beside other tools, and whether it reads or writes the context.
It never runs a function. A schema is built once for each function and cached for the life of the function.
"""

# No `from __future__ import annotations`: the class Tool would then have `__annotations__`, and on Python 3.14 a tool
# would show them in place of the annotations of its function.

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

from aswarm._values.agent import Agent, Result
from aswarm._values.errors import ConfigurationError, Hold
from aswarm._values.json import is_object, shown

from .filled import Filled, filled_parameters
from .hints import EMPTY, annotations_of, has_code_flag, name_of
from .schema import FunctionSchema, ready_schema, schema_of

P = ParamSpec("P")
R = TypeVar("R")
# Gets the validated arguments and a read-only view of the context variables. Returns whether the call needs an approval; a
# str is the reason.
_Needed: TypeAlias = bool | str | Awaitable[bool | str]


class _TypedApproval(Protocol):
    """A function of an approval whose context has a type, or that has resources."""

    def __call__(self, arguments: dict[str, Any], context: Any, /, *args: Any, **kwargs: Any) -> _Needed: ...


Approval: TypeAlias = bool | Callable[[dict[str, Any], Mapping[str, Any]], _Needed] | _TypedApproval
NEEDS_APPROVAL = "needs approval"
RUNS_ELSEWHERE = "runs outside of this program"
_COPIED = (
    "__module__",
    "__qualname__",
    "__doc__",
)  # attributes of the function, as functools.update_wrapper copies them


class Limiter(Protocol):
    """The type of `@tool(limiter=…)`, for example an `anyio.CapacityLimiter`."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Wait for a token and give it to `borrower`."""
        ...

    def release_on_behalf_of(self, borrower: object) -> None:
        """Release the token of `borrower`."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function with the options of a tool. `@tool` and `function_tool` make it; calling it calls the function.

    Most fields are the options of `tool`. `parameters` and `description`: arguments of `function_tool`; None if they are read
    from the function. `is_external`: whether it has no function here, see `external_tool`. `origin`: the name of the program
    that provides the tool, for error texts; empty for a function of this program. `check_decision`: gets a call with its
    decision, and the earlier decisions; raises ConfigurationError if the decision does not suit the call.
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
    # Whether the tool is the handoff to an agent in `functions`.
    is_handoff: ClassVar[bool] = False
    # Whether its call is the answer of the run; see `answer_tool`.
    is_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # functools.update_wrapper would assign, which a frozen dataclass refuses.
        copied: dict[str, Any] = {key: getattr(self.function, key) for key in _COPIED if hasattr(self.function, key)}
        copied |= annotations_of(self.function)
        self.__dict__.update(copied, __name__=self.name or name_of(self.function), __wrapped__=self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> "Tool[..., R]":
        """Bind a tool in a class body like a method."""
        bind = getattr(self.function, "__get__", None)
        # On the class, a function binds to itself; a classmethod or staticmethod becomes callable.
        bound = self.function if bind is None else bind(instance, owner)
        return self if bound is self.function else dataclasses.replace(self, function=bound)

    @functools.cached_property
    def schema(self) -> FunctionSchema:
        """The schema of the function for the model, and the check of the arguments."""
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
        """The classes of results without a text form that were logged for this tool."""
        return set()

    @functools.cached_property
    def filled_by_approve(self) -> Filled | None:
        """The parameters of `approve` that the run fills; None if it only takes the context variables as a Mapping."""
        return filled_parameters(self.approve, 1) if callable(self.approve) else None

    @functools.cached_property
    def may_wait(self) -> bool:
        """Whether a call may wait for a decision: because of an option, a run inside it, or a Hold that its function raises."""
        if self.approve is not False or self.is_external or self.check_decision is not None:
            return True
        return names_hold(self.function)

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether a call returns a coroutine or an async generator. Other tools run in a thread."""
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
    """Make a tool of a function, with options. Without options, `@tool` and the bare function run in the same way.

        @tool(timeout=5, repeatable=True)
        async def search(query: str) -> list[str]: ...

    A hint that pydantic cannot describe raises ConfigurationError in the first run that offers the tool. In a bare function,
    it causes a warning, and the model is asked for a string.

    Args:
        function: The function.
        **options: These options:

            - `concurrent`: True runs its calls together with their neighbours, False runs each call alone. By default, an
              async function runs together with others unless it can write to the context variables, and a plain function runs
              alone.
            - `limiter`: An `anyio.CapacityLimiter` that bounds the calls of this tool, or of all tools with the same limiter,
              across all runs.
            - `timeout`: Seconds, from the moment when the limiter admits the call.
            - `thread`: False runs a plain function, which must never block, on the event loop.
            - `abandon_on_cancel`: True lets a cancelled run end without waiting for the plain function, which then works on a
              copy of the context.
            - `repeatable`: True if the function may run twice. An interrupted call then runs again when the run is resumed, or
              when a batch continues from its journal.
            - `polls`: True for a function that is called until something has changed. `Budget(repeats=...)` does not count it.
            - `strict`: True sends OpenAI's strict schema.
            - `approve`: True makes each call wait for the approval of a user; see `aswarm.waiting`. A plain or async function
              decides for each call: it gets the arguments (a dict) and the context variables (read-only), and returns
              whether the call needs an approval, or a str with the reason for the user. It runs on the event loop; the model
              gets its error.
            - `name`: The name for the model, in place of the function's name.

    Raises:
        ConfigurationError: For an option with a wrong value, such as a timeout that is not a positive number.
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
    """Return a tool with a ready schema, for example for a tool of another process, or a generated client.

    `parameters`: a JSON schema, `{"type": "object", "properties": {...}, ...}`. It is copied, and sent unchanged. The function
    gets the arguments from the model as keyword arguments, neither validated nor converted; if they do not fit the function,
    the model gets its TypeError. Only `context_variables` never comes from the model: a function with this parameter gets the
    context variables of the run. For the other options, see `@tool`.

    Raises ConfigurationError for a name that the API refuses, for parameters that are no JSON schema of an object, for
    a function that cannot be called, and as `@tool` does.
    """
    running: dict[str, Any] = {"concurrent": concurrent, "limiter": limiter, "timeout": timeout, "approve": approve}
    _check_options(running)
    if not callable(function):
        raise ConfigurationError(f"function_tool takes a function, not {function!r}")
    if not name:
        raise ConfigurationError("function_tool and external_tool need a name that is not empty")
    running |= {"thread": thread, "abandon_on_cancel": abandon_on_cancel, "repeatable": repeatable, "polls": polls}
    copied = _checked_parameters(name, parameters)
    made = Tool(function, name=name, description=description, parameters=copied, **running)
    _ = made.schema  # raises for a name that the API refuses
    return made


def external_tool(name: str, description: str, parameters: Mapping[str, Any]) -> Tool[..., Any]:
    """Return a tool that runs elsewhere: in a browser, behind a webhook, or by a person. Each call waits for its result.

    `parameters`: a JSON schema, as for `function_tool`. The arguments are not validated. Pass the result with
    `run(..., resume={id: "a text"})`, or `Answer(data)` for other JSON data.

        locate = external_tool("locate", "Where the user is.", {"type": "object", "properties": {}})

    Raises ConfigurationError for a name that the API refuses, and for parameters that are no JSON schema of an object.
    """
    made = function_tool(never_runs, name=name, description=description, parameters=parameters)
    return dataclasses.replace(made, is_external=True)


async def never_runs(**_: Any) -> None:
    """Do nothing. The placeholder for a tool without a function, such as an external tool."""


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
        raise ConfigurationError(f"limiter must be an anyio.CapacityLimiter, or have its methods, not {limiter!r}")
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
    """Return the function as a tool of the Chat Completions API. Equals Swarm's dict if Swarm supports the types.

    The result is `{"type": "function", "function": {"name", "description", "parameters"}}`, a new dict on each call.
    `context_variables` is hidden. Raises ConfigurationError for parameters that the API or the model cannot use: `*args`,
    positional-only parameters, refused names.
    """
    return cast("dict[str, Any]", json.loads(json.dumps(as_tool(function).schema.json)))


# Weak references, so that a schema is freed with its function. The keys are by id(), because a callable may be unhashable. The
# schema must not refer to the function: the reference would keep the entry alive.
_schemas: dict[object, tuple[weakref.ref[Any], FunctionSchema]] = {}


def _schema_once(function: Callable[..., Any], name: str | None, strict: bool) -> FunctionSchema:
    # A bound method is a new object on each look-up; only its function stays the same.
    owner: Any = function.__func__ if inspect.ismethod(function) else function
    key = (id(owner), owner is function, name, strict)
    cached = _schemas.get(key)
    if cached is not None and cached[0]() is owner:
        return cached[1]
    schema = schema_of(function, name=name, strict=strict)
    try:
        reference = weakref.ref(owner, lambda _: _schemas.pop(key, None))
    except TypeError:  # an instance with __slots__ and no __weakref__
        return schema
    _schemas[key] = (reference, schema)
    return schema


def as_tool(function: Any) -> Tool[..., Any]:
    """Return the function as a tool, or a tool unchanged. Raises ConfigurationError for an object that cannot be called."""
    if isinstance(function, Tool):
        return cast("Tool[..., Any]", function)
    if not callable(function):
        raise ConfigurationError(
            f"{function!r} cannot be used as a function of an agent; pass a callable, a tool made by @tool, or an Agent"
        )
    return Tool(function)


def is_async(function: Any) -> bool:
    """Return whether a call of the function returns a coroutine."""
    while isinstance(function, functools.partial | Tool):
        function = cast("Any", function.func if isinstance(function, functools.partial) else function.function)
    if isinstance(function, type):  # a call makes an instance, whose __call__ does not matter here
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - the method is needed


def takes_context(tool: Tool[..., Any]) -> bool:
    """Return whether the function has a parameter for the context variables."""
    filled = tool.schema.filled
    return filled is not None and filled.context is not None


class NeedsApproval(Hold):
    """The call waits because of `approve`. Its function has not asked a question, so it can only be approved or denied."""


def standing_hold(tool: Tool[..., Any]) -> Hold | None:
    """Return the Hold with which every call of the tool waits, or None."""
    if tool.is_external:
        return Hold(RUNS_ELSEWHERE)
    return NeedsApproval(NEEDS_APPROVAL) if tool.approve is True else None


def reads_context(tool: Tool[..., Any]) -> bool:
    """Return whether the function gets the context variables to read only: as a `Mapping`, or in a read-only type."""
    filled = tool.schema.filled
    return filled is not None and filled.is_read_only


def writes_context(tool: Tool[..., Any]) -> bool:
    """Return whether the function may write to the context variables: it gets them, and not to read only."""
    return takes_context(tool) and not reads_context(tool)


def names_hold(function: Any) -> bool:
    """Return whether the code of the function uses Hold, under any name, or a subclass of Hold."""
    while isinstance(function, functools.partial | Tool):
        function = cast("Any", function.func if isinstance(function, functools.partial) else function.function)
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__"):  # an instance with a method __call__
        function = getattr(function.__class__, "__call__", None)  # noqa: B004 - the method is needed
    code: Any = getattr(function, "__code__", None)
    if code is None:
        return False
    if "Hold" in (*code.co_names, *code.co_freevars):
        return True
    try:
        names = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # no function, or a name that has no value yet
        return False
    return any(
        isinstance(each, type) and issubclass(each, Hold)
        for each in [*names.nonlocals.values(), *names.globals.values()]
    )


def runs_together(tool: Tool[..., Any]) -> bool:
    """Return whether a call of this tool may run together with its neighbours."""
    if tool.concurrent is not None:
        return tool.concurrent
    return tool.is_async and not writes_context(tool)


def may_return_result(tool: Tool[..., Any]) -> bool:
    """Return whether the function may return a `Result`: its return hint allows one, or is missing."""
    return _admits(tool.schema.returns, Result)


def may_hand_off(tool: Tool[..., Any]) -> bool:
    """Return whether the function may return an agent or a `Result`: its return hint allows one, or is missing."""
    return _admits(tool.schema.returns, Agent) or may_return_result(tool)


def _admits(hint: Any, kind: type) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _admits(get_args(hint)[0], kind)
    if origin in (Union, types.UnionType) or (
        isinstance(origin, type) and issubclass(origin, Awaitable | AsyncIterable)
    ):
        return any(_admits(each, kind) for each in get_args(hint))
    if hint is None or origin is Literal:
        return False
    hint = get_origin(hint) or hint
    if hint is Any or hint is EMPTY or not isinstance(hint, type):
        return True  # no hint, or a hint without a class (a type variable, a NewType)
    try:
        return issubclass(kind, hint) or issubclass(hint, kind)
    except TypeError:  # a protocol that issubclass does not accept
        return True
