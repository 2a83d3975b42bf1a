"""How a model is asked for an answer of a type: a function that it calls, `response_format`, or a text.

Decides what the model is shown. Never decides which of the three is used.
"""

from __future__ import annotations

import functools
import json
from typing import Any, cast

from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object, shown
from aswarm._output import FINAL_ANSWER, AnswerType

from .schema import FunctionSchema, without_titles
from .strict_schema import strict_parameters
from .tool import Tool

_NAME = 40  # characters of the name of a type
_VALUES = ("default", "examples", "enum", "const")  # keywords that hold values, not schemas
JSON_OBJECT = {"type": "json_object"}


@functools.lru_cache(maxsize=128)
def answer_tool(answer: AnswerType) -> Tool[..., Any]:
    """The function `final_answer`, which takes the answer as its arguments. The run reads them; the function never runs.

    Raises ConfigurationError for what strict mode cannot express.
    """
    parameters = _schema(answer)
    about = parameters.pop("description", "")
    strict = {"strict": True} if answer.strict else {}
    function: dict[str, Any] = {
        "name": FINAL_ANSWER,
        "description": f"Give the final answer.{' It is: ' if about else ''}{about}",
        "parameters": parameters,
        **strict,
    }
    made = Tool(_never_runs, concurrent=True)
    schema = FunctionSchema(FINAL_ANSWER, {"type": "function", "function": function}, None, None, dict)
    made.__dict__.update(schema=schema, is_answer=True)
    return made


async def _never_runs(**_: Any) -> None: ...


@functools.lru_cache(maxsize=128)
def response_format(answer: AnswerType) -> dict[str, Any]:
    """The `response_format` that holds a server to the schema. Raises ConfigurationError as `answer_tool` does."""
    name = "".join(character if character.isascii() and character.isalnum() else "_" for character in answer.name)
    named = {"name": name[:_NAME], "schema": _schema(answer), "strict": answer.strict}
    return {"type": "json_schema", "json_schema": named}


def schema_text(answer: AnswerType) -> str:
    """What stands in the instructions: how to write the answer."""
    schema = json.dumps(_schema(answer), ensure_ascii=False)
    if answer.allows_text:
        return f"Write your final answer as plain text, or as JSON that matches this JSON schema:\n{schema}"
    return (
        "Write your final answer as JSON, with nothing before or after it. It must match this JSON schema:\n" + schema
    )


def _closed(schema: Any, *, named: bool = False) -> Any:
    """The schema with objects that have no further properties; with `named`, its keys are names.

    A server that holds a model to an open schema lets it invent properties without end.
    """
    if is_array(schema):
        return [_closed(item) for item in schema]
    if not is_object(schema):
        return schema
    closed = {
        key: value
        if key in _VALUES and not named
        else _closed(value, named=not named and key in ("properties", "$defs"))
        for key, value in schema.items()
    }
    return {"additionalProperties": False, **closed} if "properties" in closed and not named else closed


def _schema(answer: AnswerType) -> dict[str, Any]:
    schema = cast("dict[str, Any]", without_titles(answer.schema))
    if not answer.strict:
        return cast("dict[str, Any]", _closed(schema))
    try:
        if "properties" not in schema:
            raise ConfigurationError("it is a dict of any keys; use a model")
        return strict_parameters(FINAL_ANSWER, schema, set(schema.get("required", ())))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the output type {shown(answer.hint, 80)} cannot be used with strict=True: {error}"
        ) from error
