"""`Agent`, `Result` and `Response`.

These classes contain data and check it. A run never changes an agent.
"""

import copy
import difflib
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_serializer,
    model_validator,
)
from typing_extensions import TypeForm, TypeIs

from .budget import Limit
from .decisions import OpenCall, waiting_calls
from .errors import ConfigurationError, OutputError
from .hints import keep_local_names
from .json import is_array, is_object, jsonable
from .messages import Message, MessageBlock, text_of
from .output import Output, T_co, answer_type, as_output, read_answer
from .public_names import explained, hint
from .settings import check_settings
from .usage import Usage

C = TypeVar("C")
StopReason = Literal["answer", "max_turns", "tool_calls", "waiting", "budget", "cancelled", "error"]
"""The reason why a run stopped: `Response.stop`."""
TOOLBOX_SLOT = "_aswarm_toolbox"
Instructions = str | Callable[..., Any] | None


# OpenAI's replacement for gpt-4o, Swarm's default model. OpenAI removes gpt-4o from the API on 2027-01-14
# (developers.openai.com/api/docs/deprecations).
_DEFAULT_MODEL = "gpt-6-luna"


def default_model(given: object = None) -> str:
    """Return the model for agents without a model: the given name, OPENAI_DEFAULT_MODEL, or a current model of OpenAI."""
    return _model_name(given) or os.environ.get("OPENAI_DEFAULT_MODEL", "").strip() or _DEFAULT_MODEL


def _model_name(model: object) -> str:
    if model is not None and not isinstance(model, str):
        remedy = "pass a client, or a model for tests, to the swarm: AsyncSwarm(client)"
        raise ConfigurationError(f"model must be the name of a model, not {type(model).__name__}; {remedy}")
    return model or ""


if TYPE_CHECKING:

    class _AgentFields(TypedDict, total=False):
        name: str
        model: str
        instructions: Instructions
        functions: list[Any]
        tool_choice: str | dict[str, Any] | None
        parallel_tool_calls: bool
        model_settings: dict[str, Any]
        history: "Callable[[list[MessageBlock], Agent], Sequence[MessageBlock]] | None"

    class _TypedModel(BaseModel, Generic[T_co]): ...

else:

    class _UntypedModel(BaseModel):
        """Base class of `Agent`. `Agent[Trip]` is only a hint for type checkers: at run time it is `Agent` itself."""

        __slots__ = ()

        def __class_getitem__(cls, parameters):  # noqa: ANN001, ANN204 - type checkers do not see it
            has_own = cls.__pydantic_generic_metadata__["parameters"]  # a subclass of the user is generic
            return super().__class_getitem__(parameters) if has_own else cls

    _TypedModel = _UntypedModel


