"""`Output`: the type that an answer must have, and how the text of a model is read as an object of that type.

Decides what a model may send for a type, and what is wrong with it. How a model is asked is decided in `_run.typed_answers`.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeGuard, Union, get_args, get_origin, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError, from_json, to_json
from typing_extensions import TypedDict, TypeVar

from ._errors import ConfigurationError, OutputError, ToolArgumentsError
from ._json import faults_of, is_count_from_0, is_object, shown
from ._messages import Message, call_arguments, call_name, match_answers, text_of

T = TypeVar("T", default=Any)
OutputMode: TypeAlias = Literal["auto", "schema", "tool", "prompt"]
FINAL_ANSWER = "final_answer"  # the function that a model calls with its answer
ACCEPTED = "accepted"  # the tool message of an accepted call; at most one in a run has it
_MODES = get_args(OutputMode)
_LINE = 80  # how much of a type an error message shows
_WRAPPED = "value"  # the only key of the object around a value that is no object
_FENCE = "```"


@dataclass(frozen=True)
class Output(Generic[T]):
    """The type of an answer, and how the model is asked for it. `Agent(output=...)` and `run(output=...)` take it.

    `type`: whatever pydantic can describe: a model, a dataclass, a TypedDict, `list[Trip]`, a union. Where `str` is a
    member of a union, as in `Trip | str`, a plain text is an answer too.

    `mode`: how the model is asked.
      - "schema": by `response_format`, for an agent without functions.
      - "tool": by a function `final_answer`, which the model calls with its answer.
      - "prompt": by the JSON schema in the instructions; an agent without functions also sends `json_object`.
      - "auto": "schema" for an agent without functions, else "tool". A union with `str` is always "tool".

    `retries`: how often in a run the model is told what is wrong with its answer and asked again. `strict=True`: OpenAI's
    strict schema. `check`: a plain function of the answer; the text of a ValueError that it raises is told to the model.
    It runs on the event loop.

    Raises ConfigurationError for a value that none of this describes. The type itself is checked before the first request.
    """

    type: Any
    mode: OutputMode = "auto"
    retries: int = 1
    strict: bool = False
    check: Callable[[Any], object] | None = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            type: builtins.type[T],
            mode: OutputMode = "auto",
            retries: int = 1,
            strict: bool = False,
            check: Callable[[T], object] | None = None,
        ) -> None: ...

        @overload
        def __init__(
            self: Output[Any],
            type: Any,
            mode: OutputMode = "auto",
            retries: int = 1,
            strict: bool = False,
            check: Callable[[Any], object] | None = None,
        ) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ConfigurationError(f"the mode of an Output is one of {', '.join(_MODES)}, not {self.mode!r}")
        if not is_count_from_0(self.retries):
            raise ConfigurationError(f"retries of an Output must be a whole number from 0, not {self.retries!r}")
        if self.check is not None and (not callable(self.check) or inspect.iscoroutinefunction(self.check)):
            raise ConfigurationError(f"check of an Output must be a plain function of the answer, not {self.check!r}")


def as_output(given: Any) -> Output[Any] | None:
    """What a caller passed as `output=`: a type becomes an `Output`, and None stays None."""
    if given is None:
        return None
    return given if _is_output(given) else Output(given)


def _is_output(given: object) -> TypeGuard[Output[Any]]:
    return isinstance(given, Output)


# --- reading an answer ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class AnswerType:
    """The type of an answer in the form that the model is shown, and the reader of what the model sends.

    `hint`: the type as it was given. `schema`: the JSON schema of an object; None if only a plain text is an answer. `name`: the name of the type.
    `allows_text`: any plain text is an answer.
    """

    hint: Any
    strict: bool
    name: str
    schema: dict[str, Any] | None
    allows_text: bool
    _adapter: TypeAdapter[Any]
    _is_wrapped: bool
    _null_is_default: frozenset[str]

    def read(self, text: str) -> Any:
        """The JSON text as an object of the type. Raises ToolArgumentsError with one line for each fault."""
        try:
            data = from_json(text)
        except ValueError as error:
            raise ToolArgumentsError(f"the answer is not JSON: {error}; you sent {shown(text, 1000)}") from error
        try:
            # Validated as JSON, which it was: a strict model takes a date from a str only there.
            return self._adapter.validate_json(to_json(self._unwrapped(data), inf_nan_mode="constants"))
        except ValidationError as error:
            raise ToolArgumentsError("\n".join(faults_of(error, "answer"))) from error

    def read_text(self, text: str) -> Any:
        """The text of an answer as an object of the type, or the text itself if the type allows that. Raises as `read`."""
        if self.schema is None:
            return text
        try:
            return self.read(_without_fence(text))
        except ToolArgumentsError:
            if not self.allows_text:
                raise
            return text

    def partial(self, text: str) -> Any:
        """The beginning of an answer as plain data, neither checked nor converted; None if there is nothing yet."""
        if self.schema is None:
            return text or None
        try:
            data = from_json(_without_fence(text), allow_partial="trailing-strings")
        except ValueError:
            return text if self.allows_text and text else None
        if self._is_wrapped and is_object(data):
            return data.get(_WRAPPED)
        return data

    def _unwrapped(self, data: Any) -> Any:
        if self._is_wrapped:
            return data[_WRAPPED] if is_object(data) and list(data) == [_WRAPPED] else data
        if self._null_is_default and is_object(data):
            return {key: value for key, value in data.items() if value is not None or key not in self._null_is_default}
        return data


def answer_type(output: Output[Any]) -> AnswerType:
    """The type of the answer. Raises ConfigurationError for a type that pydantic cannot describe."""
    try:
        hash(output.type)
    except TypeError:  # a hint may hold anything, such as a Field
        return _make_answer_type(output.type, output.strict)
    return _known_answer_type(output.type, output.strict)


def _make_answer_type(given: Any, strict: bool, /) -> AnswerType:
    members = get_args(given) if get_origin(given) in (Union, types.UnionType) else (given,)
    others = tuple(member for member in members if member is not str)
    hint: Any = Union[others] if len(others) > 1 else others[0] if others else str  # noqa: UP007 - known only at run time
    adapter, schema, is_wrapped = _described(hint)
    required: Sequence[str] = schema.get("required", ())
    optional = [key for key in schema.get("properties", {}) if key not in required] if strict else []
    return AnswerType(
        given,
        strict,
        given.__name__ if isinstance(given, type) else str(given),
        schema if others else None,
        str in members,
        adapter,
        is_wrapped,
        # In strict mode the model must send all of them.
        frozenset(key for key in optional if b'"null"' not in to_json(schema["properties"][key])),
    )


_known_answer_type = lru_cache(maxsize=128)(_make_answer_type)


def _described(hint: Any) -> tuple[TypeAdapter[Any], dict[str, Any], bool]:
    if not _is_hint(hint):
        raise ConfigurationError(
            f"output must be a type, such as a pydantic model or list[int], or an Output, not {shown(hint, _LINE)}"
        )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
        schema = adapter.json_schema()
        if schema.get("type") == "object":
            return adapter, schema, False
        make: Any = TypedDict  # its field is known only at run time, which type checkers do not accept
        return adapter, TypeAdapter(make("answer", {_WRAPPED: hint})).json_schema(), True
    except (PydanticUserError, SchemaError, TypeError, ValueError, NameError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(
            f"the output type {shown(hint, _LINE)} cannot be described to a model: {reason}"
        ) from error


def _is_hint(hint: Any) -> bool:
    # pydantic would describe a function by its parameters, and take `any` for Any.
    return isinstance(hint, type) or get_origin(hint) is not None or _module_of(hint) in ("typing", "typing_extensions")


def _module_of(value: object) -> str:
    return type(value).__module__


def _without_fence(text: str) -> str:
    """The text without the lines of a Markdown code block around it, as models like to write."""
    stripped = text.strip()
    if not stripped.startswith(_FENCE):
        return text
    return stripped.partition("\n")[2].removesuffix(_FENCE)


# --- the answer in a history ------------------------------------------------------------------------------------------


def read_answer(answer: AnswerType, messages: Sequence[Message]) -> Any:
    """The answer at the end of the messages of a run. Raises OutputError if it is not of the type."""
    head = _last_answer(messages)
    if head is None:
        raise OutputError("there is no answer: the messages have none of the assistant")
    message = messages[head]
    try:
        if calls := message.get("tool_calls"):
            arguments = _accepted_arguments(calls, messages[head + 1 :])
            if arguments is None:
                raise OutputError(f"there is no answer: the last message has calls, and no accepted {FINAL_ANSWER}")
            return answer.read(arguments or "{}")
        if refusal := message.get("refusal"):
            raise OutputError(f"the model refused to answer: {refusal}")
        return answer.read_text(text_of(message.get("content")))
    except ToolArgumentsError as error:
        raise OutputError(f"the answer is not of the type {answer.name}:\n{error}") from error


def _accepted_arguments(calls: Sequence[Mapping[str, Any]], answers: Sequence[Message]) -> str | None:
    given = [message for message in answers if message.get("role") == "tool"]
    for call, told in zip(calls, match_answers(calls, given), strict=True):
        if call_name(call) == FINAL_ANSWER and told is not None and told.get("content") == ACCEPTED:
            return call_arguments(call)
    return None


def answer_text(messages: Sequence[Message]) -> str:
    """The text of the last answer as the model wrote it, also if it is the arguments of a call; empty if there is none."""
    head = _last_answer(messages)
    if head is None:
        return ""
    arguments = _accepted_arguments(messages[head].get("tool_calls") or (), messages[head + 1 :])
    return text_of(messages[head].get("content")) if arguments is None else arguments


def _last_answer(messages: Sequence[Message]) -> int | None:
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].get("role") == "assistant"), None)
