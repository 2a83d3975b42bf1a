"""Fingerprints: hashes that show whether an item or a request differs from the recorded item or request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json

from aswarm._values.agent import Agent
from aswarm._values.decisions import Resume, recorded_resume
from aswarm._values.messages import normalize
from aswarm._wire.request import CompletionRequest


def item_fingerprint(
    agent: Agent, messages: Any, context_variables: Mapping[str, Any] | None, resume: Resume = False
) -> str:
    """Return a hash of an item: of its messages, its context variables, its decisions and the name of its first agent.

    Raises ConfigurationError for invalid messages.
    """
    variables = [_variables(context_variables)] if context_variables else []
    decided = [{"resume": recorded_resume(resume)}] if resume is not False else []
    return _digests({"item": [agent.name, normalize(messages), *variables, *decided]})["item"]


def request_fingerprint(request: CompletionRequest) -> dict[str, str]:
    """Return a hash of each part of a request that affects its answer, by the name of the part."""
    body = request.body
    messages: list[Any] = body["messages"]
    is_instructed = bool(messages) and messages[0].get("role") == "system"
    parts = {"tools": body.get("tools"), "messages": messages[1:] if is_instructed else messages}
    if is_instructed:
        parts["instructions"] = messages[0]
    if "response_format" in body:
        parts["response_format"] = body["response_format"]
    return {"model": str(body.get("model")), "tools": "", "instructions": "", **_digests(parts)}


def differences(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Return the names of the parts in which two fingerprints of a request differ."""
    return [name for name, fingerprint in current.items() if recorded.get(name) != fingerprint]


def _variables(context: Mapping[str, Any]) -> str:
    # For a value that is not JSON, hash only the type, because the text of a set may differ in the next process.
    try:
        return json.dumps(dict(context), default=_type_name, sort_keys=True, skipkeys=True)
    except (TypeError, ValueError, RecursionError):  # keys that cannot be sorted, or a container that contains itself
        return ""


def _digests(values: Mapping[str, Any]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for name, value in values.items():
        try:
            text = to_json(value, fallback=_type_name)
        except ValueError:  # half a surrogate pair
            text = json.dumps(value, default=_type_name).encode()
        digests[name] = blake2b(text, digest_size=8).hexdigest()
    return digests


def _type_name(value: object) -> str:
    # The provider's client may accept a value that is not JSON. Here, only its type can be compared.
    return type(value).__name__
