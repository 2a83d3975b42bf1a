"""Reader of one answer of Claude's Messages API: turns its events into chunks of Chat Completions.

Sans-IO. The accumulator reads these chunks like the chunks of any other provider. An answer that was not streamed is one object,
which is read like its events. An answer may have several parts, because the server pauses after many calls of its own tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic_core import from_json

from aswarm._values.errors import CompletionError, StreamInterrupted
from aswarm._values.json import is_array, is_object, shown, whole_characters
from aswarm._values.usage import CONTINUED, Usage, count_of, latest_usage
from aswarm._values.wire_messages import BLOCKS, ORIGIN, is_json_object

from .anthropic_blocks import CALL, call_of, message_of
from .responses_items import DONE_CALL, NEXT_PART, WITHOUT_CALLS
from .sse import chunk_of

Chunk: TypeAlias = Mapping[str, Any]

# Types of blocks whose text is shown: the key in a delta. The name of the type is also the name of the field.
_SHOWN_AS = {"text": "content", "thinking": "reasoning_content"}
# Types of deltas that are a piece of a text: the field.
_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_FINISH_REASONS = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "refusal": "content_filter",
    "max_tokens": "length", "model_context_window_exceeded": "length",
}  # fmt: skip
_PROMPT = frozenset({"input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"})
_PAUSES = frozenset({"pause_turn", "compaction"})
_REFUSED = "The model refused to answer."
_QUOTED = 200


@dataclass(slots=True)
class _OpenBlock:
    """A block that has not ended. `pieces`: its text, or its input as JSON. `call`: its number among the calls, or None."""

    block: dict[str, Any]
    call: int | None
    pieces: list[str] = field(default_factory=list[str])


class AnthropicReader:
    """Reader of the events of one answer. If `is_done` is true, the current part is complete, and later events are ignored.

    `origin`: the value of `anthropic_origin` for the message. `blocks`: the blocks of all parts so far.
    """

    def __init__(self, origin: Mapping[str, Any]) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.is_done = False
        self._origin = {**origin}
        self._facts: dict[str, Any] = {}  # `id` and `model` of the answer
        self._stop: Any = None
        self._details: Any = None
        self._open: dict[Any, _OpenBlock] = {}
        self._calls = 0
        self._shown: set[str] = set()  # the keys of the deltas that have shown a text
        self._separators: dict[str, str] = {}  # by key: the separator to send before the next text
        self._usage: dict[str, Any] = {}
        self._earlier = Usage()  # of the earlier parts
        self._first = 0  # the position of the first block of this part

    @property
    def is_paused(self) -> bool:
        """Whether the server has paused, and continues the answer in the next request."""
        has_open_call = any(block.get("type") == CALL for block in self.blocks)
        return self.is_done and self._stop in _PAUSES and not has_open_call

    @property
    def container(self) -> str | None:
        """The id of the container of the answer; None if there is none."""
        return self._origin.get("container")

    def resume(self) -> None:
        """Prepare for the next part of a paused answer."""
        self._earlier += self._used()
        self._usage, self._stop, self.is_done = {}, None, False
        self._first = len(self.blocks)

    def read(self, event: Mapping[str, Any]) -> Sequence[Chunk]:
        """Return the chunks of an event, normally one or none.

        Raises CompletionError for a malformed event of a known type, and StreamInterrupted for another answer in the middle.
        """
        if self.is_done:
            return ()
        try:
            kind = event.get("type")
            # Most events are pieces of text. A generator for each of them would take a third of the time.
            return self._piece(event) if kind == "content_block_delta" else [*self._read(event, kind)]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CompletionError(f"the provider sent an event that cannot be read: {shown(event, _QUOTED)}") from error

    def _read(self, event: Mapping[str, Any], kind: Any) -> Iterator[Chunk]:
        match kind:
            case "content_block_start":
                yield from self._start(event["content_block"], event.get("index"))
            case "content_block_stop":
                yield from self._end(self._open.pop(event.get("index")))
            case "message_start":
                yield from self._begin(event["message"])
            case "message_delta":
                self._note(event["delta"], event.get("usage"))
            case "message_stop":
                yield from self._stop_part()
            case "message":
                yield from self._begin(event)
                yield from self._stop_part()
            case "error":
                yield {"error": event.get("error") or event}
            case None:
                yield event  # not of this API; the accumulator quotes it, or reads its error
            case _:
                pass  # a ping, or a type of the future

    def finish(self) -> Iterator[Chunk]:
        """Yield the last chunk: the blocks, the finish reason and the usage. Yield nothing if the answer has not ended."""
        if not self.is_done:
            return
        choice: dict[str, Any] = {"index": 0, "finish_reason": _FINISH_REASONS.get(str(self._stop), self._stop)}
        if self._stop == "refusal":  # the API forbids to send a refused answer back
            choice |= {"delta": {"refusal": _inner(self._details, "explanation") or _REFUSED}, WITHOUT_CALLS: True}
        else:
            message = message_of(self.blocks, self._origin)
            choice["delta"] = {key: message[key] for key in (BLOCKS, ORIGIN) if key in message}
        usage = self._earlier + self._used()
        counts = usage._reported if usage.total_tokens else None
        if counts is not None and usage.requests > 1:
            counts[CONTINUED] = usage.requests - 1
        yield {**self._facts, "choices": [choice], "usage": counts}

    # --- blocks ---

    def _begin(self, message: Mapping[str, Any]) -> Iterator[Chunk]:
        if len(self.blocks) > self._first:
            raise StreamInterrupted("the provider started another answer in the middle of this one")
        self._note(message, message.get("usage"))
        # In a stream, only an answer that the server has not made now has content here: calls of the code on the server.
        for block in message.get("content") or ():
            yield from self._start(block, None)
            yield from self._end(self._open.pop(None))

    def _start(self, content: Mapping[str, Any], index: Any) -> Iterator[Chunk]:
        block = {**content}
        kind = str(block.get("type"))
        call: int | None = None
        if kind == CALL:
            call, self._calls = self._calls, self._calls + 1
            wire = call_of(block)
            start = {"index": call, **wire, "function": {"name": wire["function"]["name"], "arguments": ""}}
            yield chunk_of({"tool_calls": [start]})
        before = self.blocks[-1].get("type") if self.blocks else None
        continues = kind == before == "text"  # citations divide one text into several blocks
        if (key := _SHOWN_AS.get(kind)) in self._shown and not continues:
            self._separators[str(key)] = NEXT_PART
        self.blocks.append(block)
        opened = self._open[index] = _OpenBlock(block, call)
        if key is not None and (text := block.get(kind)):
            opened.pieces.append(text)
            yield from self._show(key, text)

    def _piece(self, event: Mapping[str, Any]) -> Sequence[Chunk]:
        opened, delta = self._open[event.get("index")], event["delta"]
        kind = delta["type"]
        if kind in _PIECES:
            piece: str = delta[_PIECES[kind]]
            opened.pieces.append(piece)
            if opened.call is not None and piece:
                return (chunk_of({"tool_calls": [{"index": opened.call, "function": {"arguments": piece}}]}),)
            key = _SHOWN_AS.get(str(opened.block.get("type")))
            return self._show(key, piece) if key is not None and piece else ()
        if kind == "citations_delta":
            opened.block["citations"] = [*(opened.block.get("citations") or ()), delta["citation"]]
        else:  # a signature, the summary of a compaction, or a type of the future
            opened.block.update({key: value for key, value in delta.items() if key != "type" and value is not None})
        return ()

    def _show(self, key: str, text: str) -> Sequence[Chunk]:
        self._shown.add(key)
        return (chunk_of({key: self._separators.pop(key, "") + text}),)

    def _end(self, opened: _OpenBlock) -> Iterator[Chunk]:
        block, text = opened.block, whole_characters("".join(opened.pieces))
        if (kind := block.get("type")) in _SHOWN_AS:
            block[str(kind)] = text
        elif text:
            block["input"] = from_json(text) if is_json_object(text) else {}
        if opened.call is not None:
            if not text:
                arguments = call_of(block)["function"]["arguments"]
                yield chunk_of({"tool_calls": [{"index": opened.call, "function": {"arguments": arguments}}]})
            yield chunk_of({}, **{DONE_CALL: opened.call})

    def _stop_part(self) -> Iterator[Chunk]:
        opened, self._open = [*self._open.values()], {}
        for block in opened:
            yield from self._end(block)
        self.is_done = True

    # --- facts ---

    def _note(self, fields: Mapping[str, Any], usage: Any) -> None:
        self._facts |= {key: fields[key] for key in ("id", "model") if key in fields}
        self._stop = fields.get("stop_reason") or self._stop
        self._details = fields.get("stop_details")
        if is_object(container := fields.get("container")) and container.get("id"):
            self._origin["container"] = container["id"]
        if is_object(usage):
            if any(
                map(usage.get, _PROMPT)
            ):  # after a compaction on the server, the last counts of a prompt are less, also 0
                old = {key for key in _PROMPT if usage.get(key) is not None}
                self._usage = {key: value for key, value in self._usage.items() if key not in old}
            self._usage = latest_usage(self._usage, usage)

    def _used(self) -> Usage:
        return Usage.of_completion(chat_usage(self._usage))


# --- usage ------------------------------------------------------------------------------------------------------------


def chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of the API in the form of Chat Completions. Its other numbers stay under their own keys.

    The prompt contains the tokens that were read from a cache, and those that were written to a cache. The tokens of other
    models, and of a compaction on the server, are in `iterations`, by type, and not in the sums.
    """
    used = {key: value for key, value in usage.items() if value is not None}
    reads, writes = used.pop("cache_read_input_tokens", None), used.pop("cache_creation_input_tokens", None)
    prompt = sum(map(count_of, (used.pop("input_tokens", 0), reads, writes)))
    completion = count_of(used.pop("output_tokens", 0))
    hour = _inner(used.get("cache_creation"), "ephemeral_1h_input_tokens") or None
    thinking = _inner(used.get("output_tokens_details"), "thinking_tokens")
    details: dict[str, Any] = {"cached_tokens": reads, "cache_write_tokens": writes, "cache_write_1h_tokens": hour}
    by_type = _by_type(used.pop("iterations", ()))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {key: value for key, value in details.items() if value is not None},
        **({} if thinking is None else {"completion_tokens_details": {"reasoning_tokens": thinking}}),
        **used,
        **({"iterations": by_type} if by_type else {}),
    }


def _inner(value: Any, key: str) -> Any:
    return value.get(key) if is_object(value) else None


def _by_type(iterations: Any) -> dict[str, Any]:
    sums: dict[str, Usage] = {}
    for each in filter(is_object, iterations if is_array(iterations) else ()):
        if (kind := str(each.get("type"))) != "message":
            sums[kind] = sums.get(kind, Usage()) + Usage(details={key: each[key] for key in each if key != "type"})
    return {kind: used.details for kind, used in sums.items()}
