"""Blocks of an answer of Claude, and the message in the form of Chat Completions that is made from them.

A message of Claude contains its blocks under `BLOCKS`, because thinking, citations and tools of the server have no other form.
The module decides which of them are sent back: for a history of the same run, of a fork, of another agent or of a browser.
Sans-IO.

What a model accepts depends on its name. The facts are of 2026-11-27. Source: the pages of Anthropic about models, thinking,
prefix checks, tool choice and structured outputs. An unknown Claude counts as a new model. Models of other vendors, behind the
same API, have none of the newer features.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby
from typing import Any, NamedTuple

from pydantic_core import from_json

from aswarm._values.json import is_array, is_object, sendable_data
from aswarm._values.messages import Message, call_arguments, call_name, text_of
from aswarm._values.wire_messages import BLOCKS, ORIGIN, is_json_object

from .responses_items import NEXT_PART, written_text

# "claude-sonnet-4-5-20250929", "anthropic/claude-haiku-4.5", "us.anthropic.claude-opus-5-5", "claude-3-5-haiku@20241022"
_NAME = re.compile(r"claude-(?:([a-z]+)-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_UNKNOWN_CLAUDE, _OTHER_VENDOR = (99, 0), (0, 0)
_NEVER_UNTHINKING = ("fable", "mythos")


class Model(NamedTuple):
    """A model: its family, such as "sonnet", and its version."""

    family: str
    version: tuple[int, int]

    @property
    def is_claude(self) -> bool:
        return self.version != _OTHER_VENDOR

    @property
    def max_tokens(self) -> int:
        """The default limit of output tokens, which include the thinking: the maximum of the model.

        The models before 4.5 refuse a prompt that does not leave room for the limit, so their default is lower.
        """
        if self.version >= (4, 6):
            return 128_000
        if self.version >= (4, 5):
            return 64_000
        return 4_096 if (1, 0) <= self.version < (3, 5) else 8_192

    @property
    def is_adaptive(self) -> bool:
        """Whether the model decides how much it thinks. An older model has a budget of tokens."""
        return self.version >= (4, 6)

    @property
    def has_effort(self) -> bool:
        return self.is_adaptive or (self.family, self.version) == ("opus", (4, 5))

    @property
    def always_thinks(self) -> bool:
        return self.family in _NEVER_UNTHINKING or (self.family == "opus" and self.version >= (5, 5))

    @property
    def least_thinking(self) -> str | None:
        """The type of the smallest thinking; None if a request cannot set it."""
        if self.always_thinks:
            return None
        return "between_tools" if self.family == "sonnet" and self.version >= (5, 5) else "disabled"

    @property
    def has_schemas(self) -> bool:
        """Whether the model has strict tools and an output format."""
        return self.version >= (4, 5) or (self.family, self.version) == ("opus", (4, 1))

    @property
    def continues_text(self) -> bool:
        """Whether the model accepts a history that ends with a text of the assistant, and continues this text."""
        return self.version < (4, 6)

    @property
    def has_system_role(self) -> bool:
        """Whether the model follows a message with the role `system` in the conversation.

        Sonnet 5 accepts such a message and ignores it. Haiku 5.5 takes it for a part of the result of a tool.
        """
        if self.family == "haiku" or (self.family, self.version) == ("sonnet", (5, 0)):
            return False
        return self.version >= (4, 8)

    @property
    def can_be_forced(self) -> bool:
        """Whether the model accepts a forced call. With a budget of thinking, no model accepts it."""
        return self.version < (5, 1) or self.family == "haiku"

    @property
    def binds_thinking(self) -> bool:
        """Whether the API checks the prefix of each thinking block that is sent back."""
        return self.version >= (5, 1)


@lru_cache(maxsize=256)
def model_named(name: str) -> Model:
    """Return the model with this name. The name may have the prefixes and suffixes of a cloud."""
    if (match := _NAME.search(name)) is None:
        family = name.partition("claude-")[2].partition("-")[0]
        return Model(family, _UNKNOWN_CLAUDE if family else _OTHER_VENDOR)
    family, major, minor = match.groups()
    return Model(family or "", (int(major), int(minor or 0)))


# A key of the origin: whether the answer was made without the thinking before it, because the API had refused this thinking.
ALONE = "alone"
REFUSED: Mapping[str, Any] = {"model": ""}  # an origin whose thinking no model reads
THINKING = frozenset({"thinking", "redacted_thinking"})
CALL = "tool_use"
_OF_MODEL = THINKING | {CALL, "text", "server_tool_use", "container_upload", "compaction", "fallback"}
_OF_SERVER = ("_tool_use", "_tool_result")  # the ends of the types of calls and results of tools on the server
_TEXTS = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    CALL: ("id", "name"),
}
_IDS = ("id", "tool_use_id")

Block = Mapping[str, Any]


def message_of(blocks: Sequence[Block], origin: Mapping[str, Any]) -> Message:
    """Return the message for the blocks of one answer, without empty values.

    It contains the blocks and their origin, unless the Chat form has the same content. It does not contain them if a text has half
    a surrogate pair, because this text must be repaired, and a signature would not match.
    """
    text, reasoning, calls = _content_of(blocks)
    fields = {"content": text, "reasoning_content": reasoning, "tool_calls": calls}
    message: Message = {"role": "assistant", **{key: value for key, value in fields.items() if value}}
    kept = [*blocks]
    if [*map(_bare, kept)] != [*plain_blocks(message)] and sendable_data(kept) is kept:
        message |= {BLOCKS: kept, ORIGIN: {**origin}}
    return message


def call_of(block: Block) -> Message:
    """Return the tool call of a block of the type `CALL`."""
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": block.get("name") or "", "arguments": arguments},
    }


def plain_blocks(message: Message) -> Iterator[Block]:
    """Yield new blocks for the text and the calls of an assistant message."""
    text = written_text(message)
    if text.strip():
        yield {"type": "text", "text": text}
    for call in message.get("tool_calls") or ():
        yield {"type": CALL, "id": call["id"], "name": call_name(call), "input": _input_of(call)}


def _input_of(call: Message) -> Any:
    if "custom" in call:
        return {"input": call["custom"].get("input") or ""}
    arguments = call_arguments(call)
    return from_json(arguments) if is_json_object(arguments) else {}


def _content_of(blocks: Sequence[Block]) -> tuple[str, str, list[Message]]:
    # Citations divide one text into several blocks.
    groups = groupby(blocks, lambda block: block.get("type"))
    texts = ["".join(block.get("text") or "" for block in group) for kind, group in groups if kind == "text"]
    reasoning = [block.get("thinking") for block in blocks if block.get("type") == "thinking"]
    calls = [call_of(block) for block in blocks if block.get("type") == CALL]
    return NEXT_PART.join(filter(None, texts)), NEXT_PART.join(filter(None, reasoning)), calls


def _bare(block: Block) -> Block:
    """Return the block without null values and without the usual caller of a tool."""
    usual = (None, {"type": "direct"})
    return {key: value for key, value in block.items() if not (key in ("citations", "caller") and value in usual)}


# --- which blocks are sent back ---------------------------------------------------------------------------------------


def blocks_to_replay(message: Message) -> list[Block] | None:
    """Return the blocks of the message if they still make it. None: send the message without its blocks.

    A caller may have edited or trimmed the message, and the history may come from a browser. The API refuses a call of a tool on
    the server without its result, unless a call of the client is open, too.
    """
    blocks = message.get(BLOCKS)
    if not (is_array(blocks) and blocks and all(map(_is_of_model, blocks)) and _matches(message, blocks)):
        return None
    results = {block["tool_use_id"] for block in blocks if "tool_use_id" in block}
    kinds = {block["type"] for block in blocks if block["type"].endswith(CALL) and block.get("id") not in results}
    if kinds and CALL not in kinds:
        return None
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _is_of_model(block: Any) -> bool:
    kind = block.get("type") if is_object(block) else None
    if not (isinstance(kind, str) and (kind in _OF_MODEL or kind.endswith(_OF_SERVER))):
        return False
    if not all(isinstance(block.get(key), str | None) for key in _IDS) or (
        kind == CALL and not is_object(block.get("input"))
    ):
        return False
    return all(isinstance(block.get(key), str) for key in _TEXTS.get(kind, ()))


def _matches(message: Message, blocks: Sequence[Block]) -> bool:
    text, reasoning, calls = _content_of(blocks)
    if text_of(message.get("content")) != text or message.get("refusal") or message.get("audio"):
        return False
    return (message.get("reasoning_content") or reasoning) == reasoning and [
        *map(_identity, message.get("tool_calls") or ())
    ] == [*map(_identity, calls)]


def _identity(call: Message) -> tuple[Any, str, Any]:
    return call.get("id"), call_name(call), _input_of(call)


def with_valid_thinking(blocks: Sequence[Block], origin: Any, model: str, prefix: str) -> list[Block]:
    """Return the blocks, without thinking if the API would refuse it.

    `origin`: of the message. `model`: the model of the request. `prefix`: the digest of the request before the message.
    """
    end = next((at for at in range(len(blocks), 0, -1) if blocks[at - 1]["type"] not in THINKING), 0)
    blocks = blocks[:end]  # the API refuses thinking at the end
    thinking = [block for block in blocks if block["type"] in THINKING]
    if all(map(_is_signed, thinking)) and _is_valid(origin if is_object(origin) else {}, model, prefix):
        return [*blocks]
    return [block for block in blocks if block["type"] not in THINKING]


def _is_signed(block: Block) -> bool:
    return bool(block.get("signature") or block.get("data"))


def _is_valid(origin: Mapping[str, Any], model: str, prefix: str) -> bool:
    maker, reader = origin.get("model", model), model_named(model)
    if maker != model and not (reader.is_claude and model_named(str(maker)).is_claude):
        return False
    return not reader.binds_thinking or origin.get("prefix", prefix) == prefix


# --- prefixes ---------------------------------------------------------------------------------------------------------


def digest(before: str, values: Iterable[Any]) -> str:
    """Return the digest of the prefix that ends with these values, which follow the prefix with the digest `before`.

    The order of keys and the cache points do not count: a database may change the order, and cache points move.
    """
    for value in values:
        text = json.dumps(_without_mark(value), sort_keys=True, separators=(",", ":"), default=str)
        before = blake2b(f"{before}{text}".encode(), digest_size=12).hexdigest()
    return before


def _without_mark(value: Any) -> Any:
    if is_array(value):
        return [*map(_without_mark, value)]
    if not is_object(value):
        return value
    unmarked = {key: item for key, item in value.items() if key != "cache_control"}
    return {**unmarked, "content": _without_mark(unmarked["content"])} if "content" in unmarked else unmarked
