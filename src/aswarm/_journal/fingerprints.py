"""Fingerprints: they show whether an item, or a request, is still the recorded one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json

from aswarm._agent import Agent
from aswarm._decisions import Decisions
from aswarm._messages import normalize
from aswarm._wire.request import CompletionRequest


def item_fingerprint(
    agent: Agent, messages: Any, context_variables: Mapping[str, Any] | None, resume: bool | Decisions = False
) -> str:
    """The fingerprint of an item: its messages, its own context variables, its decisions, the name of its first agent.

    Raises ConfigurationError for invalid messages.
    """
    own = [_variables(context_variables)] if context_variables else []
    decided = [{"resume": resume if isinstance(resume, bool) else dict(resume)}] if resume is not False else []
    return _digest([agent.name, normalize(messages), *own, *decided])


def request_fingerprint(request: CompletionRequest) -> dict[str, str]:
    """The fingerprints of the parts of a request that decide its answer, by the name of the part."""
    body = request.body
    messages: list[Any] = body["messages"]
    is_instructed = bool(messages) and messages[0].get("role") == "system"
    form = {"response_format": _digest(body["response_format"])} if "response_format" in body else {}
    return {
        "model": str(body.get("model")),
        "tools": _digest(body.get("tools")),
        "instructions": _digest(messages[0]) if is_instructed else "",
        "messages": _digest(messages[1:] if is_instructed else messages),
        **form,
    }


def differences(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """The names of the parts in which two fingerprints of a request differ."""
    return [name for name, fingerprint in current.items() if recorded.get(name) != fingerprint]


def _variables(context: Mapping[str, Any]) -> str:
    # Of a value that JSON cannot hold only the type counts: the text of a set may differ in the next process.
    try:
        return json.dumps(dict(context), default=_type_name, sort_keys=True, skipkeys=True)
    except (TypeError, ValueError, RecursionError):  # keys that cannot be sorted, a container inside itself
        return ""


def _digest(value: Any) -> str:
    try:
        text = to_json(value, fallback=_type_name)
    except ValueError:  # half a surrogate pair
        text = json.dumps(value, default=_type_name).encode()
    return blake2b(text, digest_size=8).hexdigest()


def _type_name(value: object) -> str:
    # The provider's client sends such a value, or refuses it; only its type can be compared here.
    return type(value).__name__
