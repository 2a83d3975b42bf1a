"""The values that users make and get: `Agent`, `Result`, `Response`.

They hold data and check its form. They never decide how a run goes. A run never writes to an agent.
"""

import copy
import difflib
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Self, TypeGuard, cast

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

from ._blocks import MessageBlock
from ._budget import Limit
from ._decisions import OpenCall
from ._errors import ConfigurationError, OutputError
from ._json import is_object, jsonable
from ._messages import Message, text_of
from ._output import Output, T, answer_type, as_output, read_answer
from ._usage import Usage

StopReason = Literal["answer", "max_turns", "tool_calls", "waiting", "budget", "cancelled", "error"]
TOOLBOX_SLOT = "_aswarm_toolbox"
Instructions = str | Callable[..., Any] | None


# The vendor's replacement for gpt-4o, which leaves the API on 2027-01-14 (developers.openai.com/api/docs/deprecations).
_DEFAULT_MODEL = "gpt-6-luna"


def default_model() -> str:
    """The model of agents that set none: OPENAI_DEFAULT_MODEL, or a current OpenAI model."""
    return os.environ.get("OPENAI_DEFAULT_MODEL", "").strip() or _DEFAULT_MODEL


class Agent(BaseModel):
    """Instructions and functions, under a name. One agent serves any number of runs at once.

        orders = Agent(name="Orders", instructions="Help with orders.", functions=[look_up_order])
        triage = Agent(name="Triage", instructions="Hand over to the right agent.", functions=[orders])

    `name`: the name in events, and in a handoff to it (`transfer_to_<name>`). `model`: by default that of the swarm.
    `instructions`: a str, or a plain or async callable that returns one. A callable that accepts an argument gets, by
    position, a `defaultdict(str)` copy of the context variables. A plain callable runs in a worker thread. `functions`:
    functions, coroutine functions, bound methods, partials, callables, what `@tool` made, and other agents (a ready handoff
    named `transfer_to_<name>`). May be changed after construction. `tool_choice`: as in the API; one that forces a call
    relaxes to "auto" once the agent has a tool result since the last user message. `parallel_tool_calls`: whether the model
    may call several functions in one turn; sent only with functions. `model_settings`: passed through to the request
    (`temperature`, `extra_headers`, `timeout`, …). `output`: the type of this agent's answers, or an `Output`; None for a
    text. `run(output=...)` wins over it. `history`: what this agent is sent of the history, a plain function of its blocks
    and the agent that returns the blocks to send; see `aswarm.conversations`. The record of a run stays whole.

    An unknown field is ignored, as in Swarm, with a warning that names the nearest field. A word of another library
    (`tools`, `handoffs`, `prompt`, `output_type`, …) is a ConfigurationError that names the word of this one.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())
    # The tools of the agent, made once. Neither a field nor a private attribute, so that copies and pickles leave it out.
    __slots__ = ("__weakref__", TOOLBOX_SLOT)

    name: str = "Agent"
    model: str = Field(default_factory=default_model)
    instructions: Instructions = "You are a helpful agent."
    functions: list[Any] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    model_settings: dict[str, Any] = {}
    output: Any = None
    history: Callable[[list[MessageBlock], "Agent"], Sequence[MessageBlock]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_fields(cls, values: object) -> object:
        if cls.model_config.get("extra", "ignore") == "ignore":
            known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
            for key in values if is_object(values) else ():
                if key not in known:
                    _report_unknown_field(cls, key)
        return values

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - of the instance, not of the class
        """The name of the handoff to this agent: an agent stands among functions, and code asks for their names."""
        return handoff_name(self.name)

    def __repr__(self) -> str:
        """Name, model and the names of the functions: agents may point at each other, so their fields are not shown."""
        names = ", ".join(repr(_shown_name(function)) for function in self.functions)
        return f"Agent(name={self.name!r}, model={self.model!r}, functions=[{names}])"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        """Field by field, as in Swarm; agents that point at each other are compared once."""
        return isinstance(other, Agent) and _same_agent(self, other, set())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """As pydantic does, but registers the copy before it copies the functions: agents may point at each other."""
        memo = {} if memo is None else memo
        made = memo[id(self)] = self.model_copy()
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - mutable, as in Swarm


def model_of(agent: Agent, default: str) -> str:
    """The model of the agent if it, or its class, sets one; else `default`."""
    own = type(agent).model_fields["model"].default_factory is not default_model
    return agent.model if own or "model" in agent.model_fields_set else default


def handoff_name(agent_name: str, number: int = 1) -> str:
    """`transfer_to_<name>`, with `number` where no character of the name is left that the API takes."""
    return f"transfer_to_{slug(agent_name) or number}"[:64]


def slug(agent_name: str) -> str:
    """The agent's name in lower case, with `_` for what the API does not take in the name of a function."""
    return re.sub(r"[^a-z0-9_-]+", "_", agent_name.lower()).strip("_")


