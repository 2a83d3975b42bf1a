"""An outcome of `aswarm batch` as a line of JSON. Decides its fields."""

from __future__ import annotations

import json
from typing import Any, cast

from aswarm._agent import Response
from aswarm._json import jsonable
from aswarm.batch import Outcome
from aswarm.batch._item import response_of
from aswarm.cli._output import output_of

from ._records import InputRecord

FAILED = "error"
LINE_START = b'{"id": '  # of every line; it tells a line that was cut off from a line of another kind of file


def line_of(outcome: Outcome, *, messages: bool) -> bytes:
    """The line of an outcome, with or without `messages`."""
    record = cast("InputRecord", outcome.metadata)
    found = response_of(outcome.response, outcome.error) or Response()
    fields = {
        "id": record.id,
        "status": status_of(outcome.response, outcome.error),
        "text": found.text,
        **({} if (output := output_of(found)) is None else {"output": output}),
        "agent": found.agent.name if found.agent else None,
        "usage": jsonable(outcome.usage),
        "attempts": outcome.attempts,
        "duration": round(outcome.duration, 3),
        "error": error_of(outcome.error),
        "unknown_calls": jsonable(outcome.unknown_calls),
        "waiting": jsonable(found.waiting),
        "metadata": jsonable(record.metadata),
        "context_variables": jsonable(found.context_variables),
        "input_digest": record.digest,
    }
    return encoded({**fields, "messages": jsonable(found.messages)} if messages else fields)


def status_of(response: Response | None, error: BaseException | None) -> str:
    """How an item ended: "answer", "refusal", "error", or another reason why its run stopped ("waiting", "max_turns", "budget")."""
    if error is not None or response is None:
        return FAILED
    refused = response.messages and response.messages[-1].get("refusal")
    return "refusal" if refused else response.stop


def error_of(error: BaseException | None) -> dict[str, Any] | None:
    """An error as an object: its type, its message, and for an error of the provider its status and whether to retry."""
    if error is None:
        return None
    known = {name: getattr(error, name) for name in ("status_code", "retryable") if hasattr(error, name)}
    return {"type": type(error).__name__, "message": str(error), **known}


def encoded(fields: dict[str, Any]) -> bytes:
    """One line of JSON in UTF-8; in ASCII where UTF-8 cannot hold the text (half a surrogate pair)."""
    try:
        return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(fields).encode() + b"\n"