@explained
class Agent(_TypedModel[T_co]):
    """Instructions and functions, with a name. Any number of concurrent runs may use one agent.

        orders = Agent(name="Orders", instructions="Help with orders.", functions=[look_up_order])
        triage = Agent(name="Triage", instructions="Hand over to the right agent.", functions=[orders])

    As in Swarm, an unknown field is ignored; a warning names the most similar field. A well-known field of another library
    (`tools`, `handoffs`, `prompt`, `output_type`, …) raises a ConfigurationError, which names the field to use instead.

    Args:
        name: The name in events, and in a handoff to the agent (`transfer_to_<name>`).
        model: The model; by default the model of the swarm.
        instructions: A str, or a plain or async function that returns a str. If the function has a parameter, it gets a copy
            of the context variables, as a `defaultdict(str)`. A plain function runs in a worker thread.
        functions: Functions, coroutine functions, bound methods, partials, callables, tools, and other agents (as handoffs
            named `transfer_to_<name>`). The list may be changed later.
        tool_choice: As in the API. A choice that forces a call becomes "auto" after the first tool result of the agent, until
            the next message of the user.
        parallel_tool_calls: Whether the model may call several functions in one turn; sent only with functions.
        model_settings: Passed to the request (`temperature`, `extra_headers`, `timeout`, …).
        output: The type of this agent's answers, or an `Output`; None for a text. `run(output=...)` has priority.
        history: A plain function that selects the messages to send. It gets the history as blocks, and the agent, and returns
            the blocks to send; see `aswarm.conversations`. It does not change the recorded history.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())
    # A cache of the agent's tools. It is neither a field nor a private attribute, so copies and pickles do not contain it.
    __slots__ = ("__weakref__", TOOLBOX_SLOT)

    name: str = "Agent"
    model: str = Field(default_factory=default_model)
    instructions: Instructions = "You are a helpful agent."
    functions: list[Any] = []  # noqa: RUF012 - pydantic copies it
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    model_settings: dict[str, Any] = {}  # noqa: RUF012 - as above
    output: Any = None
    history: Callable[[list[MessageBlock], "Agent"], Sequence[MessageBlock]] | None = None

    if TYPE_CHECKING:

        @overload
        def __init__(self, *, output: TypeForm[T_co], **fields: Unpack[_AgentFields]) -> None: ...
        @overload
        def __init__(self, *, output: Output[T_co] | None = None, **fields: Unpack[_AgentFields]) -> None: ...
        def __init__(self, *, output: Any = None, **fields: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_fields(cls, values: object) -> object:
        given: Mapping[str, Any] = values if is_object(values) else {}
        if (
            type(model := given.get("model")).__module__ != "builtins"
        ):  # for the builtin types, pydantic names the field
            _model_name(model)
        functions = given.get("functions")
        if isinstance(functions, str) or callable(functions) or is_agent(functions):
            kind = type(functions).__name__
            raise ConfigurationError(f"functions of an Agent must be a list, not {kind}; write functions=[...]")
        for function in (given.get("instructions"), *(functions if is_array(functions) else ())):
            keep_local_names(function)
        if cls.model_config.get("extra", "ignore") == "ignore":
            known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
            for key in given:
                if key not in known:
                    _report_unknown_field(cls, key)
        return values

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.model_settings or self.tool_choice or not f"{self.name}{self.model}".isascii():
            check_settings(self.name, self.model, self.model_settings, self.tool_choice)
        if self.output is not None:
            as_output(self.output)  # raises for a schema that cannot be sent
        return self

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - of the instance, not of the class
        """The name of the handoff to this agent, for code that reads `__name__` of each item of `functions`."""
        return handoff_name(self.name)

    def __repr__(self) -> str:
        """Return name, model and the names of the functions. Nested agents are not shown, because they may form a cycle."""
        names = ", ".join(repr(_shown_name(function)) for function in self.functions)
        return f"Agent(name={self.name!r}, model={self.model!r}, functions=[{names}])"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        """Compare field by field, as Swarm does. In a cycle of agents, each pair is compared once."""
        return is_agent(other) and _same_agent(self, other, set())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Copy as pydantic does, but register the copy before its functions are copied, because agents may form a cycle."""
        memo = {} if memo is None else memo
        duplicate = memo[id(self)] = self.model_copy()
        vars(duplicate).update(copy.deepcopy(vars(self), memo))
        for name in ("__pydantic_extra__", "__pydantic_private__"):  # of a subclass
            object.__setattr__(duplicate, name, copy.deepcopy(getattr(self, name), memo))
        return duplicate

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - mutable, as in Swarm


def is_agent(value: object) -> TypeIs[Agent]:
    """Return whether the value is an Agent. Type checkers do not know the type of its answers after `isinstance`."""
    return isinstance(value, Agent)


def model_of(agent: Agent, default: str) -> str:
    """Return the model of the agent if the agent or its class sets one. Otherwise return `default`."""
    has_own_model = type(agent).model_fields["model"].default_factory is not default_model
    return agent.model if has_own_model or "model" in agent.model_fields_set else default


def handoff_name(agent_name: str, number: int = 1) -> str:
    """Return `transfer_to_<name>`. If the API accepts no character of the name, `number` replaces the name."""
    return f"transfer_to_{slug(agent_name) or number}"[:64]


def slug(agent_name: str) -> str:
    """Return the agent's name in lower case. `_` replaces characters that the API rejects in a function name."""
    return re.sub(r"[^a-z0-9_-]+", "_", agent_name.lower()).strip("_")


