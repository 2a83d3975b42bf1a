"""Structured output: the three ways to request it from a model.

They are the function `final_answer`, a `response_format`, and a text in the instructions. `_run.typed_answers` chooses one.
"""

from __future__ import annotations

import functools
import json
from typing import Any, cast

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import shown
from aswarm._values.messages import FINAL_ANSWER
from aswarm._values.output import AnswerType

from .schema import FunctionSchema, map_schemas, without_titles
from .strict_schema import strict_parameters
from .tool import Tool, never_runs

_NAME = 40  # characters of the name of a type
JSON_OBJECT = {"type": "json_object"}


@functools.lru_cache(maxsize=128)
def answer_tool(answer: AnswerType) -> Tool[..., Any]:
    """Return the tool `final_answer`. Its arguments are the answer, which the run reads. Its function never runs.

    Raises ConfigurationError for a type that strict mode cannot express.
    """
    parameters = _schema(answer)
    about = parameters.pop("description", "")
    function: dict[str, Any] = {
        "name": FINAL_ANSWER,
        "description": f"Give the final answer.{' It is: ' if about else ''}{about}",
        "parameters": parameters,
    }
    if answer.strict:
        function["strict"] = True
    final_answer = Tool(never_runs, concurrent=True)
    schema = FunctionSchema(FINAL_ANSWER, {"type": "function", "function": function}, None, dict)
    final_answer.__dict__.update(_schema=schema, is_answer=True)
    return final_answer


@functools.lru_cache(maxsize=128)
def response_format(answer: AnswerType) -> dict[str, Any]:
    """Return the `response_format` that makes a server enforce the schema. Raises ConfigurationError like `answer_tool`."""
    name = "".join(character if character.isascii() and character.isalnum() else "_" for character in answer.name)
    named = {"name": name[:_NAME], "schema": _schema(answer), "strict": answer.strict}
    return {"type": "json_schema", "json_schema": named}


def schema_text(answer: AnswerType) -> str:
    """Return the text for the instructions. It describes the form of the answer."""
    form = "as JSON, with nothing before or after it. It must match this JSON schema:"
    if answer.allows_text:
        form = "as plain text, or as JSON that matches this JSON schema:"
    return f"Write your final answer {form}\n{json.dumps(_schema(answer), ensure_ascii=False)}"


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    # If the schema allowed additional properties, a server that enforces it would let the model write them without end.
    return {"additionalProperties": False, **schema} if "properties" in schema else schema


def _schema(answer: AnswerType) -> dict[str, Any]:
    schema = cast("dict[str, Any]", without_titles(answer.schema))
    if not answer.strict:
        return cast("dict[str, Any]", map_schemas(_closed, schema))
    try:
        if "properties" not in schema:
            raise ConfigurationError("it is a dict of any keys; use a model")
        return strict_parameters(FINAL_ANSWER, schema, set(schema.get("required", ())))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the output type {shown(answer.hint, 80)} cannot be used with strict=True: {error}"
        ) from error
