"""An outcome of `aswarm batch` as a line. Decides its form."""

from __future__ import annotations

import json
import re
from typing import Any

from aswarm._agent import Response

FAILED = "error"


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