def _report_unknown_field(agent_type: type[Agent], key: str) -> None:
    if remedy := hint("Agent field", key):
        raise ConfigurationError(f"Agent has no field {key!r}{remedy}")
    fields = list(agent_type.model_fields)
    near = ["instructions"] if key == "description" else difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
    remedy = hint("Agent()", key) or (f"; did you mean {near[0]!r}?" if near else f"; fields are {', '.join(fields)}")
    # The levels of the stack: 1 this function, 2 the validator, 3 pydantic's __init__, 4 the wrapper of `explained`, 5 the line
    # that creates the agent.
    warnings.warn(f"Agent has no field {key!r}, it is ignored{remedy}", UserWarning, stacklevel=5)


def _shown_name(function: object) -> str:
    return function.name if is_agent(function) else str(getattr(function, "__name__", type(function).__name__))


def _same_agent(left: Agent, right: Agent, compared: set[tuple[int, int]]) -> bool:
    pair = (id(left), id(right))
    if left is right or pair in compared:
        return True
    compared.add(pair)
    if type(left) is not type(right) or len(left.functions) != len(right.functions):
        return False
    fields = [name for name in type(left).model_fields if name != "functions"]
    return all(getattr(left, name) == getattr(right, name) for name in fields) and all(
        _same_agent(a, b, compared) if is_agent(a) and is_agent(b) else a == b
        for a, b in zip(left.functions, right.functions, strict=True)
    )


@explained
class Result(BaseModel):
    """The return value of a function that also hands off, or changes the context variables.

    Args:
        value: The result for the model. It is converted to text like any other return value.
        agent: The next agent; None for no handoff.
        context_variables: The changes, which are merged into the context variables of the run.
    """

    value: Any = ""
    agent: Agent | None = None
    context_variables: dict[Any, Any] = {}


@dataclass(frozen=True, slots=True)
class UnknownCall:
    """A tool call with an unknown outcome. Its function has started, and may have had its full effect, a part of it, or none.

    Args:
        id: The id of the call.
        name: The name of the function.
        arguments: The JSON text, as the model sent it.
        agent: The name of the agent that made the call.
    """

    id: str
    name: str
    arguments: str
    agent: str


_WHY = {
    "max_turns": "it had made as many completions as max_turns allows",
    "tool_calls": "its calls were not executed (execute_tools=False)",
    "waiting": "a call waits for a decision",
    "budget": "its budget was used up",
    "cancelled": "it was closed or cancelled",
    "error": "it ended with an error",
}


