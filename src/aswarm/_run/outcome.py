"""The outcome of a tool call: the content for the model, the changes for the run, and the value for code. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic_core import from_json, to_jsonable_python

from aswarm._values.agent import Agent, Result
from aswarm._values.content import File, Image, described
from aswarm._values.errors import (
    AswarmError,
    ToolArgumentsError,
    ToolError,
    ToolNotFound,
    ToolTimeout,
    leaves_of,
    named,
)
from aswarm._values.json import is_array, sendable_data
from aswarm._values.messages import results_in_short

Content: TypeAlias = str | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call. `Response.unknown_calls` lists the calls with `still_running` or `unknown`.

    Args:
        content: The content of the tool message: a text, or a list of content parts.
        result: The handoff and the changes of the context variables; None if there is neither.
        error: The cause of a failure, or None.
        still_running: Whether the function continues to run, because it could not be stopped.
        unknown: Whether the function has started, in this process or an earlier one, and its outcome is unknown. If so,
            `content` must tell this to the model.

    In the content, a half of a surrogate pair becomes U+FFFD, because UTF-8 cannot encode it.
    """

    content: str | list[dict[str, Any]]
    result: Result | None = None
    error: Exception | None = None
    still_running: bool = field(default=False, kw_only=True)
    unknown: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        # Each result enters the run here: of a function, a middleware, a decision or a record.
        content = self.content
        if type(content) is str and content.isascii():
            return
        if (content := sendable_data(content)) is not self.content:
            object.__setattr__(self, "content", content)

    @property
    def agent(self) -> Agent | None:
        """The next agent of a handoff, or None."""
        return self.result.agent if self.result else None


@dataclass(frozen=True, slots=True)
class OutcomeInside(ToolOutcome):
    """The outcome of a call inside code. A middleware that replaces only the content keeps `returned`, and it then no longer holds."""

    returned: Returned | None = field(default=None, kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Returned:
    """The value that a call inside code returned. The content of a tool message is a text for the model, and code needs data.

    A text does not show whether a function returned None or "None". A record keeps the value, so a replay gives exactly the same
    value to the code.

    `content`: the content of its tool message. The value holds only for this content, because a guard may replace it.
    `json`: the value as JSON text, in which pydantic's parser also reads NaN and Infinity.
    `is_final`: whether this is exactly the value for the code. Otherwise a text may contain data, see `value_of` of code mode.
    """

    content: Content
    json: str
    is_final: bool = False

    @property
    def value(self) -> Any:
        """The value as JSON data."""
        return from_json(self.json)

    @property
    def recorded(self) -> str | Mapping[str, str]:
        """The value in a record, next to the content: "json" or "text" if the content gives the value."""
        if self.json == self.content:
            return "json"
        return "text" if self.json == _dumped(_as_text(self.content)) else {"json": self.json}

    @classmethod
    def from_record(cls, content: Content, recorded: str | Mapping[str, str]) -> Returned:
        """Return the value from its record. Raises KeyError, TypeError or ValueError for other data."""
        if isinstance(recorded, str):
            own = _as_text(content)
            text = {"json": own, "text": _dumped(own)}[recorded]
        else:
            text = recorded["json"]
        made = cls(content, text, is_final=True)
        _ = made.value
        return made


def returned(content: Content, value: object, *, is_final: bool = False) -> Returned | None:
    """Return the value of a function for code, or None if it has no JSON form: the code then gets the content.

    An iterator is not read, because it may never end.
    """
    own: Any = value.value if isinstance(value, Result) else value
    items: list[Any] = own if is_array(own) else [own]
    if isinstance(own, Agent | Iterator) or any(isinstance(item, Image | File) for item in items):
        return None
    try:
        made = Returned(content, _dumped(to_jsonable_python(own, fallback=str)), is_final)
        _ = made.value  # such as a text with half a surrogate pair
    except (ValueError, TypeError, RecursionError):
        return None
    return made


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_text(content: Content) -> str:
    return content if isinstance(content, str) else described(content)


def text_of_failure(error: BaseException) -> str:
    """Return the text for the model for the error of a call."""
    name = type(error).__name__
    try:
        if not isinstance(error, ToolError):
            # The error of a run that the function has started has the response of this run. A task group has several errors.
            responses = [each.response for each in leaves_of(error) if isinstance(each, AswarmError) and each.response]
            return f"Error: {named(error)}{results_in_short([m for each in responses for m in each.messages])}"
        is_of_aswarm = isinstance(error, ToolNotFound | ToolArgumentsError | ToolTimeout)
        return f"Error: {error}" if is_of_aswarm else str(error)
    except Exception:  # noqa: BLE001 - its __str__ raises, but the tool has failed anyway
        return f"Error: {name}"
