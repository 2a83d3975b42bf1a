"""Answers of a scripted model, for both APIs: texts, tool calls, and the pieces of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeAlias

Cut: TypeAlias = int | Callable[[str], Sequence[str]] | None
CallKind: TypeAlias = Literal["function", "custom"]
_ids = count(1)


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call of a scripted answer; see `call`. `arguments`: the JSON text that the model writes.

    `kind="custom"`: a call of a custom tool. Then `arguments` is any text: `ScriptedCall("shell", "ls", "c1", kind="custom")`.
    """

    name: str
    arguments: str
    id: str
    kind: CallKind = "function"

    @property
    def payload(self) -> str:
        """The key of the arguments in the API: "arguments", or "input" for a custom tool."""
        return "arguments" if self.kind == "function" else "input"


def call(
    name: str, /, arguments: str | Mapping[str, Any] | None = None, *, call_id: str | None = None, **named: Any
) -> ScriptedCall:
    """Return a tool call. Pass its arguments by name, as a dict, or as a text, which may be invalid JSON.

    `call_id`: the id of the call; by default "call_1", "call_2", ... in this process.
    """
    text = arguments if isinstance(arguments, str) else json.dumps({**(arguments or {}), **named}, ensure_ascii=False)
    return ScriptedCall(name, text, call_id or f"call_{next(_ids)}")


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One scripted completion.

    Args:
        text: The text of the message.
        calls: The tool calls of the message.
        extra: More keys of the message, such as `{"reasoning_content": "..."}`. For the Responses API: "reasoning_content",
            "refusal", and "responses_output", a list of items before the text, such as calls of hosted tools.
        finish_reason: The finish reason; by default the reason that the API would send.
        usage: The tokens that the server reports; None: it reports no tokens.
        delay: Seconds before the first byte.
        pause: Seconds before every chunk.
        break_after: The number of chunks or events before the connection breaks. An answer that is not streamed fails at once.
    """

    text: str | None = None
    calls: Sequence[ScriptedCall] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    )
    delay: float = 0
    pause: float = 0
    break_after: int | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message in the form of Chat Completions."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text, **self.extra}
        if self.calls:
            message["tool_calls"] = [wire_call(each) for each in self.calls]
        return message

    @property
    def finish(self) -> str:
        """The finish reason; by default the reason that the API would send."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")


def wire_call(scripted: ScriptedCall) -> dict[str, Any]:
    """Return the call as in an assistant message of Chat Completions."""
    named = {"name": scripted.name, scripted.payload: scripted.arguments}
    return {"id": scripted.id, "type": scripted.kind, scripted.kind: named}


def pieces(text: str, cut: Cut) -> Sequence[str]:
    """Cut the text into the pieces of a stream."""
    if callable(cut):
        return cut(text)
    size = cut or len(text) or 1
    return [text[start : start + size] for start in range(0, len(text), size)]
