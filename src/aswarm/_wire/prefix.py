"""The report about a missed prompt cache: compares the requests of a conversation, and names the first difference.

A provider reuses a prompt from its start to the first difference, in the rendered order: the tools, the instructions, the other
messages. `SentPrompts` keeps the last answered request of a run by reference, and compares it only after a miss.

Security: A report of a missed cache has names, indexes, positions and counts, and never a text of the request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import eq
from typing import Any, NamedTuple, TypeVar

from aswarm._values.json import is_array, is_object
from aswarm._values.messages import INSTRUCTING
from aswarm._values.text import one_line
from aswarm._values.usage import CacheMiss, Prices, Usage, cached_tokens, set_price
from aswarm._values.wire_messages import ITEM_KEYS, OUTPUT_ITEMS

from .request import CompletionRequest
from .responses_events import CACHE_HIT, DIAGNOSIS
from .responses_items import is_compaction

T = TypeVar("T")
_LEAST, _SHARE = 2_000, 0.05  # a smaller miss is not reported
_IN_STEPS = 2_048  # some models report the cached tokens in steps of this size
# Settings that are a part of the prompt, or choose another cache.
_SETTINGS = (
    "parallel_tool_calls", "response_format", "text", "reasoning_effort", "reasoning", "verbosity", "service_tier",
    "prompt_cache_key", "prompt_cache_retention", "extra_body", "thinking", "output_config",
)  # fmt: skip
_MEDIA_SIZE = 4_000  # the characters of a text with as many tokens as an image
_SHOWN = 80


class SentPrompts:
    """The requests that a run has sent for its own conversation.

    Requests that a middleware sends for itself, such as a summary, do not count.

    `asked`: the last request of the run, before the middleware. `url`: the base URL of the client. `prices`: own prices.
    """

    __slots__ = ("_answered", "_reports", "_sent", "_tokens", "asked", "prices", "url")

    def __init__(self, prices: Prices) -> None:
        self.asked: CompletionRequest | None = None
        self.url: str | None = None
        self.prices = prices
        self._sent: CompletionRequest | None = None
        self._answered: CompletionRequest | None = None
        self._tokens = 0  # of the answered request
        self._reports = False  # whether the provider has reported cached tokens

    def watched(self, complete: Callable[[CompletionRequest], T]) -> Callable[[CompletionRequest], T]:
        """Return the handler that remembers each request, and then sends it."""

        def complete_watched(request: CompletionRequest) -> T:
            if self.is_of_conversation(request):
                self._sent = request
            return complete(request)

        return complete_watched

    def is_of_conversation(self, request: CompletionRequest) -> bool:
        """Return whether a request is of the run itself."""
        return self.asked is not None and request.agent is self.asked.agent and not request._is_of_middleware

    def answered(self, usage: Usage) -> CacheMiss | None:
        """Set the facts that decide the cost of a completion. Return the miss of the cache, or None."""
        self.set_price(usage)
        if self._sent is None:
            return None
        tokens, miss = usage.prompt_tokens, None
        if tokens >= _LEAST:
            miss = self.miss(usage)
            self._reports = self._reports or cached_tokens(usage) is not None
        self._answered, self._sent, self._tokens = self._sent, None, tokens
        return miss

    def set_price(self, usage: Usage, model: str | None = None) -> None:
        """Set the facts that decide the cost of a completion. `model`: None for the model of the last request."""
        request, url = self._sent or self.asked, self.url
        if request is None or (self._sent is not None and not usage.total_tokens):
            return  # the provider has reported nothing
        if request.source is not None:
            url = str(getattr(getattr(request.source, "_client", request.source), "base_url", ""))
        set_price(usage, model or str(request.body.get("model")), url, self.prices)

    def miss(self, usage: Usage) -> CacheMiss | None:
        """Return the miss of the cache by the last sent request, or None. `usage`: the usage of its answer."""
        now, before, cached = self._sent, self._answered, cached_tokens(usage)
        if now is None or (cached is None and before is None):
            return None
        if is_object(diagnosis := usage.details.get(DIAGNOSIS)) and diagnosis:
            return _diagnosed_miss(diagnosis, before, now, cached or 0)
        if before is None:
            return _unknown_miss(now.body, usage.prompt_tokens, cached or 0)
        established = min(self._tokens, usage.prompt_tokens)
        if cached is None and not self._reports:
            return _unreported_miss(before, now, established)
        kept = cached or 0  # some servers leave out a count of 0
        if not _is_large(established - kept, established):
            return None
        return _miss(before, now, self._tokens, kept, established - kept)


def _is_large(lost: float, established: float) -> bool:
    return lost >= _LEAST and lost > established * _SHARE


def _miss(
    before: CompletionRequest, now: CompletionRequest, established: int, kept: int, lost: int
) -> CacheMiss | None:
    if _is_compacted(before.body, now.body):
        return CacheMiss("compacted", None, kept, lost)
    difference = _difference(before, now)
    # The difference does not explain a miss of tokens that are far before it.
    if difference is not None and difference.kept * established < max(2 * kept, kept + _IN_STEPS):
        return CacheMiss("changed", difference.where, kept, lost)
    return CacheMiss("expired", None, kept, lost) if lost > _IN_STEPS else None


def _diagnosed_miss(
    diagnosis: Mapping[str, int], before: CompletionRequest | None, now: CompletionRequest, kept: int
) -> CacheMiss | None:
    """Return the miss that the provider itself has found, with the first difference if it is known."""
    reason, lost = next(iter(diagnosis.items()))
    if reason == CACHE_HIT or not _is_large(lost, kept + lost):
        return None
    difference = None if before is None else _difference(before, now)
    where = one_line(reason, _SHOWN) + ("" if difference is None else f": {difference.where}")
    return CacheMiss("compacted" if reason == "context_compacted" else "changed", where, kept, lost)


def _unknown_miss(body: Mapping[str, Any], tokens: int, kept: int) -> CacheMiss | None:
    """Return the miss of the first request of a run, whose conversation has an earlier answer."""
    messages: Sequence[Any] = body["messages"]
    end = next((at for at in range(len(messages) - 1, 0, -1) if messages[at].get("role") == "assistant"), 0)
    if not end:
        return None
    earlier = _sizes([*_tools(body), *messages[:end]])
    lost = round(tokens * earlier / max(_sizes([*_tools(body), *messages]), 1)) - kept
    # The tokens are only estimated, so a small difference says nothing.
    return CacheMiss("unknown", None, kept, lost) if lost >= max(_LEAST, kept) else None


def _unreported_miss(before: CompletionRequest, now: CompletionRequest, established: int) -> CacheMiss | None:
    if established < _LEAST or (difference := _difference(before, now)) is None:
        return None
    kept = round(difference.kept * established)
    is_large = _is_large(established - kept, established)
    return CacheMiss("unreported", difference.where, kept, established - kept) if is_large else None


def _is_compacted(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the provider has replaced earlier messages by an item since the last request."""
    new: Sequence[Any] = now["messages"][len(before["messages"]) :]
    items = (item for message in new for item in message.get(OUTPUT_ITEMS) or ())
    return any(is_object(item) and is_compaction(item) for item in items)


