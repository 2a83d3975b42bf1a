"""Saved conversations: their JSON form and their files.

A file has the messages, the name of the agent, and the context variables that JSON can hold. What is read from it is
checked, and is only data: nothing in it is run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._files import replacing
from aswarm._json import is_object
from aswarm._messages import Message, normalize


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """A conversation as a file keeps it."""

    agent: str
    context: dict[str, Any]
    messages: list[Message]


def to_json(saved: SavedConversation) -> tuple[str, list[str]]:
    """The text for the file, and the names of the context variables that are left out because they are not JSON."""
    kept = {name: value for name, value in saved.context.items() if _is_json({name: value})}
    left_out = [str(name) for name in saved.context if name not in kept]
    data = {"agent": saved.agent, "context_variables": kept, "messages": saved.messages}
    # ASCII, because UTF-8 cannot encode half of a surrogate pair, which a model may have sent.
    return json.dumps(data, indent=1, default=str) + "\n", left_out


def from_json(text: str) -> SavedConversation:
    """The conversation in the text of a file. Raises ValueError that says what is wrong with it."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    if not is_object(data) or not isinstance(data.get("messages"), list):
        raise ValueError('not a saved conversation: it has no list "messages"')
    agent, context = data.get("agent", ""), data.get("context_variables", {})
    if not (isinstance(agent, str) and is_object(context)):
        raise ValueError('not a saved conversation: "agent" must be a string and "context_variables" an object')
    try:
        return SavedConversation(agent, dict(context), normalize(data["messages"]))
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _is_json(value: Any) -> bool:
    # JSON would change a tuple, or a dict with numbers as keys, and the functions that use it would fail.
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


# --- files ---


def read_conversation(path: str) -> SavedConversation:
    """The conversation in a file. Raises OSError or ValueError."""
    file = _expanded(path)
    if file.exists() and not file.is_file():  # a pipe or a device may have no end
        raise ValueError("not a regular file")
    return from_json(file.read_text(encoding="utf-8"))


def other_conversation(path: str, text: str) -> SavedConversation | None:
    """The conversation in a file, if it is not an earlier state of the one in this text. Raises OSError or ValueError.

    A file that is no saved conversation is a ValueError: it is never replaced.
    """
    if not _expanded(path).exists():
        return None
    try:
        known = read_conversation(path)
    except ValueError as error:
        raise ValueError("the file is not a saved conversation and was not overwritten; choose another path") from error
    is_earlier = from_json(text).messages[: len(known.messages)] == known.messages
    return None if is_earlier else known


def write_conversation(path: str, text: str) -> None:
    """Write a file that only its owner can read, completely or not at all. Raises OSError or ValueError."""
    target = _expanded(path).resolve()
    with replacing(target, private=True) as file:
        file.write(text.encode())


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # the home directory of an unknown user
        raise ValueError(str(error)) from error
