"""Fingerprints: whether an item, or a request, is still the one that was recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json

from aswarm._agent import Agent
from aswarm._messages import normalize
from aswarm._wire.request import CompletionRequest


def content_of(agent: Agent, messages: Any, context_variables: Mapping[str, Any] | None) -> str:
    """The fingerprint of an item: its messages, its own context variables, the name of the agent that gets them.

    Raises ConfigurationError for what are no messages.
    """
    given = [_variables(context_variables)] if context_variables else []
    return _digest([agent.name, normalize(messages), *given])


def asked_of(request: CompletionRequest) -> dict[str, str]:
    """The fingerprints of what decides an answer, each under its name."""
    body = request.body
    messages: list[Any] = body["messages"]
    is_instructed = bool(messages) and messages[0].get("role") == "system"
    return {
        "model": str(body.get("model")),
        "tools": _digest(body.get("tools")),
        "instructions": _digest(messages[0]) if is_instructed else "",
        "messages": _digest(messages[1:] if is_instructed else messages),
    }


def differences(recorded: Mapping[str, str], asked: Mapping[str, str]) -> list[str]:
    """The names of what is asked otherwise now."""
    return [name for name, fingerprint in asked.items() if recorded.get(name) != fingerprint]


def _variables(context: Mapping[str, Any]) -> str:
    # Of what is no JSON, a set say, only the kind: its text may be another in the next process.
    try:
        return json.dumps(dict(context), default=_kind, sort_keys=True, skipkeys=True)
    except (TypeError, ValueError, RecursionError):  # keys that have no order, a container in itself
        return ""


def _digest(value: Any) -> str:
    try:
        text = to_json(value, fallback=_kind)
    except ValueError:  # half a surrogate pair
        text = json.dumps(value, default=_kind).encode()
    return blake2b(text, digest_size=8).hexdigest()


def _kind(value: object) -> str:
    # What is no JSON is for the provider's client to send, or to refuse; its kind is all that can be compared.
    return type(value).__name__
