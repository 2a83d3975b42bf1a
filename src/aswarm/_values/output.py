"""`Output`: the type of an answer, and the conversion of a model's text to an object of this type.

The module checks whether a text is valid for a type, and describes the faults of an invalid text. `_run.typed_answers` adds
the type to the requests.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, SchemaError, from_json, to_json
from typing_extensions import TypedDict, TypeForm, TypeVar

from .errors import ConfigurationError, NotEncodable, OutputError, ToolArgumentsError, check_count
from .json import fault_of_json, faults_of, is_object, shown
from .messages import FINAL_ANSWER, Message, call_arguments, call_name, match_answers, text_of
from .public_names import explained
from .text import whole_escapes

T = TypeVar("T", default=Any)
T_co = TypeVar("T_co", default=Any, covariant=True)
OutputMode: TypeAlias = Literal["auto", "schema", "tool", "prompt"]
ACCEPTED = "accepted"  # the content of the tool message for a valid answer; a run has at most one
_MODES = get_args(OutputMode)
_LINE = 80  # the length of a type in an error text
_WRAPPED = "value"  # an answer that is not a JSON object is sent as {"value": ...}
_FENCE = "```"
# A text of JSON; group 1 is its end, if it has one. It has no possessive quantifiers, because those of Python before 3.11.5 fail:
# https://github.com/python/cpython/issues/106052
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*(?:(")|\\?\Z)', re.DOTALL)
# The escaped first half of a character at the end of a text, whose second half has not arrived completely.
_CUT_CHARACTER = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")


@explained
@dataclass(frozen=True)
class Output(Generic[T_co]):
    """Structured output: the type of an answer, for `Agent(output=...)` and `run(output=...)`.

    Args:
        type: Any type that pydantic can describe: a model, a dataclass, a TypedDict, `list[Trip]`, a union. If a union contains
            `str`, as in `Trip | str`, a plain text is also a valid answer. The run checks the type before the first request.
        mode: How the request asks for the type.

            - "schema": `response_format`, for an agent without functions.
            - "tool": a function `final_answer`, which the model calls with its answer.
            - "prompt": the JSON schema in the instructions; an agent without functions also sends `json_object`.
            - "auto": "tool" for an agent with functions or a union with `str`, otherwise "schema".
        retries: The number of retries in a run after an invalid answer. The model gets the faults, and answers again.
        strict: Whether to send OpenAI's strict schema.
        check: A plain or async function that gets the answer, on the event loop. The model gets the text of a ValueError or
            a ToolError that it raises; the result is not used, and False is a ConfigurationError. It may also have a parameter
            `context_variables`, which it only reads, and parameters with the hint `Resource[T]`. The run checks these parameters
            before the first request.

    Raises:
        ConfigurationError: For an invalid value.
    """

    type: Any
    _: KW_ONLY
    mode: OutputMode = "auto"
    retries: int = 1
    strict: bool = False
    check: Callable[Concatenate[Any, ...], object] | None = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            type: TypeForm[T_co],
            *,
            mode: OutputMode = "auto",
            retries: int = 1,
            strict: bool = False,
            check: Callable[[T_co], object] | Callable[Concatenate[T_co, ...], object] | None = None,
        ) -> None: ...

        @overload
        def __init__(
            self: Output[Any],
            type: Any,
            *,
            mode: OutputMode = "auto",
            retries: int = 1,
            strict: bool = False,
            check: Callable[Concatenate[Any, ...], object] | None = None,
        ) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ConfigurationError(f"the mode of an Output is one of {', '.join(_MODES)}, not {self.mode!r}")
        check_count("retries of an Output", self.retries, 0)
        if self.check is not None and not callable(self.check):  # pyright: ignore[reportUnnecessaryComparison] - a caller's value
            raise ConfigurationError(f"check of an Output must be a function of the answer, not {self.check!r}")
        try:
            answer_type(self)
        except NotEncodable as error:
            raise ConfigurationError(str(error)) from error.__cause__
        except ConfigurationError:  # the type may name a class that does not exist yet; the run checks it again
            pass


def as_output(output: Any) -> Output[Any] | None:
    """Return the argument `output=`, a type or an `Output`, as an `Output`. Return None for None."""
    if output is None:
        return None
    return output if isinstance(output, Output) else Output(output)  # pyright: ignore[reportUnknownVariableType]


# --- reading an answer ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class AnswerType:
    """The type of an answer: the schema for the model, and the conversion of the model's text.

    `hint`: the type in the `Output`. `name`: the name of the type.
    `schema`: the JSON schema of an object; None if the type is `str`.
    `allows_text`: whether any plain text is a valid answer.
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
        """Return the JSON text as an object of the type. Raises ToolArgumentsError with one line for each fault."""
        try:
            data = from_json(whole_escapes(text))
        except ValueError as error:
            raise ToolArgumentsError(f"the answer is not JSON: {error}; you sent {shown(text, 1000)}") from error
        try:
            # Validate as JSON: a pydantic model in strict mode accepts a str for a date only in JSON.
            return self._adapter.validate_json(to_json(self._unwrapped(data), inf_nan_mode="constants"))
        except ValidationError as error:
            raise ToolArgumentsError("\n".join(faults_of(error, "answer"))) from error

    def read_text(self, text: str) -> Any:
        """Return the text of an answer as an object of the type, or the text itself if the type allows it; see `read`."""
        if self.schema is None:
            return text
        try:
            return self.read(_without_fence(text))
        except ToolArgumentsError:
            if not self.allows_text:
                raise
            return text

    def partial(self, text: str, *, is_whole: bool) -> Any:
        """Return an unfinished answer as plain data, neither validated nor converted; None if it is empty.

        If the text is unfinished (not `is_whole`), a number at its end is omitted, because more digits may follow.
        """
        if self.schema is None:
            return text or None
        so_far = _without_fence(text)
        if not is_whole:
            so_far = _CUT_CHARACTER.sub("", so_far)
        try:
            so_far = whole_escapes(so_far)
            data = from_json(so_far if is_whole else _without_last_number(so_far), allow_partial="trailing-strings")
        except ValueError:
            return text if self.allows_text and text else None
        if self.allows_text and not is_object(data):
            return text  # a plain text such as "3 days", which starts like a JSON number
        return data.get(_WRAPPED) if self._is_wrapped and is_object(data) else data

    def _unwrapped(self, data: Any) -> Any:
        if self._is_wrapped:
            return data[_WRAPPED] if is_object(data) and list(data) == [_WRAPPED] else data
        if self._null_is_default and is_object(data):
            return {key: value for key, value in data.items() if value is not None or key not in self._null_is_default}
        return data