# --- the first difference ---------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """The first difference of two requests: a text, and the share of the earlier request before it, from 0 to 1."""

    where: str
    kept: float


def _difference(before: CompletionRequest, now: CompletionRequest) -> Difference | None:
    difference = first_difference(before.body, now.body)
    if difference is None or before.agent.name == now.agent.name:
        return difference
    return Difference(f"handoff to {one_line(now.agent.name, _SHOWN)}: {difference.where}", difference.kept)


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> Difference | None:
    """Return the first difference of two bodies in the rendered order, or None if `now` extends `before`."""
    if before.get("model") != now.get("model"):
        return Difference(f"the model is {_shown(now.get('model'))} instead of {_shown(before.get('model'))}", 0.0)
    old_tools, new_tools = _tools(before), _tools(now)
    if old_tools != new_tools:
        at = _first_other(old_tools, new_tools)
        return Difference(_other_tool(at, old_tools, new_tools), _share(before, at, 0))
    for key in _SETTINGS:
        if before.get(key) != now.get(key):
            return Difference(f"the setting {key!r} changed", 0.0)
    old: Sequence[Any] = before["messages"]
    new: Sequence[Any] = now["messages"]
    at = _first_other(old, new)
    if at < min(len(old), len(new)):
        return Difference(_other_message(at, old, new), _share(before, len(old_tools), at))
    return Difference("the setting 'tool_choice' changed", 0.0) if _choice(before) != _choice(now) else None