_FUNCTIONS = "pass functions, and agents to hand off to, as functions=[...]"
_INSTRUCTIONS = "pass it as instructions=..."
_OUTPUT = "for an answer with a type, pass the type as output=..., and read `response.output`"
# Words of other libraries. An agent that ignored them would seem to work.
_OTHER_WORDS = {
    "tools": _FUNCTIONS,
    "handoffs": _FUNCTIONS,
    "prompt": _INSTRUCTIONS,
    "system_prompt": _INSTRUCTIONS,
    "system_message": _INSTRUCTIONS,
    "output_type": _OUTPUT,
    "response_format": _OUTPUT,
}


def _report_unknown_field(agent_type: type[Agent], key: str) -> None:
    if key in _OTHER_WORDS:
        raise ConfigurationError(f"Agent has no field {key!r}; {_OTHER_WORDS[key]}")
    known = list(agent_type.model_fields)
    near = ["instructions"] if key == "description" else difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; fields are {', '.join(agent_type.model_fields)}"
    # 1 is the warn call, 2 the validator, 3 pydantic's __init__, 4 the line that made the agent.
    warnings.warn(f"Agent has no field {key!r}, it is ignored{hint}", UserWarning, stacklevel=4)


def _shown_name(function: object) -> str:
    if isinstance(function, Agent):
        return function.name
    return str(getattr(function, "__name__", type(function).__name__))


def _same_agent(left: Agent, right: Agent, compared: set[tuple[int, int]]) -> bool:
    pair = (id(left), id(right))
    if left is right or pair in compared:
        return True
    compared.add(pair)
    if type(left) is not type(right) or len(left.functions) != len(right.functions):
        return False
    fields = [name for name in type(left).model_fields if name != "functions"]
    return all(getattr(left, name) == getattr(right, name) for name in fields) and all(
        _same_agent(a, b, compared) if isinstance(a, Agent) and isinstance(b, Agent) else a == b
        for a, b in zip(left.functions, right.functions, strict=True)
    )


class Result(BaseModel):
    """What a function may return to do several things at once.

    `value`: what the model is told, turned into text like any other return value. `agent`: the agent that takes over.
    `context_variables`: merged into the run's context variables.
    """

    value: Any = ""
    agent: Agent | None = None
    context_variables: dict[Any, Any] = {}


