"""Checks that the log of a run, its conversation and its answer agree: "log = history = answer".

The functions use the results of the public readers: the entries of a log from start to end, and the stored messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from aswarm.runs import Entry, fold

Json = dict[str, Any]
Said = tuple[str, str, tuple[str, ...]]
LAST = ("RunFinished", "RunFailed", "RunStopped")


def record_faults(entries: Sequence[Entry], history: Sequence[Json]) -> list[str]:
    """Return the contradictions between a finished log and the messages of its conversation; empty if there are none."""
    ends = [entry.type for entry in entries if entry.type in LAST]
    if len(ends) != 1 or entries[-1].type != ends[0]:
        return [f"the log has the ends {ends}, and its last entry is {entries[-1].type if entries else None}"]
    return [*_repeated_calls(entries), *_other_messages(entries, history), *_other_answer(entries)]


def _repeated_calls(entries: Sequence[Entry]) -> list[str]:
    finished = Counter(
        entry.fields.get("call_id") or entry.fields["id"] for entry in entries if entry.type == "ToolCallFinished"
    )
    return [f"the call {call} finishes {times} times in the log" for call, times in finished.items() if times > 1]


def _without_repetition(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Leave out the last entry if it repeats the others; a stopped run's last entry may contain more, which its process could not write."""
    return entries if entries[-1].type == "RunStopped" else entries[:-1]


def _other_messages(entries: Sequence[Entry], history: Sequence[Json]) -> list[str]:
    """Find the messages of the log in the history, up to the end of the run: the next message is of another run."""
    logged, kept = said(fold(_without_repetition(entries)).messages), said(history)
    for at in range(len(kept) - len(logged) + 1):
        end = at + len(logged)
        if kept[at:end] == logged and (end == len(kept) or kept[end][0] != "assistant"):
            return []
    return [f"the log says {logged}, the conversation {kept}"]


def _other_answer(entries: Sequence[Entry]) -> list[str]:
    response = entries[-1].response
    if not response:
        return []
    logged = said(fold(_without_repetition(entries)).response_messages)
    answered = said(response["messages"])
    faults = [] if logged == answered else [f"the log says {logged}, the answer {answered}"]
    if entries[-1].type == "RunFinished" and response["stop"] == "answer":
        shown = shown_text(entries)
        if answered and shown != answered[-1][1]:
            faults.append(f"readers of the log see the text {shown!r}, the answer is {answered[-1][1]!r}")
    return faults


def shown_text(entries: Sequence[Entry]) -> str:
    """Return the text of the last completion for a later reader of the log: from the deltas, or else from the completion."""
    completions = [at for at, entry in enumerate(entries) if entry.type == "CompletionFinished"]
    if not completions:
        return ""
    deltas = fold(entries[: completions[-1]]).partial
    return deltas or entries[completions[-1]].fields["message"]["content"] or ""


def said(messages: Sequence[Json]) -> list[Said]:
    """Return the role, the text and the names of the calls of each message."""
    return [
        (
            message["role"],
            str(message.get("content") or ""),
            tuple(call["function"]["name"] for call in message.get("tool_calls") or ()),
        )
        for message in messages
    ]
