"""The texts of usage, answers and calls in a chat.

A text of a model or a tool must not control the terminal, so functions of `aswarm._values.text` make it safe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

from aswarm._values.json import is_object
from aswarm._values.messages import call_input, call_name, text_of
from aswarm._values.text import clean, counted, one_line
from aswarm._values.usage import Usage

BANNER = "Starting Swarm CLI ~~~~:>"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal. None is not a terminal."""
    return stream is not None and stream.isatty()


def usage_text(used: Usage) -> str:
    """Return tokens and requests as a text: "15 tokens (10 in, 5 out), 1 request"."""
    tokens = f"{counted(used.total_tokens, 'token')} ({used.prompt_tokens:,} in, {used.completion_tokens:,} out)"
    return f"{tokens}, {counted(used.requests, 'request')}"


def answer_of(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the agent that wrote an assistant message, and its text or refusal."""
    text = text_of(message.get("content")) or str(message.get("refusal") or "")
    return str(message.get("sender") or "Assistant"), text


def formatted_calls(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name and the arguments, such as `city="Oslo"`, of each call in an assistant message."""
    calls: list[Mapping[str, Any]] = message.get("tool_calls") or []
    return [(one_line(call_name(call)), clean(_formatted(call_input(call)))) for call in calls]


def _formatted(arguments: str) -> str:
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not is_object(parsed):
        return one_line(arguments)
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in parsed.items())
