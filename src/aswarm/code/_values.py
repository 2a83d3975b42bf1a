"""The result of a call as a Python value of the code, and the result of the code as text. No I/O.

The code gets the value that the function returned, as JSON data. If a guard or another middleware has replaced the content of the
call, the code gets this content.
"""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from pydantic_core import from_json, to_jsonable_python

from aswarm._run.call import ToolCall
from aswarm._run.outcome import OutcomeInside, Returned, ToolOutcome, returned
from aswarm._values.content import described
from aswarm._values.json import finite, whole_characters
from aswarm._values.text import whole_escapes

# How a text becomes a value: it is a text; it is data, because the return hint excludes texts; the return hint allows both, so it
# is a text; or there is no hint, and it is data if it is an object or an array.
Reading: TypeAlias = Literal["text", "data", "both", "any"]
_CUT = "\n[cut off: {} of {} characters]"


def raises(call: ToolCall, outcome: ToolOutcome) -> bool:
    """Return whether the call raises in the code: it failed, or its function was not allowed to run."""
    if outcome.error is not None or outcome.unknown or outcome.still_running:
        return True
    return (
        not call.has_started and isinstance(outcome.content, str) and outcome.content.startswith(("not run", "stopped"))
    )


def value_for_record(reading: Reading, call: ToolCall, outcome: ToolOutcome) -> Returned | None:
    """Return the value that the code gets for the outcome of this run; None if the call raises in the code."""
    return None if raises(call, outcome) else final_value(reading, outcome)


def final_value(reading: Reading, outcome: ToolOutcome) -> Returned:
    """Return the value that the code gets for the outcome of a call that does not raise."""
    content, own = outcome.content, outcome.returned if isinstance(outcome, OutcomeInside) else None
    if own is not None and own.content == content:
        is_text = isinstance(own.value, str)
        if own.is_final or (is_text and reading in ("text", "both")) or (not is_text and reading != "text"):
            return replace(own, is_final=True)
    text = content if isinstance(content, str) else described(content)
    return returned(content, value_of(text, reading), is_final=True) or Returned(
        content, json.dumps(text), is_final=True
    )


def value_of(content: str | list[dict[str, Any]], reading: Reading) -> Any:
    """Return the content of a tool message as a value for the code."""
    text = content if isinstance(content, str) else described(content)
    if reading in ("text", "both") or (reading == "any" and text[:1] not in ("{", "[")):
        return text
    try:
        return from_json(whole_escapes(text))  # the sandbox has no halves of surrogate pairs
    except ValueError:
        return _literal(text) if reading == "data" else text


def _literal(text: str) -> Any:
    # A tuple, a set, None and the booleans have their Python form in a tool message.
    try:
        return ast.literal_eval(whole_escapes(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def arguments_text(arguments: dict[str, Any]) -> str:
    """Return the arguments of a call as JSON text. Raises ValueError for values without a JSON form."""
    try:
        return whole_characters(json.dumps(to_jsonable_python(arguments), ensure_ascii=False))
    except RecursionError as error:
        raise ValueError("they are nested too deeply") from error


def result_text(printed: str, value: Any, limit: int) -> str:
    """Return the result of the code for the model: the printed text, then the value of the last expression."""
    parts = [part for part in (printed.rstrip("\n"), "" if value is None else _text(value)) if part]
    return cut("\n".join(parts) or "(the code printed nothing, and its last line has no value)", limit)


def cut(text: str, limit: int) -> str:
    """Return the text with at most `limit` characters, and a note if it was longer."""
    return text if len(text) <= limit else text[:limit] + _CUT.format(limit, len(text))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(finite(to_jsonable_python(value, fallback=repr)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"(a value of the type {type(value).__name__}, which cannot be shown)"
