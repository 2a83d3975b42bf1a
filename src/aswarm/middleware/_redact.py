"""Texts that must not reach the provider, replaced in each request, as middleware."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object
from aswarm._messages import Message
from aswarm._run.handlers import Handlers, Middleware
from aswarm._wire.chat_request import without_items
from aswarm._wire.request import CompletionRequest

# Keys whose values are not text of a conversation. A replaced id would part a call from its answer, and encrypted
# reasoning or base64 of a sound is refused if it has changed.
_STRUCTURE = frozenset({"data", "encrypted_content", "id", "name", "role", "signature", "tool_call_id", "type"})
# Keys of content parts that may hold bytes as base64, where a match means nothing.
_MEDIA = frozenset({"file_data", "image_url", "url"})


def redact(
    patterns: str | re.Pattern[str] | Iterable[str | re.Pattern[str]], replacement: str = "[redacted]"
) -> Middleware:
    r"""Middleware that replaces what the regular expressions match, in all texts of the messages of each request.

        AsyncSwarm(middleware=[redact([r"\b\d{16}\b", re.compile("api[-_]key=\\S+", re.IGNORECASE)])])

    The provider never gets what was matched. The history, the functions and the caller still have it. In the arguments of
    a call, texts and numbers are matched and replaced one by one, so that they stay JSON. Names and ids stay as they are, and so do the
    bytes of images and files.

    Over the Responses API, a message in which something matches is sent without its output items, which repeat the text.
    Encrypted reasoning cannot be searched. It is left out with the items of a message in which something matches; otherwise
    it is sent as it came.

    Raises ConfigurationError for a pattern that is not a regular expression.
    """
    listed = [patterns] if isinstance(patterns, str | re.Pattern) else list(patterns)
    try:
        compiled = [re.compile(pattern) for pattern in listed]
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"redact takes regular expressions: {error}") from error

    def clean(text: str) -> str:
        for pattern in compiled:
            text = pattern.sub(replacement, text)
        return text

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            messages = [_message(message, clean) for message in request.body["messages"]]
            request.body["messages"] = [message for cleaned in messages for message in cleaned]
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    return wrap


def _message(message: Message, clean: Callable[[str], str]) -> list[Message]:
    cleaned: Message = _cleaned(message, clean)
    return [message] if cleaned == message else without_items([cleaned])


def _cleaned(value: Any, clean: Callable[[str], str], key: str = "") -> Any:
    if isinstance(value, str):
        if key in _STRUCTURE or (key in _MEDIA and value.startswith("data:")):
            return value
        return _arguments(value, clean) if key == "arguments" else clean(value)
    if is_object(value):
        return {name: _cleaned(item, clean, name) for name, item in value.items()}
    return [_cleaned(item, clean) for item in value] if is_array(value) else value


def _arguments(text: str, clean: Callable[[str], str]) -> str:
    """The arguments of a call, which stay JSON if they are JSON. Text without a match stays the same to the byte."""
    try:
        given = json.loads(text)
        leaves = _leaves(given, clean)
    except (ValueError, RecursionError):
        return clean(text)
    kept = text if leaves == given else json.dumps(leaves, ensure_ascii=False)
    # A match may also reach over a key and its value, or stand in a key that is there twice.
    return kept if clean(kept) == kept else json.dumps({"arguments": clean(kept)}, ensure_ascii=False)


def _leaves(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if is_object(value):
        return {clean(key): _leaves(item, clean) for key, item in value.items()}
    if is_array(value):
        return [_leaves(item, clean) for item in value]
    number = json.dumps(value)
    return value if clean(number) == number else clean(number)
