"""The span of a completion: its attributes come from the chunks and the end of the completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm._values.errors import AswarmError
from aswarm._values.json import is_object
from aswarm._values.text import sendable
from aswarm.extensions import Accumulator

from . import _conventions as names
from ._attributes import content_of_answer, token_counts
from ._telemetry import Attributes, Operation


class TracedCompletion:
    """Reads the chunks of a completion without changing them, and ends its span.

    `outcome`: the attributes of a finished completion. The span of the run gets the outcome of its last completion.
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
        """Read one chunk. Never raises, because the run itself reports a malformed chunk."""
        if self._first_chunk is None:
            self._first_chunk = self._operation.seconds
        try:
            self._accumulator.feed(chunk)
            if not self._source and is_object(chunk):
                source = {names.RESPONSE_ID: chunk.get("id"), names.RESPONSE_MODEL: chunk.get("model")}
                self._source = {key: sendable(text) for key, text in source.items() if text and isinstance(text, str)}
        except AswarmError as error:
            self._error = self._error or error

    def end(self, error: BaseException | None = None) -> None:
        """End the span. `error`: the exception of the handler, or None."""
        operation, attributes = self._operation, Attributes(self._source)
        if names.RESPONSE_MODEL in attributes:
            operation.measured[names.RESPONSE_MODEL] = attributes[names.RESPONSE_MODEL]
        if self._stream and self._first_chunk is not None:
            attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = self._first_chunk
            operation.telemetry.first_chunk.record(self._first_chunk, operation.measured, operation.context)
        if error is None:
            error = self._finish(attributes)
        elif not isinstance(error, Exception):
            error = self._error or error  # the run may have closed the completion because a chunk reported an error
        operation.end(attributes, error)

    def _finish(self, attributes: Attributes) -> AswarmError | None:
        """Add the attributes of a finished completion. Return the error that the run will raise, or None."""
        if self._error is not None:
            return self._error
        try:
            completion = self._accumulator.finish()
        except AswarmError as error:
            return error
        operation, counts = self._operation, token_counts(completion.usage)
        reason = "stop" if completion.finish_reason is None else sendable(str(completion.finish_reason))
        content = operation.content(content_of_answer, completion.message, reason)
        self.outcome = {names.RESPONSE_FINISH_REASONS: [reason], **content}
        attributes.update(self.outcome, **counts)
        for kind, name in (("input", names.USAGE_INPUT_TOKENS), ("output", names.USAGE_OUTPUT_TOKENS)):
            if name in counts:
                measured = {**operation.measured, names.TOKEN_TYPE: kind}
                operation.telemetry.tokens.record(counts[name], measured, operation.context)
        return None
