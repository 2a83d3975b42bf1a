"""An outcome of `aswarm batch` as a line. Decides its form."""

from __future__ import annotations

import json
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