def answer_type(output: Output[Any]) -> AnswerType:
    """Return the type of the answer. Raises ConfigurationError for a type that pydantic cannot describe."""
    try:
        hash(output.type)
    except TypeError:  # a hint may contain any object, such as a Field
        return _make_answer_type(output.type, output.strict)
    return _cached_answer_type(output.type, output.strict)


def _make_answer_type(wanted: Any, strict: bool, /) -> AnswerType:
    members = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)
    others = tuple(member for member in members if member is not str)
    hint: Any = Union[others] if len(others) > 1 else others[0] if others else str  # noqa: UP007 - known only at run time
    adapter, schema, is_wrapped = _described(hint)
    required: Sequence[str] = schema.get("required", ())
    optional = [key for key in schema.get("properties", {}) if key not in required] if strict else []
    return AnswerType(
        wanted,
        strict,
        _name_of(wanted),
        schema if others else None,
        str in members,
        adapter,
        is_wrapped,
        # In strict mode the model must send all keys. So null stands for an omitted key, if the key does not allow null.
        frozenset(key for key in optional if b'"null"' not in to_json(schema["properties"][key])),
    )


def _name_of(wanted: Any) -> str:
    """Return the name of the type, without modules and without the metadata of `Annotated`."""
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return " | ".join(map(_name_of, get_args(wanted)))
    if origin is Annotated:
        return _name_of(get_args(wanted)[0])
    if origin is None:
        return "None" if wanted is types.NoneType else str(getattr(wanted, "__name__", wanted))
    text = str(wanted).removeprefix("typing.")
    return text if origin is Literal else re.sub(r"\b(?:\w+\.)+", "", text)


_cached_answer_type = lru_cache(maxsize=128)(_make_answer_type)


def _described(hint: Any) -> tuple[TypeAdapter[Any], dict[str, Any], bool]:
    # Without this check, pydantic would accept a function as a type, and `any` as Any.
    is_hint = isinstance(hint, type) or get_origin(hint) is not None
    if not (is_hint or type(cast("object", hint)).__module__ in ("typing", "typing_extensions")):
        raise ConfigurationError(
            f"output must be a type, such as a pydantic model, list[int] or a union A | B, or an Output, not {shown(hint, _LINE)}"
        )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
        schema = adapter.json_schema()
        if fault := fault_of_json(schema, "its schema"):
            raise NotEncodable(f"the output type {shown(hint, _LINE)} cannot be described to a model: {fault}")
        if schema.get("type") == "object":
            return adapter, schema, False
        make: Any = TypedDict  # its field is known only at run time, which type checkers do not accept
        return adapter, TypeAdapter(make("answer", {_WRAPPED: hint})).json_schema(), True
    except (PydanticUserError, SchemaError, TypeError, ValueError, NameError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        # pydantic raises this class for an enum or an extra key that is not JSON.
        kind = NotEncodable if isinstance(error, PydanticSerializationError) else ConfigurationError
        raise kind(f"the output type {shown(hint, _LINE)} cannot be described to a model: {reason}") from error


def _without_fence(text: str) -> str:
    """Return the text without a Markdown code fence. Models often write such a fence around JSON."""
    stripped = text.strip()
    return stripped.partition("\n")[2].removesuffix(_FENCE) if stripped.startswith(_FENCE) else text


def _without_last_number(text: str) -> str:
    shorter = text.rstrip("+-.0123456789Ee")
    ends_in_text = shorter != text and any(match[1] is None for match in _TEXT.finditer(shorter))
    return text if shorter == text or ends_in_text else shorter


# --- the answer in a history ------------------------------------------------------------------------------------------


def read_answer(answer: AnswerType, messages: Sequence[Message]) -> Any:
    """Return the answer at the end of the messages of a run. Raises OutputError if the answer does not have the type."""
    head = _last_answer(messages)
    if head is None:
        raise OutputError("there is no answer: no message is from the assistant")
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


def _accepted_arguments(calls: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> str | None:
    answers = [message for message in messages if message.get("role") == "tool"]
    for call, answer in zip(calls, match_answers(calls, answers), strict=True):
        if call_name(call) == FINAL_ANSWER and answer is not None and answer.get("content") == ACCEPTED:
            return call_arguments(call)
    return None


def answer_text(messages: Sequence[Message]) -> str:
    """Return the last answer as the model wrote it: the arguments of `final_answer`, or the text. Return "" without one."""
    head = _last_answer(messages)
    if head is None:
        return ""
    arguments = _accepted_arguments(messages[head].get("tool_calls") or (), messages[head + 1 :])
    return text_of(messages[head].get("content")) if arguments is None else arguments


def _last_answer(messages: Sequence[Message]) -> int | None:
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].get("role") == "assistant"), None)
