"""Tools: a function, its schema, and its options.

The module decides whether a tool may run together with other tools, and whether it reads or writes the context variables. It
never runs a function. The schema of a function is created once, and cached as long as the function exists.
"""

# No `from __future__ import annotations`: it would give the class Tool `__annotations__`. On Python 3.14, a tool would then
# show these annotations instead of the annotations of its function.

import dataclasses
import functools
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import (
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    Protocol,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from aswarm._values.decisions import RUNS_ELSEWHERE
from aswarm._values.errors import ConfigurationError, Hold
from aswarm._values.hints import keep_local_names
from aswarm._values.json import fault_of_json, is_array, is_object, shown
from aswarm._values.public_names import call_of, explained, hint
from aswarm._values.settings import Limiter

from .effects import Effects, effects_of
from .filled import Filled, filled_parameters
from .hints import annotations_of, cached_by_function, has_code_flag, name_of
from .schema import FunctionSchema, ready_schema, schema_of


def check_names(options: Mapping[str, Any]) -> None:
    """Raise TypeError, which starts with Python's own text, for an option that `@tool` does not have."""
    _, *fields = (field.name for field in dataclasses.fields(Tool))
    names = fields[: fields.index("parameters")]
    for name in options:
        if name not in names:
            raise TypeError(
                f"tool() got an unexpected keyword argument {name!r}{hint('tool()', name)}; the options are {', '.join(names)}"
            )


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an option with a wrong value."""
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


P = ParamSpec("P")
R = TypeVar("R")
# A function gets the validated arguments and a read-only view of the context variables. It returns whether the call needs an
# approval. A str means yes, and is the reason.
_Needed: TypeAlias = bool | str | Awaitable[bool | str]


class _TypedApproval(Protocol):
    """A function for `approve` with typed context variables or with resources."""

    def __call__(self, arguments: dict[str, Any], context: Any, /, *args: Any, **kwargs: Any) -> _Needed: ...


Approval: TypeAlias = bool | Callable[[dict[str, Any], Mapping[str, Any]], _Needed] | _TypedApproval
"""The option `approve` of `@tool`: whether a call waits for an approval, or a function that decides for each call."""
NEEDS_APPROVAL = "needs approval"
_COPIED = ("__module__", "__qualname__", "__doc__")  # as functools.update_wrapper copies them


@dataclasses.dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function with the options of a tool, created by `@tool` or `function_tool`. A call of the tool calls the function.

    The fields up to `description` are the function and the options of `tool`. The other fields:

    `parameters`: the argument of `function_tool`; None if the schema comes from the function.
    `is_external`: whether the client executes the calls, see `external_tool`.
    `check_decision`, `version`: the arguments of `function_tool`.
    """

    function: Callable[P, R]
    _: dataclasses.KW_ONLY
    concurrent: bool | None = None
    limiter: Limiter | None = None
    timeout: float | None = None
    thread: bool = True
    abandon_on_cancel: bool = False
    repeatable: bool = False
    polls: bool = False
    strict: bool = False
    approve: Approval = False
    may_wait: bool = False
    private: bool = False
    defer: bool = False
    name: str | None = None
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    is_external: bool = False
    check_decision: Callable[[Any], None] | None = None
    version: Callable[[], str] | None = None
    # The name of the program that provides the tool, for error texts; empty for a function of this program.
    _origin: str = ""
    # Whether its function makes calls that the run records. So an interrupted call may run again.
    _is_replayed: bool = False
    # The tools that its function calls in the run.
    _inside: tuple[Any, ...] = ()  # `typing.get_type_hints` cannot read a `Tool[..., Any]` in quotes
    # Whether the tool is a handoff, made from an agent in `functions`.
    is_handoff: ClassVar[bool] = False
    # Whether the tool is `final_answer`; see `answer_tool`.
    is_answer: ClassVar[bool] = False
    # Whether the tool is `search_tools`; see `tool_search`. Its results are definitions, so nothing may shorten them.
    is_search: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.private and self.defer:
            raise ConfigurationError(
                "a tool with private=True cannot have defer=True: after a handoff, the history would show other agents its "
                "description; remove one of the two"
            )
        # functools.update_wrapper cannot be used, because a frozen dataclass does not allow assignments.
        copied: dict[str, Any] = {key: getattr(self.function, key) for key in _COPIED if hasattr(self.function, key)}
        copied |= annotations_of(self.function)
        keep_local_names(self.function)
        self.__dict__.update(copied, __name__=self.name or name_of(self.function), __wrapped__=self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> "Tool[..., R]":
        """Bind a tool in a class body like a method."""
        bind = getattr(self.function, "__get__", None)
        # On the class, `__get__` of a plain function returns the function. A classmethod or a staticmethod becomes callable.
        bound = self.function if bind is None else bind(instance, owner)
        return self if bound is self.function else dataclasses.replace(self, function=bound)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle a tool of a module by its name, as Python pickles functions. Any other tool is pickled by its fields."""
        path = str(getattr(self, "__qualname__", ""))  # a callable object has none
        target: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            target = getattr(target, name, None)
        return path if target is self else super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached properties, because not all of them can be pickled."""
        cached = functools.cached_property
        return {
            name: value for name, value in vars(self).items() if not isinstance(getattr(type(self), name, 0), cached)
        }

    @functools.cached_property
    def _schema(self) -> FunctionSchema:
        if self.parameters is None:
            options: dict[str, Any] = {"name": self.name, "description": self.description, "strict": self.strict}
            make = functools.partial(schema_of, self.function, **options)
            return cached_by_function(self.function, ("schema", *options.values()), make)
        return ready_schema(
            self.function,
            name=self.name or name_of(self.function),
            description=self.description or "",
            parameters=self.parameters,
        )

    @functools.cached_property
    def _logged(self) -> set[object]:
        """The faults of this tool that are already logged: classes without a text form, and the limit of a step's seconds."""
        return set()

    @functools.cached_property
    def _filled_by_approve(self) -> Filled | None:
        """The parameters of `approve` that the run fills; None if it only takes the context variables as a Mapping."""
        return filled_parameters(self.approve, 1) if callable(self.approve) else None

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether a call returns a coroutine or an async generator. Other tools run in a thread."""
        return is_async(self.function) or has_code_flag(self.function, inspect.CO_ASYNC_GENERATOR)

    @functools.cached_property
    def effects(self) -> Effects:
        """What a call may do: run together with other calls, change the context variables, hand off, wait."""
        return effects_of(
            self._schema.returns,
            self._schema.filled,
            is_async=self.is_async,
            concurrent=self.concurrent,
            approves=callable(self.approve),
            may_wait=self.may_wait or self.approve is not False or self.is_external,
        )

    @property
    def schema(self) -> Mapping[str, Any]:
        """The tool for the model, in the form of Chat Completions; do not change it. `function_to_json` returns a copy."""
        return self._schema.json

    @property
    def returns(self) -> object:
        """The return hint of the function, or `inspect.Parameter.empty`."""
        return self._schema.returns

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a model, checked and converted. Raises ToolArgumentsError."""
        return self._schema.validate(arguments)


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
    may_wait: bool = False,
    private: bool = False,
    defer: bool = False,
    name: str | None = None,
    description: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Create a tool from a function, with options. Without options, a tool runs like the bare function.

        @tool(timeout=5, repeatable=True)
        async def search(query: str) -> list[str]: ...

    One difference: if pydantic cannot describe a hint of the function, a tool raises ConfigurationError in its first run. A
    bare function causes a warning, and the model is asked for a string.

    Args:
        function: The function.
        **options: These options:

            - `concurrent`: True: a call runs together with the calls before and after it. False: each call runs alone. By
              default, an async function runs together with others if it cannot write to the context variables. A plain
              function runs alone.
            - `limiter`: An `anyio.CapacityLimiter`. It limits the concurrent calls of all tools with this limiter, across all
              runs.
            - `timeout`: Seconds. They start after the limiter has admitted the call.
            - `thread`: False: a plain function runs on the event loop, so it must never block.
            - `abandon_on_cancel`: True: a cancelled run does not wait for the end of a plain function. The function gets a copy
              of the context variables.
            - `repeatable`: True if the function may run twice. If the call was interrupted, it runs again when the run is
              resumed, or when a batch continues from its journal.
            - `polls`: True for a function that is called until something has changed. `Budget(repeats=...)` does not count it.
            - `strict`: True: send OpenAI's strict schema.
            - `approve`: True: each call waits for the approval of a user; see `aswarm.open_calls`. Or a plain or async function,
              which decides for each call. It gets the arguments (a dict) and the context variables (read-only). It returns
              whether the call needs an approval; a str means yes, and is the reason for the user. It runs on the event loop.
              If it raises, the model gets the error.
            - `may_wait`: True if the function may raise `Hold`. A function whose calls run together with other calls must
              declare it, because a later call that could see or change the same things then waits too. A function whose
              calls run alone needs no declaration.
            - `private`: True: only the agents that list the tool may send its description. `keep_prefix` refuses such a tool.
            - `defer`: True: the requests do not have the tool, and the model finds it with `search_tools`; see `tool_search`.
            - `name`: The name for the model, instead of the function's name.
            - `description`: The description for the model, instead of the docstring.

    Raises:
        TypeError: For an unknown option.
        ConfigurationError: For an option with a wrong value, such as a timeout that is not a positive number.
    """
    check_names(options)
    check_options(options)
    if function is None:
        return functools.partial(_make_tool, options)
    return _make_tool(options, function)


@explained
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
    may_wait: bool = False,
    defer: bool = False,
    check_decision: Callable[[Any], None] | None = None,
    version: Callable[[], str] | None = None,
) -> Tool[P, R]:
    """Return a tool with your own JSON schema, for example for a tool of another process, or a generated client.

    `parameters`: a JSON schema, `{"type": "object", "properties": {...}, ...}`. It is copied, and sent unchanged. The function
    gets the arguments from the model as keyword arguments, neither validated nor converted. If they do not fit the function,
    the model gets the TypeError. A parameter `context_variables` never comes from the model: it gets the context variables of
    the run. `check_decision`: gets each `ToolCall` with a decision of a user on a call that has waited, and raises
    ConfigurationError if `call.decision` does not suit the call; no call runs before. `version`: returns the current version of
    the tool, any text. If it is another one when a user decides on a waiting call, the call does not run, and asks for an
    approval again. For the other options, see `@tool`.

    Raises ConfigurationError if the API rejects the name, if `parameters` is not the JSON schema of an object, if the function
    cannot be called, or for a wrong option.
    """
    running: dict[str, Any] = {"concurrent": concurrent, "limiter": limiter, "timeout": timeout, "approve": approve}
    check_options(running)
    if not callable(function):
        raise ConfigurationError(f"function_tool takes a function, not {function!r}")
    if not name:
        raise ConfigurationError("function_tool and external_tool need a name that is not empty")
    running |= {"thread": thread, "abandon_on_cancel": abandon_on_cancel, "repeatable": repeatable, "polls": polls}
    running |= {"may_wait": may_wait, "defer": defer, "check_decision": check_decision, "version": version}
    copied = _checked_parameters(name, parameters)
    created = Tool(function, name=name, description=description, parameters=copied, **running)
    _ = created._schema  # raises for a name that the API refuses
    return created


def external_tool(*, name: str, description: str, parameters: Mapping[str, Any]) -> Tool[..., Any]:
    """Return a tool without a function. A browser, a webhook or a person executes its calls, and each call waits for the result.

    `parameters`: a JSON schema, as for `function_tool`. The arguments are not validated. Pass the result with
    `run(..., resume={id: "a text"})`, or `Reply(data)` for other JSON data.

        nothing = {"type": "object", "properties": {}}
        locate = external_tool(name="locate", description="Where the user is.", parameters=nothing)

    Raises ConfigurationError if the API rejects the name, or if `parameters` is not the JSON schema of an object.
    """
    placeholder = function_tool(never_runs, name=name, description=description, parameters=parameters)
    return dataclasses.replace(placeholder, is_external=True)


async def never_runs(**_: Any) -> None:
    """Do nothing. The placeholder for a tool without a function, such as an external tool."""


def _checked_parameters(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if not is_object(parameters) or parameters.get("type") != "object":
        raise ConfigurationError(
            f"function {name!r}: parameters must be the JSON schema of an object, such as "
            f'{{"type": "object", "properties": {{}}}}, not {shown(parameters, 120)}'
        )
    if fault := fault_of_json(parameters, "parameters"):
        raise ConfigurationError(f"function {name!r}: the schema cannot be written as JSON: {fault}")
    return cast("dict[str, Any]", json.loads(json.dumps(dict(parameters), default=dict)))


def _make_tool(options: dict[str, Any], function: Callable[P, R]) -> Tool[P, R]:
    if not (callable(function) or isinstance(function, classmethod)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"@tool takes a function, not {function!r}; write @tool(name=...) to give a name")
    if isinstance(function, Tool):  # a second @tool adds its options to the tool
        return dataclasses.replace(cast("Tool[P, R]", function), **options)
    return Tool(function, **options)


def function_to_json(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the function as a tool of the Chat Completions API. For types that Swarm supports, the dict equals Swarm's.

    The result is `{"type": "function", "function": {"name", "description", "parameters"}}`, a new dict on each call. It does
    not contain the parameter `context_variables`. Raises ConfigurationError for parameters that the API or the model cannot
    use: `*args`, positional-only parameters, rejected names.
    """
    return cast("dict[str, Any]", json.loads(json.dumps(as_tool(function)._schema.json)))


def as_tool(function: Any) -> Tool[..., Any]:
    """Return the function as a tool. Return a tool unchanged. Raises ConfigurationError for an object that is not callable."""
    if isinstance(function, Tool):
        return cast("Tool[..., Any]", function)
    if not callable(function) or call_of(function):
        raise ConfigurationError(f"{shown(function, 80)} cannot be used as a function of an agent; {_remedy(function)}")
    return Tool(function)


def _remedy(value: object) -> str:
    if call := call_of(value):
        return f"call it: {call}"
    if is_array(value):
        return "unpack it: functions=[*functions]"
    if hasattr(type(value), "add_to"):  # `Skills` also have a text for the instructions
        return "call its method add_to(agent)"
    if hasattr(type(value), "functions"):  # an `MCPServer`
        return "unpack its functions: functions=[*server.functions]"
    return "pass a callable, a tool made by @tool, or an Agent"


def is_async(function: Any) -> bool:
    """Return whether a call of the function returns a coroutine."""
    while isinstance(function, functools.partial | Tool):
        function = cast("Any", function.func if isinstance(function, functools.partial) else function.function)
    if isinstance(function, type):  # a call of a class creates an instance; the `__call__` of instances does not matter
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - the method is needed


class NeedsApproval(Hold):
    """The call waits because of `approve`. No function has asked a question, so the user can only approve or deny the call."""


def standing_hold(tool: Tool[..., Any]) -> Hold | None:
    """Return the Hold for the calls of the tool if all of them wait. Otherwise return None."""
    if tool.is_external:
        return Hold(RUNS_ELSEWHERE)
    return NeedsApproval(NEEDS_APPROVAL) if tool.approve is True else None
