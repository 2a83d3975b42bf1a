"""Texts that must not reach the provider, replaced in each request, as middleware."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object
from aswarm._messages import Message
from aswarm._run.handlers import Handlers, Middleware
from aswarm._wire.request import CompletionRequest
from aswarm._wire.responses_items import OUTPUT_ITEMS

# Keys whose values are not text of a conversation. A replaced id would part a call from its answer.
_STRUCTURE = frozenset({"id", "name", "role", "tool_call_id", "type"})


def redact(
    patterns: str | re.Pattern[str] | Iterable[str | re.Pattern[str]], replacement: str = "[redacted]"
) -> Middleware:
    r"""Middleware that replaces what the regular expressions match, in all texts of the messages of each request.

        AsyncSwarm(middleware=[redact([r"\b\d{16}\b", re.compile("api[-_]key=\\S+", re.IGNORECASE)])])

    The provider never gets what was matched. The history, the functions and the caller still have it. Names and ids stay as
    they are. A message whose text has changed is sent without the provider's own items, which repeat the text.

    Raises ConfigurationError for a pattern that is not a regular expression.
    """
    listed = [patterns] if isinstance(patterns, str | re.Pattern) else list(patterns)
    try:
        compiled = [re.compile(pattern) for pattern in listed]
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"redact takes regular expressions: {error}") from error

    def redacted(value: Any) -> Any:
        if isinstance(value, str):
            for pattern in compiled:
                value = pattern.sub(replacement, value)
            return value
        if is_object(value):
            return {key: item if key in _STRUCTURE else redacted(item) for key, item in value.items()}
        return [redacted(item) for item in value] if is_array(value) else value

    def message_without(message: Message) -> Message:
        changed: Message = redacted(message)
        if changed != message:
            changed.pop(OUTPUT_ITEMS, None)
        return changed

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            request.body["messages"] = [message_without(message) for message in request.body["messages"]]
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    return wrap
