"""Compares what the decoder and aswarm read, and gives each difference its reason.

A reason is a row of docs/proof/dialects.md, or an edited fixture. Each other difference is a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.recorded.decoder import CUT, Answer, Json, events

# Fixtures that a project has shortened or written by hand, so that their parts contradict each other.
EDITED = frozenset(
    {
        "29a55db3ce0f",  # the deltas are two words of a long text
        "2dfd920826c9",  # the same
        "8b3cd88e3fd4",  # an object with the unknown status "complete", written by hand
        "120d9f2a09e6",  # the same
        "72c2fc71b75f",  # the answers of several requests in one body
        "059601f496f7",  # the same
        "3c3f1ffbd136",  # a result on the server has another id than its call
        "dd4b097f903e",  # a second answer begins before the first one has ended
    }
)
_FINISH = {"completed": "stop", "max_output_tokens": "length", "end_turn": "stop", "stop_sequence": "stop"}
_FINISH |= {"tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter", "pause_turn": "stop"}
_FINISH |= {"model_context_window_exceeded": "length", "compaction": "stop"}
_FIELDS = ("error", "text", "reasoning", "calls", "refusal", "finish", "usage", "items")


def differences(recording: Json, want: Answer, got: Answer) -> list[tuple[str, Any, Any, str | None]]:
    """Return each field that differs, with both values and the name of the reason. None: a fault."""
    if want.error and got.error:
        same = want.error == CUT or want.error.strip()[:60] in got.error
        return [] if same else [("error", want.error, got.error, None)]
    one, other = _plain(recording, want), _plain(recording, got)
    if recording["api"] == "messages" and not other["items"]:
        one["items"] = [block for block in one["items"] if not _is_in_the_message(block)]
    fields = [name for name in _FIELDS if one[name] != other[name]]
    fields = ["error"] if "error" in fields else fields  # without a message, there is nothing to compare
    return [(name, one[name], other[name], _reason(recording, name, want, got)) for name in fields]


def _is_in_the_message(block: Json) -> bool:
    """Whether the text and the calls of a message say all of a block."""
    direct = block.get("caller") in (None, {"type": "direct"})
    return not block.get("citations") and (block["type"] == "text" or (block["type"] == "tool_use" and direct))


def _plain(recording: Json, answer: Answer) -> Json:
    fields = dict(vars(answer))
    # Arguments as values, so that the spaces of JSON do not count; counts of 0 are unknown counts.
    fields["calls"] = [(name, function, value_of(arguments)) for name, function, arguments in answer.calls]
    fields["usage"] = {name: tokens for name, tokens in answer.usage.items() if tokens}
    fields["finish"] = _FINISH.get(str(answer.finish), answer.finish) or None
    if recording["api"] == "responses" and fields["finish"] == "stop" and answer.calls:
        fields["finish"] = "tool_calls"
    fields["items"] = answer.items if recording["api"] != "chat" else []
    return fields


def value_of(arguments: str) -> Any:
    """Return the value of a JSON text; the text if it is not JSON."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _reason(recording: Json, name: str, want: Answer, got: Answer) -> str | None:
    if recording["id"] in EDITED:
        return "an edited fixture"
    return next((row for row, fits in ROWS.items() if fits(recording, name, want, got)), None)


def _has_paragraphs(_: Json, name: str, want: Answer, got: Answer) -> bool:
    parts = [part for part in want.parts.get(name, ()) if part]
    return name in ("text", "reasoning") and len(parts) > 1 and getattr(got, name) == "\n\n".join(parts)


def _waits_for_a_program(_: Json, name: str, __: Answer, got: Answer) -> bool:
    return name == "error" and "needs a result from this program" in str(got.error)


def _ends_with_usage(recording: Json, name: str, want: Answer, got: Answer) -> bool:
    chunks = [*events(recording["body"])] if name == "error" and want.error == CUT else []
    is_done = recording["body"].rstrip().endswith("[DONE]")
    return bool(is_done and chunks and chunks[-1].get("usage")) and got.error is None


def _has_zero_calls(_: Json, name: str, want: Answer, got: Answer) -> bool:
    return name == "calls" and got.calls == [call for call in want.calls if any(call[:2])]


def _had_no_id(_: Json, name: str, want: Answer, got: Answer) -> bool:
    pairs = [*zip(want.calls, got.calls, strict=False)]
    rest = [(one[1:] == other[1:] and one[0] in ("", other[0]) and other[0]) for one, other in pairs]
    return name == "calls" and len(want.calls) == len(got.calls) and all(rest)


def _has_id_of_another_event(recording: Json, name: str, want: Answer, got: Answer) -> bool:
    same = [(n, value_of(a)) for _, n, a in want.calls] == [(n, value_of(a)) for _, n, a in got.calls]
    return name == "calls" and same and all(f'"{call[0]}"' in recording["body"] for call in got.calls)


def _is_deprecated(recording: Json, name: str, want: Answer, got: Answer) -> bool:
    return name == "calls" and want.finish == "function_call" and not got.calls and recording["api"] == "chat"


def _has_no_explanation(_: Json, name: str, want: Answer, got: Answer) -> bool:
    return name == "refusal" and want.finish == "refusal" and got.refusal == "The model refused to answer."


ROWS: dict[str, Callable[[Json, str, Answer, Answer], bool]] = {
    "Texts and refusals in messages of their own": _has_paragraphs,
    "A call that waits for this program is refused": _waits_for_a_program,
    "A stream that ends with its usage": _ends_with_usage,
    "Zero values": _has_zero_calls,
    "Shapes of calls": _had_no_id,
    "Servers that number items in their own way": _has_id_of_another_event,
    "A call in the deprecated form": _is_deprecated,
    "A refusal without an explanation": _has_no_explanation,
}
