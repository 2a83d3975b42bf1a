"""One completion as an operation: what its span says about the chunks, and about its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm._errors import AswarmError
from aswarm._json import is_object
from aswarm._tools.conversion import sendable
from aswarm._usage import Usage
from aswarm._wire.accumulator import Accumulator, Completion

from . import _conventions as names
from ._content import content_of_answer
from ._telemetry import Attributes, Operation

# The attribute for each count in the details of a usage object.
_DETAILS = {
    ("prompt_tokens_details", "cached_tokens"): names.USAGE_CACHE_READ,
    ("prompt_tokens_details", "cache_creation_tokens"): names.USAGE_CACHE_CREATION,
    ("prompt_tokens_details", "cache_write_tokens"): names.USAGE_CACHE_CREATION,
    ("completion_tokens_details", "reasoning_tokens"): names.USAGE_REASONING,
}


class TracedCompletion:
    """Reads the chunks of a completion and ends its span. The chunks are not changed.

    `outcome`: the attributes of a completion that has ended by itself. The span of the run gets those of its last completion.
    """

    def __init__(self, operation: Operation, *, stream: bool) -> None:
        self.outcome: Attributes = {}
        self._operation = operation
        self._accumulator = Accumulator()
        self._error: AswarmError | None = None
        self._source: dict[str, str] = {}  # the id and the model of the response
        self._first_chunk: float | None = None
        self._stream = stream

    def read(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk. It never raises: the run itself reports a wrong chunk."""
        if self._first_chunk is None:
            self._first_chunk = self._operation.seconds
        try:
            self._accumulator.feed(chunk)
            if not self._source and is_object(chunk):
                found = {names.RESPONSE_ID: chunk.get("id"), names.RESPONSE_MODEL: chunk.get("model")}
                self._source = {key: sendable(text) for key, text in found.items() if text and isinstance(text, str)}
        except AswarmError as error:
            self._error = self._error or error

    def end(self, error: BaseException | None = None) -> None:
        """End the span. `error`: the exception that left the handler, or None."""
        attributes: Attributes = {**self._source}
        if names.RESPONSE_MODEL in attributes:
            self._operation.measured[names.RESPONSE_MODEL] = attributes[names.RESPONSE_MODEL]
        if self._stream and self._first_chunk is not None:
            attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = self._first_chunk
            self._record_first_chunk(self._first_chunk)
        if error is None:
            error = self._finish(attributes)
        elif not isinstance(error, Exception):
            error = self._error or error  # the run itself leaves a completion whose chunks report an error
        self._operation.end(attributes, error)

    def _finish(self, attributes: Attributes) -> AswarmError | None:
        """Add the attributes of a whole completion. Returns the error that the run will find, or None."""
        if self._error is not None:
            return self._error
        try:
            completion = self._accumulator.finish()
        except AswarmError as error:
            return error
        self._describe(completion, attributes)
        return None

    def _describe(self, completion: Completion, attributes: Attributes) -> None:
        reason = "stop" if completion.finish_reason is None else sendable(str(completion.finish_reason))
        counts = _token_counts(completion.usage)
        self.outcome = {
            names.RESPONSE_FINISH_REASONS: [reason],
            **self._operation.content(content_of_answer, completion.message, reason),
        }
        attributes.update(self.outcome, **counts)
        self._record_tokens(counts)

    def _record_first_chunk(self, seconds: float) -> None:
        operation = self._operation
        operation.telemetry.first_chunk.record(seconds, operation.measured, operation.context)

    def _record_tokens(self, counts: Mapping[str, int]) -> None:
        operation = self._operation
        for kind, name in (("input", names.USAGE_INPUT_TOKENS), ("output", names.USAGE_OUTPUT_TOKENS)):
            if name in counts:
                measured = {**operation.measured, names.TOKEN_TYPE: kind}
                operation.telemetry.tokens.record(counts[name], measured, operation.context)


def _token_counts(usage: Usage) -> dict[str, int]:
    """The counts that the provider gave; empty if it gave neither the tokens of the prompt nor those of the answer."""
    if not (usage.prompt_tokens or usage.completion_tokens):
        return {}
    counts = {names.USAGE_INPUT_TOKENS: usage.prompt_tokens, names.USAGE_OUTPUT_TOKENS: usage.completion_tokens}
    for (group, key), name in _DETAILS.items():
        details = usage.details.get(group)
        count = details.get(key) if is_object(details) else None
        if isinstance(count, int | float):
            counts[name] = int(count)
    return counts
