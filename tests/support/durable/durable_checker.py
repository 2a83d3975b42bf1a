"""Compares the ends of durable runs with the notes of their functions."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg

from aswarm.runs import Entry, fold
from tests.support.durable.durable_process import is_approved

UNKNOWN = "cancelled; its outcome is unknown"
DENIED = "not run: denied by the user"


@dataclass(frozen=True)
class Ended:
    """A run of the database. `last`: the last entry of its log, as JSON data; None if it has not finished."""

    run: str
    conversation: str
    last: dict[str, Any] | None

    @property
    def response(self) -> dict[str, Any]:
        return (self.last or {}).get("response") or {}

    @property
    def told(self) -> list[str]:
        return [message["content"] for message in self.response.get("messages", ()) if message["role"] == "tool"]


class Checked:
    """The result of the check. `faults`: must be empty. `counts`: by kind, such as "ended" and "unknown"."""

    def __init__(
        self, runs: Iterable[Ended], notes: Iterable[str], *, max_deaths: int = 0, is_cut_off: bool = False
    ) -> None:
        """`notes`: the notes of all processes, ordered by their times, without the times.

        `is_cut_off`: whether processes may have lost the database. Other processes then continue their runs, and their functions
        are cancelled when they reach the database again.
        """
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self._max_deaths = max_deaths
        self._is_cut_off = is_cut_off
        self._runs = list(runs)
        self._notes = [line.split(" ", 2) for line in notes]
        self._noted = Counter((words[0], words[1]) for words in self._notes)
        self._check_notes()
        for ended in self._runs:
            if ended.last is None:
                self.faults.append(f"{ended.run} has not ended")
            else:
                self.counts["ended"] += 1
                # The id of a run that continues another run after its answers is random.
                kind = ended.run.split("-")[1] if "-" in ended.run else "answered"
                getattr(self, f"_check_{kind}")(ended)

    # --- the notes of the functions ---

    def _check_notes(self) -> None:
        known = {ended.run for ended in self._runs}
        over: set[str] = set()
        for kind, key, *others in self._notes:
            run = key.split(":")[0]
            if kind in ("begin", "end", "crash"):
                if run in over and not (self._is_cut_off and kind == "end"):
                    self.faults.append(f"{key}: {kind} after the run was cancelled")
                if others[0] != run.split("-")[0]:
                    self.faults.append(f"{key} was executed by the version {others[0]}")
            over |= {run} if kind == "cancelled" else set()
            if kind == "started" and run not in known:
                self.faults.append(f"{run} is lost")
        for (kind, key), times in self._noted.items():
            if kind == "begin" and times > 1:
                self.faults.append(f"{key} began {times} times")
        self.counts.update({kind: self._kinds()[kind] for kind in ("cancelled", "answered", "failed")})

    def _kinds(self) -> Counter[str]:
        return Counter(words[0] for words in self._notes)

    def _check_told(self, key: str, content: str, expected: str) -> None:
        """Check that a call with a result has finished once; a call with an unknown outcome may have finished."""
        if content == UNKNOWN:
            self.counts["unknown"] += 1
        elif content != expected or self._noted["end", key] != 1:
            self.faults.append(f"{key} was told as {content!r}, and ended {self._noted['end', key]} times")

    # --- each kind of run ---

    def _check_go(self, ended: Ended) -> None:
        told, run = ended.told, ended.run
        if not self._is(ended, "RunFinished"):
            return
        calls = [(1, 0, "worked 1"), (1, 1, "looked 2"), (1, 2, "worked 3"), (2, 0, "clerk"), (3, 0, "worked 4"), (3, 1, "worked 5")]  # fmt: skip
        if len(told) != len(calls):
            self.faults.append(f"{run} has {len(told)} answers: {told}")
            return
        for content, (turn, position, expected) in zip(told, calls, strict=True):
            key = f"{run}:{turn}:{position}"
            if expected.startswith("worked") or (content == UNKNOWN and expected == "clerk"):
                self._check_told(key, content, expected)
            elif content != expected:
                self.faults.append(f"{key} was told as {content!r}")
        context = ended.response["context_variables"]
        if any(f"n{content[-1]}" not in context for content in told if content.startswith("worked ")):
            self.faults.append(f"{run} has lost a change of the context: {context}")
        if ended.response["text"] != " ".join(told):
            self.faults.append(f"{run} has the answer {ended.response['text']!r}")

    def _is(self, ended: Ended, kind: str) -> bool:
        assert ended.last is not None
        if ended.last["type"] != kind:
            self.faults.append(f"{ended.run} has ended with {json.dumps(ended.last)[:300]}")
        return ended.last["type"] == kind

    def _check_pay(self, ended: Ended) -> None:
        """Check that the run waits, and that one run continues it, and pays if that was approved."""
        key = f"{ended.run}:pay"
        if not self._is(ended, "RunFinished"):
            return
        if ended.response["stop"] != "waiting":
            self.faults.append(f"{ended.run} did not wait: {ended.told}")
        others = [each for each in self._runs if each.conversation == ended.conversation and each.run != ended.run]
        if len(others) != 1:
            self.faults.append(f"{ended.run} was continued by {len(others)} runs")
            return
        (content,) = others[0].told or [""]
        if is_approved(ended.run):
            self._check_told(key, content, f"paid {ended.run}")
        elif content != DENIED or self._noted["begin", key]:
            self.faults.append(f"{key} was denied and told as {content!r}, and began {self._noted['begin', key]} times")

    def _check_answered(self, ended: Ended) -> None:
        self._is(ended, "RunFinished")

    def _check_sleep(self, ended: Ended) -> None:
        """Check that the run was cancelled; or that its process was killed, and it ended with that answer before the cancellation."""
        assert ended.last is not None
        if ended.last["type"] == "RunStopped":
            self.counts["stopped"] += 1
        elif self._is(ended, "RunFinished"):
            self._check_told(f"{ended.run}:sleep", ended.told[0], "slept")

    def _check_crash(self, ended: Ended) -> None:
        """Check that it killed exactly the allowed number of processes."""
        times = self._noted["crash", f"{ended.run}:crash"]
        if self._is(ended, "RunFailed") and times != self._max_deaths:
            self.faults.append(f"{ended.run} has killed {times} processes")


# --- the data to check ------------------------------------------------------------------------------------------------


def runs_of(url: str) -> list[Ended]:
    """Return all runs of the database, with their ends."""
    statement = (
        "SELECT r.id, r.conversation, r.status, e.data FROM aswarm_run r JOIN aswarm_entry e ON e.run = r.id "
        "ORDER BY r.number, e.first"
    )
    path = url.removeprefix("sqlite:///")
    connection: Any = psycopg.connect(url) if path == url else sqlite3.connect(path)
    rows = connection.execute(statement).fetchall()
    connection.close()
    return [
        Ended(
            run, conversation, None if status in ("queued", "running") else _end_of([bytes(row[3]) for row in of_run])
        )
        for (run, conversation, status), of_run in groupby(rows, lambda row: row[:3])
    ]


def _end_of(rows: list[bytes]) -> dict[str, Any]:
    """Return the last entry of a log, with the messages of the log before it."""
    entries = [Entry.from_dict(json.loads(line)) for row in rows for line in row.split(b"\n")]
    last, messages = entries[-1].to_dict(), fold(entries[:-1]).response_messages
    if "response" in last:
        texts = [message["content"] or "" for message in messages if message["role"] == "assistant"]
        last["response"] |= {"messages": messages, "text": texts[-1] if texts else ""}
    return last


def notes_of(folders: Iterable[Path]) -> list[str]:
    """Return the notes of all processes, in order, without their times."""
    lines = [line.split(" ", 1) for folder in folders for line in (folder / "effects.txt").read_text().splitlines()]
    return [line for _, line in sorted(lines, key=lambda each: int(each[0]))]