def _agent_or_none(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    # An agent is not checked again: a response of a run must not fail.
    return check(value) if value is not None and not isinstance(value, Agent) else cast("Any", value)


@explained
class Response(BaseModel, Generic[T_co]):  # noqa: PLW1641 - mutable, so not hashable
    """The result of a run. Its history is always valid, even after an error or a cancellation.

    `model_dump()` has all fields except the `run_id`. `model_dump_json()` and `model_dump(mode="json")` write the agent as its
    name, bytes as base64, and any other value without a JSON form as text. To create a `Response` from the JSON later,
    exclude the agent: `model_dump_json(exclude={"agent"})`.

    Args:
        messages: The messages of this run, as plain dicts. To continue, append them to the messages that you passed.
        agent: The active agent. It is None only if your own code creates a `Response` without an agent. For convenience, the
            type hint has no None.
        context_variables: The current context variables.
        usage: The sum of the tokens of the run.
        stop: The reason why the run ended: "answer", "max_turns", "tool_calls" (calls are open because of
            `execute_tools=False`), "waiting" (a call waits for a decision), "budget" (a limit of its `Budget` was reached),
            "cancelled" (closed or cancelled), "error".
        run_id: The id of the run; empty for a `Response` that your own code creates.
        unknown_calls: The calls of this run whose function has started, but whose outcome is unknown. Either the call was
            cancelled, or its process stopped before the call ended, or its function could not be stopped and may still be
            running. Repeatable calls are included, and such calls inside code and inside the runs of agents as tools.
        open_calls: The calls without an answer. Pass the decisions on them as `run(..., resume={id: decision})`.
        spent: The limit of the `Budget` that was reached, for example "tool_calls", or None.
    """

    messages: list[Any] = []
    # Programs for Swarm create a Response without an agent, and set the agent later.
    agent: Annotated[Agent, WrapValidator(_agent_or_none)] = cast("Agent", None)
    context_variables: dict[Any, Any] = {}
    usage: Usage = Field(default_factory=Usage)
    stop: StopReason = "answer"
    run_id: str = Field(default="", exclude=True)
    unknown_calls: list[UnknownCall] = []
    open_calls: list[OpenCall] = []
    spent: Limit | None = None
    # The `output` of the run. It is not a field, so dumps do not contain it, and `==` ignores it.
    _output: Output[Any] | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        """Compare all fields except the `run_id`."""
        if not isinstance(other, Response):
            return NotImplemented
        return {**self.__dict__, "run_id": ""} == {**other.__dict__, "run_id": ""}

    @field_serializer("agent", when_used="json")
    def _name_agent(self, agent: Agent | None) -> str | None:
        return None if agent is None else agent.name

    # The return types are for the JSON schema. A list or dict that contains itself becomes text.
    @field_serializer("messages", when_used="json")
    def _messages_as_json(self, messages: Any) -> list[Any] | str:
        return cast("list[Any] | str", jsonable(messages))

    @field_serializer("context_variables", when_used="json")
    def _context_as_json(self, context: Any) -> dict[str, Any] | str:
        return cast("dict[str, Any] | str", jsonable(context))

    @field_serializer("unknown_calls", "open_calls", when_used="json")
    def _calls_as_json(self, calls: list[Any]) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", jsonable(calls))

    @property
    def text(self) -> str:
        """The text of the last assistant message; empty if there is none."""
        messages: list[Message] = self.messages
        contents = (message.get("content") for message in reversed(messages) if message.get("role") == "assistant")
        return text_of(next(contents, None))

    @property
    def cost(self) -> float | None:
        """The cost of the run in US dollars, or None if it is unknown; see `Usage.cost`."""
        return self.usage.cost

    @property
    def waiting(self) -> list[OpenCall]:
        """The open calls that wait for a person or another program: those with a `reason`."""
        return waiting_calls(self.open_calls)

    def to_dict(self) -> dict[str, Any]:
        """Return the response as JSON data, in the form of events and logs: the open calls are `waiting` there.

        It has the fields of `model_dump(mode="json")`, the `run_id` and the `text`.
        """
        dumped = self.model_dump(mode="json")
        waiting = dumped.pop("open_calls")
        return {**dumped, "waiting": waiting, "run_id": self.run_id, "text": jsonable(self.text)}

    def context_as(self, kind: type[C]) -> C:
        """Return the context variables as a TypedDict, a dataclass or a pydantic model.

        The value is the same as for a function with the parameter `context_variables: kind`. Raises ConfigurationError if the
        context variables do not fit the type, or if they cannot have this type.
        """
        return as_type(self.context_variables, kind)

    @property
    def output(self) -> T_co:
        """The typed answer, read from `messages` at each access.

        The type comes from `run(output=...)`, from `Response[Trip](messages=...)`, or from `agent`. Raises OutputError if the
        run stopped without an answer, or if the answer does not have this type. Raises ConfigurationError without a type.
        """
        arguments: tuple[Any, ...] = self.__pydantic_generic_metadata__["args"]
        output = self._output or (as_output(arguments[0]) if arguments else as_output(self.agent and self.agent.output))
        if output is None:
            raise ConfigurationError("the response has no output type; pass output=... to run() or to the agent")
        stopped = OutputError(f"the run stopped before it had an answer: {_WHY.get(self.stop, self.stop)}")
        stopped.response = self
        if self.stop not in ("answer", "budget"):
            raise stopped
        try:
            return cast("T_co", read_answer(answer_type(output), self.messages))
        except OutputError as error:
            error.response = self
            if self.stop == "answer":
                raise
            raise stopped from error


def as_type(context: Mapping[Any, Any], kind: type[C]) -> C:
    """Return the context variables as a value of this type; see `Response.context_as`."""
    from .context_types import context_type  # noqa: PLC0415 - only a program with a typed context needs it

    if (context_kind := context_type(kind)) is None:
        raise ConfigurationError(f"context_as takes a TypedDict, a dataclass or a pydantic model, not {kind!r}")
    return cast("C", context_kind.read(context))


def as_response(value: object) -> Response | None:
    """Return the value if it is a Response, or None. The type of its answer is not checked."""
    return value if isinstance(value, Response) else None  # pyright: ignore[reportUnknownVariableType] - the answer's type


def asked_for(response: Response, output: Output[Any]) -> Response:
    """Set the type of the answer on the response, and return the response."""
    response._output = output
    return response
