"""Typed events as JSON, one object on each line. Decides the form: the fields of the event, and its `type`."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, TextIO

from pydantic_core import to_jsonable_python

from aswarm._agent import Agent, Response
from aswarm._errors import AswarmError
from aswarm._events import Event, RunFinished
from aswarm._json import is_array, is_object

from ._output import write


class JsonLines:
    """Writes the events of a run. An agent is written as its name, an error as text, a `Response` as an object."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def show(self, event: Event) -> None:
        """Write one event."""
        fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
        write(self._stdout, _line(type(event).__name__, fields))

    def show_response(self, response: Response) -> None:
        """Write a run that was not streamed: its last event."""
        self.show(RunFinished(response))

    def show_failure(self, response: Response, error: BaseException, /) -> None:
        """Write the last line of a run that failed or was stopped, with what it has done until then."""
        known = ("status_code", "retryable")
        more = {name: getattr(error, name) for name in known if hasattr(error, name)}
        kind = "RunFailed" if isinstance(error, AswarmError) else "RunStopped"
        write(self._stdout, _line(kind, {"error": error, **more, "response": response}))


def _line(kind: str, fields: dict[str, Any]) -> str:
    values = {name: plain(value) for name, value in fields.items()}
    # ASCII does not depend on the output's encoding, and can carry half a surrogate pair.
    return json.dumps({"type": kind, **values}) + "\n"


def plain(value: Any) -> Any:
    """The value as JSON data: agents as their names, errors and values that JSON does not know as text."""
    match value:
        case Agent():
            return value.name
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case Response():
            fields = {name: getattr(value, name) for name in type(value).model_fields}
            return {**{name: plain(field) for name, field in fields.items()}, "text": value.text}
        case _:
            return _jsonable(value)


def _jsonable(value: Any) -> Any:
    try:
        return _finite(to_jsonable_python(value, fallback=str))
    except ValueError:  # a container that contains itself
        return str(value)


def _finite(value: Any) -> Any:
    """The value with infinities and NaN as text: JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if is_object(value):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if is_array(value) else value
