"""The file form of a conversation: JSON with the messages, the agent's name, and the context as far as it is JSON.

Texts in, texts out; files are read and written elsewhere. What comes from a file is checked, and is data: nothing in
it is run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._json import is_object
from aswarm._messages import Message, normalize


@dataclass(frozen=True, slots=True)
class Saved:
    """A conversation as a file keeps it."""

    agent: str
    context: dict[str, Any]
    messages: list[Message]


def to_json(saved: Saved) -> tuple[str, list[str]]:
    """The text of the file, and the names of the context variables that JSON cannot hold and that are left out."""
    kept = {name: value for name, value in saved.context.items() if _is_json({name: value})}
    left_out = [str(name) for name in saved.context if name not in kept]
    data = {"agent": saved.agent, "context_variables": kept, "messages": saved.messages}
    # ASCII: a half of a surrogate pair, which some model may have sent, goes into no UTF-8 file.
    return json.dumps(data, indent=1, default=str) + "\n", left_out


def from_json(text: str) -> Saved:
    """The conversation that a file's text holds. Raises ValueError that says what is wrong with it."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not is_object(data) or not isinstance(data.get("messages"), list):
        raise ValueError("not a saved conversation: there is no list of messages in it")
    agent, context = data.get("agent", ""), data.get("context_variables", {})
    if not (isinstance(agent, str) and is_object(context)):
        raise ValueError("not a saved conversation: expected an agent's name and a dict of context variables")
    try:
        return Saved(agent, dict(context), normalize(data["messages"]))
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _is_json(value: Any) -> bool:
    # What comes back as something else (a tuple, a dict with numbers for keys) would break the functions that use it.
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