def _tools(body: Mapping[str, Any]) -> Sequence[Any]:
    tools = body.get("tools")
    return tools if is_array(tools) else ()


def _choice(body: Mapping[str, Any]) -> Any:
    return body.get("tool_choice", "auto")


def _first_other(old: Sequence[Any], new: Sequence[Any]) -> int:
    """Return the index of the first different item, or the length of the shorter list."""
    return next((at for at, same in enumerate(map(eq, old, new)) if not same), min(len(old), len(new)))


def _other_tool(at: int, old: Sequence[Any], new: Sequence[Any]) -> str:
    if at >= len(new):
        return f"tool {at} {_name(old[at])} is gone"
    tool = f"tool {at} {_name(new[at])}"
    if at >= len(old):
        return f"{tool} is new"
    if _name(old[at]) != _name(new[at]):
        return f"{tool} was {_name(old[at])}"
    mine, other = _function(old[at]), _function(new[at])
    if mine.get("description") != other.get("description"):
        return f"{tool} has another description"
    return f"{tool} has other parameters" if mine.get("parameters") != other.get("parameters") else f"{tool} changed"


def _function(tool: Any) -> Mapping[str, Any]:
    inner = tool.get(str(tool.get("type"))) if is_object(tool) else None
    return inner if is_object(inner) else tool if is_object(tool) else {}


def _name(tool: Any) -> str:
    function = _function(tool)
    return _shown(function.get("name") or function.get("server_label") or function.get("type"))


def _shown(name: object) -> str:
    return repr(one_line(name, _SHOWN))


def _other_message(at: int, old: Sequence[Any], new: Sequence[Any]) -> str:
    mine, other = old[at], new[at]
    was, now = (message.get("role") in INSTRUCTING for message in (mine, other))
    if at or not (was or now):
        fewer = len(old) - len(new)
        return f"messages[{at}] changed" + (f", and there are {fewer} fewer messages" if fewer > 0 else "")
    if not (was and now):
        return f"the instructions are {'gone' if was else 'new'}"
    texts = mine.get("content"), other.get("content")
    if not all(isinstance(text, str) for text in texts):
        return "the instructions changed"
    return f"the instructions changed at character {_common_start(*texts)}"


def _common_start(text: str, other: str) -> int:
    """Return the number of equal characters at the start of two texts."""
    length = min(len(text), len(other))
    return bisect_left(range(1, length + 1), True, key=lambda end: text[:end] != other[:end])


# --- estimates --------------------------------------------------------------------------------------------------------


def _share(body: Mapping[str, Any], tools: int, messages: int) -> float:
    """Return the share of the request that is in its first tools and messages."""
    own_tools, own_messages = _tools(body), body["messages"]
    kept = _sizes([*own_tools[:tools], *own_messages[:messages]])
    return kept / max(_sizes([*own_tools, *own_messages]), 1)


def _sizes(values: Sequence[Any]) -> int:
    return sum(map(_size, values))


def _size(value: Any) -> int:
    """Return the characters of a tool or a message. A part that is no text counts as `_MEDIA_SIZE`."""
    parts = value.get("content") if is_object(value) else None
    if not is_array(parts):
        return len(str({key: value[key] for key in value if key not in ITEM_KEYS} if is_object(value) else value))
    texts = [part.get("text") if is_object(part) else None for part in parts]
    return sum(len(text) if isinstance(text, str) else _MEDIA_SIZE for text in texts)
