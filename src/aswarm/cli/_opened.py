"""`aswarm serve --open FILE`: shows the runs of a file in the playground, such as the file of a failed simulation.

Each line of the file is an entry of a log, as JSON, with the id of its run in `run`. Only a line feed ends a line: a text may have
other separators, such as U+2028.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from aswarm._record.entries import JOINED, now
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.errors import AswarmError
from aswarm._values.json import is_array, is_object, shown
from aswarm._values.messages import normalize
from aswarm._values.text import one_line
from aswarm.runs import Entry, Folded
from aswarm.runs._shown_logs import Logs, ended
from aswarm.testing import ScriptedModel

from ._command import SetupError

Checks: TypeAlias = Mapping[str, Callable[[Any], bool]]
_LONGEST_ID = 200
_MOST = 10**14  # also the largest time in milliseconds, in the year 5138
_DELTAS = frozenset({*JOINED, "ToolCallDelta"})  # most entries; they change no message
_SHOWN = 60  # characters of a value in an error text
_ANSWER = "This page shows the runs of a file, and no model answers. To continue with your agents: aswarm serve AGENT --open FILE"


def read_logs(path: str) -> Logs:
    """Return the entries of a file by run. Their times are moved so that the last entry is from now. Raises SetupError.

    The error names the file, the line and the fault.
    """
    try:
        lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from error
    logs: dict[str, list[Entry]] = defaultdict(list)
    folded: dict[str, Folded] = defaultdict(Folded)
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                run, entry = _entry_in(line)
                _add(folded[run], logs[run], entry)
        except ValueError as error:
            raise SetupError(f"{path} has no runs that can be shown: line {number}: {error}") from error
    if not logs:
        raise SetupError(f"{path} has no runs: line 1 must be an entry of a log, with the id of its run")
    later = now() - max(entry.at_ms for entries in logs.values() for entry in entries)
    return {
        run: [replace(entry, at_ms=entry.at_ms + later) for entry in ended(entries)] for run, entries in logs.items()
    }


def _entry_in(line: bytes) -> tuple[str, Entry]:
    """Return the id of the run and the entry of a line. Raises ValueError with the fault."""
    try:
        data: object = json.loads(line.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not is_object(data):
        raise ValueError(f"expected an entry of a log, a JSON object, not {shown(data, _SHOWN)}")
    fields: dict[str, Any] = dict(data)
    run = fields.pop("run", None)
    if not _is_id(run):
        raise ValueError(f"'run' must be the id of a run, not {shown(run, _SHOWN)}")
    if fields.get("type") == "RunStarted":
        fields = {"run_id": run, "before": 0, "calls": [], "resume": False, **fields}
    _check({"seq": _is_count, "at": _is_count, "type": _is_text, **_FIELDS.get(str(fields.get("type")), {})}, fields)
    return run, Entry.from_dict(fields)


def _add(folded: Folded, log: list[Entry], entry: Entry) -> None:
    """Add an entry to a log and to its state. Raises ValueError for an entry that cannot follow."""
    if (entry.type == "RunStarted") is bool(log):
        raise ValueError("a run must start with its first entry, RunStarted, and have only one")
    if log and (log[-1].is_last or entry.seq <= log[-1].seq):
        raise ValueError(f"the entry {entry.seq} cannot follow the entry {log[-1].seq} of its run")
    try:
        folded.add(entry)
        if entry.type not in _DELTAS:
            normalize(folded.messages)  # as a page and the next run read them
    except (AswarmError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the entry {entry.type} is not valid: {one_line(str(error)) or type(error).__name__}"
        ) from error
    log.append(entry)


def _is_id(value: object) -> bool:
    """Return whether the value can be an id in a database and in the path of a URL."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_ID and value.isprintable() and "/" not in value


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_piece(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_response(value: object) -> bool:
    """Return whether the value is the response of a run, or None. Its agent and its stop are columns of a database."""
    return value is None or (is_object(value) and all(_is_name(value.get(key, "")) for key in ("agent", "stop")))


# The fields of entries that the page reads, and a check for each. A field without a check here may have any JSON value.
_CALL: Checks = {"index": _is_count, "id": _is_text, "name": _is_text}
_FIELDS: Mapping[str, Checks] = {
    "RunStarted": {
        "run_id": _is_text,
        "agent": _is_name,
        "conversation": lambda value: not value or _is_id(value),
        "before": _is_count,
        "messages": is_array,
        "calls": is_array,
    },
    "TurnStarted": {"agent": _is_name},
    "TextDelta": {"text": _is_text},
    "ReasoningDelta": {"text": _is_text},
    "RefusalDelta": {"text": _is_text},
    "CompletionFinished": {"message": is_object, "usage": is_object},
    "ToolCallDelta": {"index": _is_count, "id": _is_piece, "name": _is_piece, "arguments": _is_piece},
    "ToolCallStarted": _CALL,
    "ToolCallFinished": {**_CALL, "content": lambda value: isinstance(value, str | list)},
    "ToolCallWithdrawn": _CALL,
    "ToolProgress": _CALL,
    "CallWaiting": {**_CALL, "reason": _is_text},
    "HandedOff": {"source": _is_name, "target": _is_name},
    "ContextChanged": {"changes": is_object, "removed": is_array},
    "MessagesRecorded": {"start": _is_count, "messages": is_array},
    "RunFinished": {"response": lambda value: is_object(value) and "stop" in value and _is_response(value)},
    "RunFailed": {
        "error": lambda value: is_object(value) and _is_text(value.get("type")),
        "response": _is_response,
    },
    "RunStopped": {"reason": _is_text, "response": _is_response},
}
_OPTIONAL = ("response",)


def _check(checks: Checks, fields: Mapping[str, Any]) -> None:
    for key, is_valid in checks.items():
        if key not in fields and key in _OPTIONAL:
            continue
        if key not in fields:
            raise ValueError(f"the entry has no {key!r}")
        if not is_valid(fields[key]):
            raise ValueError(f"{key!r} has the value {shown(fields[key], _SHOWN)}, which an entry cannot have")


def shown_swarm() -> AsyncSwarm:
    """Return the swarm of a page without agents of the user. Its answers say that there is no model."""
    return AsyncSwarm(ScriptedModel(lambda _: _ANSWER).client())


def shown_agents(logs: Logs) -> list[Agent]:
    """Return an agent for each name in the entries."""
    names = (entry.fields.get("agent") for entries in logs.values() for entry in entries)
    return [Agent(name=name) for name in dict.fromkeys(name for name in names if isinstance(name, str))]
