"""The report of a failed universe: its schedule, its time line, and a file for the playground."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aswarm._record.entries import Entry, as_json

from ._world import START, World

_SHOWN = 150  # characters of a line
_FIELDS = ("turn", "index", "name", "text", "arguments", "content", "reason")


def timeline(world: World) -> list[str]:
    """Return the lines of the time line: virtual seconds, the run, the event. The entries of logs have only milliseconds."""
    names = {run.id: run.name for run in world.runs}
    lines = [(at, f"{at:9.4f}  {text}") for at, text in world.notes]
    for call in world.calls:
        run = names.get(call.run, call.run[:8])
        lines.append((call.at, f"{call.at:9.4f}  {run}: function {call.name} starts with {call.arguments}"))
    for each in world.runs:
        lines += [(at, f"{at:9.4f}  {each.name}: {_line(event.to_dict())}") for at, event in each.events]
    for run_id, log in world.logs.items():
        at = 0.0
        for entry in log:
            milliseconds = entry.at_ms / 1000 - START
            at = max(at, milliseconds, _start_of(world, run_id, entry))
            lines.append((at, f"{milliseconds:8.3f}   {run_id[:8]}: {_line(entry.to_dict())}"))
    lines = [line for line in lines if "Delta " not in line[1]]  # the pieces of texts and arguments
    return [f"  {line}" for _, line in sorted(lines, key=lambda line: line[0])]


def _start_of(world: World, run_id: str, entry: Entry) -> float:
    """Return the time of the last start of the call that has finished, within the millisecond of the entry; otherwise 0."""
    if entry.type != "ToolCallFinished":
        return 0.0
    until, index = (entry.at_ms + 1) / 1000 - START, entry.fields["index"]
    starts = (call.at for call in world.calls if (call.run, call.index) == (run_id, index) and call.at < until)
    return max(starts, default=0.0)


def _line(event: Mapping[str, Any]) -> str:
    shown = {key: event[key] for key in _FIELDS if key in event}
    return f"{event['type']} {' '.join(f'{key}={value!r}' for key, value in shown.items())}"[:_SHOWN]


# --- the file of the playground ---


def write_file(world: World, path: Path) -> None:
    """Write the runs of the world for `aswarm serve --open`: a line of JSON for each entry, with the id of its run.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for run_id, entries in _logs(world):
            for entry in entries:
                file.write(as_json({"run": run_id, **entry.to_dict()}) + b"\n")


def _logs(world: World) -> Iterator[tuple[str, Sequence[Entry]]]:
    yield from world.logs.items()
    for run in world.runs:
        if run.entries:
            yield run.entries[0].fields["run_id"], run.entries