@dataclass(frozen=True, slots=True)
class UnknownCall:
    """A tool call that may have had its effect, or a part of it, or none: its function began, and how it ended is unknown.

    `id` and `name` are those of the call, `arguments` is its JSON text as the model sent it, and `agent` is the name of
    the agent that made the call.
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
    "cancelled": "it was left early",
    "error": "it ended with an error",
}


def _agent_or_none(given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return None if given is None else validate(given)


class Response(BaseModel, Generic[T]):  # noqa: PLW1641 - not hashable, as any model that may change
    """What a run left: always a valid history, however the run ended.

    `messages`: the messages made in this run, as plain dicts; append them to those passed in to continue. `agent`: the
    active agent, which every run sets. Its type says that it is an Agent, but in a `Response` that code made without an
    agent it is None: type checkers do not find `Response().agent.name`. `context_variables`: the context variables as they
    are now. `usage`: tokens, summed over the run. `stop`: why it ended: "answer", "max_turns", "tool_calls"
    (`execute_tools=False` left calls open), "waiting" (a call waits for a decision), "budget" (a limit of its `Budget` was
    reached), "cancelled" (left early), "error". `spent`: the limit that was reached, for example "tool_calls", or None.
    `run_id`: the id of the run; empty for a `Response` that no run made. `unknown_calls`: the calls of this run whose
    function began and that have no outcome, also if they are repeatable. They were cancelled in the middle, a journal has
    their start and not their end, or their function could not be stopped and may still be running. `waiting`: the open
    calls, which `run(..., resume={id: decision})` decides on.

    `model_dump()` has all fields but the `run_id`. In `model_dump_json()` and `model_dump(mode="json")` the agent is its
    name, bytes are base64, and any other value that JSON lacks is text. So no `Response` can be made from them, except without the agent: `model_dump_json(exclude={"agent"})`.
    """

    messages: list[Any] = []
    # Code that comes from Swarm makes a Response without an agent, and sets it later.
    agent: Annotated[Agent, WrapValidator(_agent_or_none)] = cast("Agent", None)
    context_variables: dict[Any, Any] = {}
    usage: Usage = Field(default_factory=Usage)
    stop: StopReason = "answer"
    run_id: str = Field(default="", exclude=True)
    unknown_calls: list[UnknownCall] = []
    waiting: list[OpenCall] = []
    spent: Limit | None = None
    # The type that the run was asked for. No field: it is in no dump, and does not count for equality.
    _asked: Output[Any] | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        """Equal fields, whatever the `run_id`."""
        if not isinstance(other, Response):
            return NotImplemented
        return {**self.__dict__, "run_id": ""} == {**other.__dict__, "run_id": ""}

    @field_serializer("agent", when_used="json")
    def _name_agent(self, agent: Agent | None) -> str | None:
        return None if agent is None else agent.name

    # The return types are for the JSON schema. Each list or dict that contains itself is text.
    @field_serializer("messages", when_used="json")
    def _messages_as_json(self, messages: Any) -> list[Any] | str:
        return cast("list[Any] | str", jsonable(messages))

    @field_serializer("context_variables", when_used="json")
    def _context_as_json(self, context: Any) -> dict[str, Any] | str:
        return cast("dict[str, Any] | str", jsonable(context))

    @field_serializer("unknown_calls", "waiting", when_used="json")
    def _calls_as_json(self, calls: list[Any]) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", jsonable(calls))

    @property
    def text(self) -> str:
        """The text of the last assistant message; empty where there is none."""
        messages: list[Message] = self.messages
        contents = (message.get("content") for message in reversed(messages) if message.get("role") == "assistant")
        return text_of(next(contents, None))

    @property
    def output(self) -> T:
        """The answer as an object of the type that was asked for, read from `messages` at each access.

        The type is that of `run(output=...)`, of `Response[Trip](messages=...)`, or of `agent`. Raises OutputError if the run
        stopped without an answer, and if the answer is not of the type; ConfigurationError if no type is known.
        """
        arguments: tuple[Any, ...] = self.__pydantic_generic_metadata__["args"]
        output = self._asked or (as_output(arguments[0]) if arguments else as_output(self.agent and self.agent.output))
        if output is None:
            raise ConfigurationError("no type of the answer is known; pass output=... to run() or to the agent")
        try:
            why = _WHY.get(self.stop, self.stop)
            if self.stop not in ("answer", "budget"):
                raise OutputError(f"the run stopped before it had an answer: {why}")
            try:
                return cast("T", read_answer(answer_type(output), self.messages))
            except OutputError as error:
                if self.stop == "answer":
                    raise
                raise OutputError(f"the run stopped before it had an answer: {why}") from error
        except OutputError as error:
            error.response = self
            raise


def as_response(value: object) -> Response | None:
    """The value if it is a Response, of whichever type its answer is; else None."""
    return value if _is_response(value) else None


def _is_response(
    value: object,
) -> TypeGuard[Response]:  # after a bare isinstance, pyright does not know the type of its answer
    return isinstance(value, Response)


def asked_for(response: Response, output: Output[Any]) -> Response:
    """The response, which now knows the type that its run was asked for."""
    response._asked = output  # noqa: SLF001 - of this module
    return response
