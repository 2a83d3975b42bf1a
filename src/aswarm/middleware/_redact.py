"""Redaction of texts in each request, so that they do not reach the provider, as middleware.

Security: The provider gets no match of `redact` in a text: in messages, arguments, results, items of the Responses API, and blocks of Claude.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import Any

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import Message
from aswarm._values.wire_messages import without_items
from aswarm.extensions import CompletionRequest, Handlers, Middleware

# Keys whose values are not text of the conversation. A changed id would separate a call from its answer. A server would reject
# changed encrypted reasoning or base64 audio.
_STRUCTURE = frozenset({"data", "encrypted_content", "id", "name", "role", "signature", "tool_call_id", "type"})
# Keys of content parts with values that may be base64. A match in base64 means nothing.
_MEDIA = frozenset({"file_data", "image_url", "url"})


def redact(
    patterns: str | re.Pattern[str] | Iterable[str | re.Pattern[str]], replacement: str = "[redacted]"
) -> Middleware:
    r"""Return middleware that replaces all matches of regular expressions in the messages of each request.

        AsyncSwarm(middleware=[redact([r"\b\d{16}\b", re.compile("api[-_]key=\\S+", re.IGNORECASE)])])

    The provider never gets a match, but the history, the functions and the caller still have it. Adjacent text parts of a
    message are also matched as one text; then the first part contains the replacement. A match across two messages is not
    found. In the arguments of a call, each text and number is matched separately, so that the arguments stay JSON. Other JSON,
    such as a result, is also matched without its escapes. Names, ids, and the bytes of images and files do not change.

    In the list, put `redact` before `summarize` and before guards with a `judge`. These two send many messages as one text, in
    which a match may look different.

    A message with a match is sent without its output items of the Responses API, or its blocks of Claude, because they repeat the
    text. Encrypted reasoning cannot be searched. It is sent if its message has no match.

    Raises ConfigurationError for a pattern that is not a regular expression.
    """
    listed = [patterns] if isinstance(patterns, str | re.Pattern) else patterns
    try:
        compiled = [re.compile(pattern) for pattern in listed]
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"redact needs valid regular expressions: {error}") from error

    cleaner = _Cleaner(compiled, replacement)

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            messages: list[Message] = []
            for message in request.body["messages"]:
                cleaned = _cleaned(message, cleaner)
                messages += [message] if cleaned == message else without_items([cleaned])
            request.body["messages"] = messages
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    return wrap


@dataclass(frozen=True, slots=True)
class _Cleaner:
    patterns: Sequence[re.Pattern[str]]
    replacement: str

    def text(self, text: str) -> str:
        for pattern in self.patterns:
            text = pattern.sub(self.replacement, text)
        return text

    def joined(self, texts: list[str]) -> list[str]:
        """Replace matches in the texts as if they were one text. The replacement is in the text where the match starts."""
        for pattern in self.patterns:
            whole = "".join(texts)
            matches = [(*match.span(), len(match.expand(self.replacement))) for match in pattern.finditer(whole)]
            edges = [
                edge + sum(size - (min(end, edge) - start) for start, end, size in matches if start < edge)
                for edge in accumulate(map(len, texts), initial=0)
            ]
            whole = pattern.sub(self.replacement, whole)
            texts = [whole[start:end] for start, end in pairwise(edges)]
        return texts


def _cleaned(value: Any, cleaner: _Cleaner, key: str = "") -> Any:
    if isinstance(value, str):
        if key in _STRUCTURE or (key in _MEDIA and value.startswith("data:")):
            return value
        return _arguments(value, cleaner.text) if key == "arguments" else _text(value, cleaner.text)
    if is_object(value):
        return {name: _cleaned(item, cleaner, name) for name, item in value.items()}
    return _cleaned_list(value, cleaner) if is_array(value) else value


def _cleaned_list(items: Sequence[Any], cleaner: _Cleaner) -> list[Any]:
    cleaned: list[Any] = []
    for is_text, group in groupby(items, _is_text):
        run = list(group)
        if is_text and len(run) > 1:  # a server joins these parts to one text
            texts = cleaner.joined([part["text"] for part in run])
            # A server may reject an empty text.
            run = [{**part, "text": text} for part, text in zip(run, texts, strict=True) if text or not part["text"]]
        cleaned += [_cleaned(item, cleaner) for item in run]
    return cleaned


def _is_text(part: Any) -> bool:
    return is_object(part) and isinstance(part.get("text"), str)


def _arguments(text: str, clean: Callable[[str], str]) -> str:
    """Return the cleaned arguments of a call. JSON stays JSON. A text without a match does not change."""
    if (kept := _with_clean_leaves(text, clean)) is None:
        return clean(text)
    # A match may span a key and its value, or be in a duplicate key. Then no single text or number contains it.
    return kept if clean(kept) == kept else json.dumps({"arguments": clean(kept)}, ensure_ascii=False)


def _text(text: str, clean: Callable[[str], str]) -> str:
    """Return the cleaned text of a message. In JSON, such as the result of a function, a match may contain an escape."""
    is_escaped_json = "\\" in text and text.lstrip()[:1] in ("{", "[")
    return clean((_with_clean_leaves(text, clean) if is_escaped_json else None) or text)


def _with_clean_leaves(text: str, clean: Callable[[str], str]) -> str | None:
    """Return JSON with its texts and numbers cleaned one by one; None if the text is not JSON."""
    try:
        original = json.loads(text)
        leaves = _leaves(original, clean)
    except (ValueError, RecursionError):
        return None
    return text if leaves == original else json.dumps(leaves, ensure_ascii=False)


def _leaves(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if is_object(value):
        return {clean(key): _leaves(item, clean) for key, item in value.items()}
    if is_array(value):
        return [_leaves(item, clean) for item in value]
    number = json.dumps(value)
    return value if clean(number) == number else clean(number)
