"""An outcome of `aswarm batch` as a line. Decides its form, and what an outcome is that has none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, cast

from aswarm._agent import Response
from aswarm._errors import RunError
from aswarm.batch import Outcome
from aswarm.cli._json_lines import plain

from ._records import Entry

FAILED = "error"


def written(outcome: Outcome, *, messages: bool) -> tuple[Outcome, bytes]:
    """The outcome, and its line, with or without `messages`. Where there is no JSON for it, it is a failure that says so.

    Functions may leave anything in the context variables: what is nested without end, what raises when it is shown.
    """
    try:
        return outcome, encoded(_fields(outcome, messages=messages))
    except Exception as error:  # noqa: BLE001 - one item never ends the others
        reason = f"what came of it cannot be written: {type(error).__name__}: {error}"
        failed = replace(outcome, response=None, error=RunError(reason))
        return failed, encoded(_fields(failed, messages=messages))


def _fields(outcome: Outcome, *, messages: bool) -> dict[str, Any]:
    entry = cast("Entry", outcome.metadata)
    found = outcome.response or getattr(outcome.error, "response", None) or Response()
    fields = {
        "id": entry.id,
        "status": status_of(outcome.response, outcome.error),
        "text": found.text,
        "agent": plain(found.agent),
        "usage": plain(outcome.usage),
        "attempts": outcome.attempts,
        "duration": round(outcome.duration, 3),
        "error": error_of(outcome.error),
        "metadata": plain(entry.metadata),
        "context_variables": plain(found.context_variables),
        "input_digest": entry.digest,
    }
    return {**fields, "messages": plain(found.messages)} if messages else fields


def status_of(response: Response | None, error: BaseException | None) -> str:
    """What an item came to: "answer", "refusal", "error", or why else its run ended ("max_turns")."""
    if error is not None or response is None:
        return FAILED
    refused = response.messages and response.messages[-1].get("refusal")
    return "refusal" if refused else response.stop


def error_of(error: BaseException | None) -> dict[str, Any] | None:
    """An error as an object: its type, its words, and what else is known of it."""
    if error is None:
        return None
    known = {name: getattr(error, name) for name in ("status_code", "retryable") if hasattr(error, name)}
    return {"type": type(error).__name__, "message": str(error), **known}


def encoded(fields: dict[str, Any]) -> bytes:
    """One line of JSON, in UTF-8; in ASCII where the text is none (half a surrogate pair)."""
    try:
        return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(fields).encode() + b"\n"


_ID = re.compile(rb'\{"id": ("([^"\\]|\\.)*("|\\?$)|-?\d*)')
_NEXT = b', "status": "'


def is_begun(line: bytes) -> bool:
    """Whether it is a line as `encoded` writes it, broken off before its end. What others have written is none."""
    known = _ID.match(line)
    if known is None:
        return b'{"id": '.startswith(line)
    rest = line[known.end() :]
    return rest[: len(_NEXT)] == _NEXT[: len(rest)] and not _is_json(line)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
