"""`Journal`: a file with the runs of a batch, so that a rerun after a crash continues them.

It is a SQLite file with the tables of a log, which only one process at a time can use, on one machine. While the file is open,
a write-ahead log and a lock file are in the same folder. It is not a queue. Each item is a run in the log. A rerun of the item is
another attempt of this run, which `EntryRecorder` records and replays. The entries of an item, and when each is written:

    TurnStarted, CompletionFinished    the whole completion, with its usage     together with the next entry
    ToolCallStarted                    a function is about to run               before it runs: the run waits for the disk
    ToolCallFinished                   the outcome of the call                  at once; the run does not wait
    ToolCallWithdrawn                  the call stays open; its function has not run              at once; the run does not wait
    RunFinished                        the `Response` of the item               before it is returned: the run waits for the disk

The entries of an item are written in order. One thread writes the entries of all items, many in one commit. So a crash can lose
only the last entries. A written entry survives a crash of the process. After a wait for the disk, all earlier entries also
survive a power failure.

`entry_recorder` documents the replay of a call. A call without an outcome is in `Response.unknown_calls`. An item with RunFinished
does not run again: the batch returns the recorded `Response`.

A rerun starts each item from its first message. The loop makes the same requests and calls, and the recorder answers them from
the entries. It compares each request with the recorded request. Some data cannot be recorded: context variables that are not
JSON, and handoffs to agents that a rerun could not find by name. Such data raises an error in the first run. If a tool
changes an object in the context variables (a client, a cart), this change is not recorded.

An additional table identifies the batch. The lock file reserves the journal for one batch at a time, until the process ends.
SQLite's own lock is not enough: a process loses it when it closes any descriptor of the file, for example after copying the file.
"""
# ruff: noqa: S608 - statements contain only names of this module; all data is passed as parameters

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike, fspath
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from pydantic_core import to_jsonable_python

from aswarm._log import runs as log
from aswarm._log.runs import ATTEMPT_NUMBERS, Ending, LogRow
from aswarm._log.writer import WITHIN, LogWriter
from aswarm._record.entries import Entry, entries_of, now
from aswarm._record.entry_maker import withdrawal
from aswarm._record.entry_recorder import EntryRecorder
from aswarm._record.facts import Facts
from aswarm._record.fingerprints import item_fingerprint
from aswarm._record.outcomes import recorded_response, response_fields
from aswarm._run.call import ToolCall
from aswarm._run.options import RunOptions
from aswarm._runtime import clocks
from aswarm._runtime.files import SideLock
from aswarm._sql.database import DatabaseConnection
from aswarm._sql.databases import SQLiteFile
from aswarm._sql.sqlite import is_busy
from aswarm._sql.transactions import Schema, Transaction, marks
from aswarm._tools.directory import AgentDirectory
from aswarm._values.agent import Agent, Response, asked_for
from aswarm._values.errors import AswarmError, ConfigurationError, RunError, StoreError, named
from aswarm._values.events import (
    CallWaiting,
    CompletionFinished,
    Event,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from aswarm._values.json import shown
from aswarm._values.messages import has_started_inside

T = TypeVar("T")
# Runs a conversation to its end, and passes its events to the recorder.
RunRecorded: TypeAlias = Callable[[RunOptions, EntryRecorder], Awaitable[Response]]
# Seconds until an entry is written, if no run waits for it; other entries are written with the next one.
_WITHIN = {"ToolCallFinished": 0.0, "ToolCallWithdrawn": 0.0, "ToolProgress": WITHIN}
_LOOKUPS_KEPT = 64  # limited, because a batch may create an agent for every item
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens", "details")
# A provider's client may put objects into a message. They are recorded in the form in which they are sent.
_encode = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode

_BATCH = "CREATE TABLE aswarm_batch (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_COLUMNS = log.ADDED_IN_FORMAT_4[:2]  # the indexes after them are for queries that a journal does not have


def _to_format_3() -> Transaction[None]:
    for statement in _COLUMNS:
        yield statement, ()


_SCHEMA = Schema(0x6173776D, 3, "a journal", (*log.TABLES, *_COLUMNS, _BATCH), {2: _to_format_3})  # "aswm"
_BUSY_SECONDS = 1.0  # the lock of a killed process may exist for a moment
_SHOWN = 80  # characters of a value in an error message
_LAST_ROWID = 2**63 - 1
_RUN = 'aswarm_run (id, digest, owner, started, "user", status, on_disconnect, version, attempt, deaths)'


class Journal:
    """The journal of one batch. It belongs to one event loop; `async with` opens or creates the file, and closes it.

        async with Journal("run.sqlite", {"agent": agent.name}) as journal:
            response = await journal.run("item 7", RunOptions(agent, messages), run_recorded)

    Opening raises ConfigurationError for the journal of another batch or of a newer version, for a journal that another
    process has open, and for a file of another kind. If `run` raises an exception, only this item has failed. But if `failure`
    is set, the error of a write, then the batch must stop.
    """

    def __init__(self, path: str | PathLike[str], fingerprint: Mapping[str, str], agents: Iterable[Agent] = ()) -> None:
        """`fingerprint`: identifies the batch; error messages name its keys. `agents`: see `AgentDirectory`."""
        self.path = fspath(path)
        if self.path in ("", ":memory:"):  # SQLite accepts these names, and keeps nothing on disk
            raise ConfigurationError(f"journal must be the path of a file, or None for no journal, not {self.path!r}")
        self._fingerprint = fingerprint
        self.failure: BaseException | None = None
        self._file = JournalFile(path)
        self._owner = clocks.urandom(16).hex()
        self._agents = agents
        self._lookups: dict[int, AgentDirectory] = {}

    async def recent_requests(self, seconds: float) -> list[tuple[float, int]]:
        """Return the age in seconds and the tokens of each completion that finished in the last `seconds`."""
        at = now()
        entries = await self._file.run(_entries_since, at - round(seconds * 1000))
        return [
            (max(0, at - entry.at_ms) / 1000, entry.fields["usage"]["total_tokens"])
            for entry in entries
            if entry.type == "CompletionFinished"
        ]

    async def run(
        self, item_id: str, options: RunOptions, run: RunRecorded, own_context: Mapping[str, Any] | None = None
    ) -> Response:
        """Run an item, or continue it. For a finished item, return the recorded `Response`.

        `own_context`: the context variables in `options` that identify the item.

        Raises the exceptions of `run`, and RunError if the file cannot be written. Raises ConfigurationError if the item was
        recorded with other messages, another agent, another `own_context` or another `resume`. Other causes are an id that is
        not valid text or was used before in this batch, and a context variable that cannot be recorded.
        """
        stored = await self._find(item_id, options, own_context)
        agents, context = self._lookup(options.agent), options.context_variables or {}
        entries = entries_of(stored.rows)
        if stored.is_finished:
            fields = entries[-1].fields["_response"]
            # If no agent has the recorded name, `agent` is a placeholder with this name. A run of the placeholder fails.
            agent = agents.find_or_name(fields["agent"], "the journal has a response of the agent")
            recorded = recorded_response(fields, agent, context)
            return recorded if options.output is None else asked_for(recorded, options.output)
        item = _ItemLog(self, self._file, item_id, stored.attempt)
        recorder = EntryRecorder(item, item, agents, item.mismatch, facts=Facts(entries), deltas=False)
        try:
            response = await run(options, recorder)
        except BaseException:
            item.flush()
            raise
        try:
            await item.finish(response_fields(response, context))
        except AswarmError as error:
            error.response = response
            raise
        return response

    async def _find(self, item_id: str, options: RunOptions, own_context: Mapping[str, Any] | None) -> StoredItem:
        try:
            item_id.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the journal cannot hold the id {item_id!r}: {error.reason}. Use an id that UTF-8 can encode"
            ) from error
        digest = item_fingerprint(options.agent, options.messages, own_context, options.resume)
        stored = await self.written(partial(self._file.submit, partial(_take, item_id, digest, self._owner)))
        if stored.digest != digest:
            raise ConfigurationError(
                f"the item {item_id!r} differs from the item with this id in the journal {self.path}: in its "
                "messages, its context variables, its decisions or the name of its agent. Give the item another id, or the batch "
                "another journal"
            )
        if stored.is_repeated:
            raise ConfigurationError(
                f"two items of the batch have the id {item_id!r}; with a journal, each item needs an id of its own"
            )
        return stored

    def _lookup(self, start: Agent) -> AgentDirectory:
        directory = self._lookups.get(id(start))
        if directory is None:
            if len(self._lookups) >= _LOOKUPS_KEPT:
                self._lookups.clear()
            # The directory keeps `start` alive, so no other agent can get the same `id()`.
            directory = self._lookups[id(start)] = AgentDirectory((start, *self._agents))
        return directory

    async def written(self, write: Callable[[], Awaitable[T]]) -> T:
        """Wait for a write. Raises RunError if the file cannot be written, or if the write returns False."""
        self.check()
        try:
            if value := await write():
                return value
            self.note_failure(None)
        except StoreError as error:
            self.note_failure(error)
        raise self.lost()

    def note_failure(self, error: Exception | None) -> None:
        """Note the error of a write; None for an item that another program has changed."""
        refused = StoreError("another program has changed the journal")
        self.failure = self.failure or (refused if error is None else error.__cause__ or error)

    def check(self) -> None:
        """Raise RunError if nothing can be written."""
        if not self._file.is_open:
            raise RunError("the journal is closed")
        if self.failure is not None:
            raise self.lost()

    def lost(self) -> RunError:
        """Return the error of a run after `failure`."""
        error = RunError(f"the journal cannot be written: {self.failure}")
        error.__cause__ = self.failure
        return error

    async def __aenter__(self) -> Self:
        await self._file.open()
        try:
            await self._file.run(_check_batch, self.path, self._fingerprint)
        except StoreError as error:
            await self._file.aclose()
            raise ConfigurationError(f"the journal {self.path} cannot be opened: {error.__cause__}") from error
        except BaseException:
            await self._file.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._file.aclose()


class _ItemLog:
    """The log of one attempt of an item. It has only the entries that a rerun needs."""

    awaits_results = False

    def __init__(self, journal: Journal, file: JournalFile, item_id: str, attempt: int) -> None:
        first = (attempt - 1) * ATTEMPT_NUMBERS
        self._writer = LogWriter(file, item_id, attempt, first, journal.note_failure)
        self._journal = journal
        self._file = file
        self._id = item_id
        self._number = first  # of the next entry
        self._turn = 0

    # --- the sink of the recorder ---

    def add(self, entry: Entry) -> None:
        number, self._number = self._number, self._number + 1
        line = _encode({"seq": number, "at": entry.at_ms, "type": entry.type, **entry.fields})
        self._writer.add(line.encode(), _WITHIN.get(entry.type, math.inf))

    async def commit(self) -> None:
        self._journal.check()
        with suppress(StoreError):  # the writer has noted the failure
            if await self._writer.commit():
                return
        raise self._journal.lost()

    def flush(self) -> None:
        """Write the entries of an item that has failed or was cancelled, without waiting."""
        with suppress(ConfigurationError):  # the journal is closed
            self._writer.schedule()

    async def finish(self, response: Mapping[str, Any]) -> None:
        """Record the end of the item, and wait until it is on disk. Only then may the response be returned."""
        at = now()
        self._writer.unschedule()
        last = _encode({"seq": self._number, "at": at, "type": "RunFinished", "_response": response}).encode()
        await self._journal.written(partial(self._file.submit, partial(self._end, last, at), durable=True))

    def _end(self, last: bytes, at: int) -> Transaction[bool]:
        row = self._writer.row(last)
        assert row is not None  # noqa: S101 - it has the last entry
        return log.end(self._id, self._writer.attempt, row, Ending("finished"), at)

    def mismatch(self, turn: int, parts: str) -> ConfigurationError:
        return ConfigurationError(
            f"the item {self._id!r} cannot be resumed: request {turn} differs from the recorded one in its {parts}. Resume "
            "with the agents that the item started with (put text that changes from day to day, such as the date, into the "
            "messages and not into the instructions), or run the item again under another id: its tools then run again"
        )

    # --- the maker of the recorder ---

    def event(self, event: Event, _state: object, private: Mapping[str, Any] | None = None) -> list[Entry]:
        """Return the entries of an event, if a rerun needs them."""
        if isinstance(event, TurnStarted):
            self._turn = event.turn
        elif isinstance(event, CompletionFinished):  # with the turn, because a turn without a completion runs again
            at, usage = now(), {name: getattr(event.usage, name) for name in _USAGE}
            fields = {"message": event.message, "finish_reason": event.finish_reason, "usage": usage, **(private or {})}
            turn = Entry(0, at, "TurnStarted", {"turn": self._turn})
            return [turn, Entry(0, at, "CompletionFinished", fields)]
        elif isinstance(event, ToolCallStarted | ToolCallFinished):
            return [Entry(0, now(), type(event).__name__, {**_fields(event), **(private or {})})]
        elif isinstance(event, CallWaiting):  # a rerun decides again whether the call must wait
            # If a function of an inner run has started, the call counts as started: a rerun cannot know its outcome.
            return [] if _has_started_inside(event) else [_entry("ToolCallWithdrawn", {"index": event.index})]
        elif isinstance(event, ToolProgress) and private and not _has_started_inside(event.value):
            return [_entry("ToolProgress", {**_of_code(event), **private})]
        return []

    def withdrawn_call(self, call: ToolCall) -> Entry:
        return _entry(*withdrawal(call))


def _fields(event: ToolCallStarted | ToolCallFinished) -> dict[str, Any]:
    if isinstance(event, ToolCallStarted):
        return {"index": event.index}
    error = {} if event.error is None else {"error": named(event.error)}
    still_running = {"still_running": True} if event.still_running else {}
    return {"index": event.index, "content": event.content, **error, **still_running}


def _has_started_inside(value: object) -> bool:
    return isinstance(value, CallWaiting) and has_started_inside(value.data)


def _of_code(event: ToolProgress) -> dict[str, Any]:
    """Return the fields that record a call inside code, or the start of the code; see `Facts`."""
    value = event.value
    if isinstance(value, CallWaiting):  # a rerun decides again whether the call must wait
        value = {"type": "ToolCallWithdrawn", "index": value.index, "name": value.name}
    elif isinstance(value, ToolCallStarted | ToolCallFinished):
        value = {"type": type(value).__name__, "name": value.name, **_fields(value)}
    return {"index": event.index, "value": value}


def _entry(kind: str, fields: Mapping[str, Any]) -> Entry:
    return Entry(0, now(), kind, fields)


# --- the file ---


class StoredItem(NamedTuple):
    """An item in the file. `rows`: the entries of earlier processes; for a finished item, only the last row.

    `is_repeated`: whether this batch has taken the item before.
    """

    digest: str
    attempt: int = 1
    is_repeated: bool = False
    is_finished: bool = False
    rows: Sequence[LogRow] = ()


class JournalFile(SQLiteFile):
    """The open file of a journal. Opening raises ConfigurationError if another batch has the file open."""

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path, _SCHEMA, exclusive=True)
        self._lock: SideLock  # of the open file

    def _open_file(self) -> DatabaseConnection:
        self._lock = self._acquire()
        try:
            return super()._open_file()
        except ConfigurationError as error:
            self._lock.release()
            if is_busy(error.__cause__):
                raise self._in_use() from error
            raise

    def _acquire(self) -> SideLock:
        try:
            lock = SideLock.acquire(self.path, _BUSY_SECONDS)
        except OSError as error:
            raise ConfigurationError(
                f"the journal {self.path} cannot be opened: {error.strerror}: {error.filename}. A journal needs a folder in "
                "which this process may create files"
            ) from error
        if lock is None:
            raise self._in_use()
        return lock

    def _in_use(self) -> ConfigurationError:
        return ConfigurationError(
            f"the journal {self.path} is in use: another batch has it open; wait until that batch has finished, or use another journal"
        )

    async def aclose(self) -> None:
        await super().aclose()
        self._lock.release()  # the next batch may open the file


def _check_batch(name: str, fingerprint: Mapping[str, str]) -> Transaction[None]:
    """Record the batch in a new file. Raises ConfigurationError for the journal of another batch."""
    recorded = dict((yield "SELECT key, value FROM aswarm_batch", ()))
    if not recorded:
        for pair in fingerprint.items():
            yield "INSERT INTO aswarm_batch VALUES (?, ?)", pair
        return
    for key in {**recorded, **fingerprint}:
        then, current = recorded.get(key), fingerprint.get(key)
        if then != current:
            verb = "are" if key.endswith("s") else "is"
            raise ConfigurationError(
                f"{name} is the journal of another batch: its {key} {verb} {shown(then, _SHOWN)}, and in this batch "
                f"{shown(current, _SHOWN)}. Continue that batch with its settings, or give this batch a journal of its own"
            )


def _take(item_id: str, digest: str, owner: str) -> Transaction[StoredItem]:
    """Insert an item, or start the next attempt of an item with this digest. `owner`: the batch."""
    values = (item_id, digest, owner, now(), "", "running", "finish", "", 1, 0)
    if (yield f"INSERT INTO {_RUN} VALUES ({marks(values)}) ON CONFLICT DO NOTHING", values)[0][0]:
        return StoredItem(digest)
    columns = "digest, attempt + 1, owner, status = 'finished'"
    (row,) = yield f"SELECT {columns} FROM aswarm_run WHERE id = ?", (item_id,)
    recorded, attempt, last_owner, is_finished = row
    if recorded != digest or last_owner == owner:
        return StoredItem(recorded, is_repeated=last_owner == owner)
    yield "UPDATE aswarm_run SET owner = ?, attempt = ? WHERE id = ?", (owner, attempt, item_id)
    rows = yield from (log.last if is_finished else log.entries)(item_id)
    return StoredItem(digest, attempt, False, bool(is_finished), rows)


def _entries_since(at: int) -> Transaction[list[Entry]]:
    """Return the entries of all items since this time, in milliseconds since the epoch."""
    entries, before = list[Entry](), _LAST_ROWID
    statement = "SELECT rowid, last, data FROM aswarm_entry WHERE rowid < ? ORDER BY rowid DESC LIMIT 200"
    while rows := (yield statement, (before,)):
        recent = [entry for entry in entries_of(rows) if entry.at_ms >= at]
        if not recent:
            break
        entries += recent
        before = rows[-1][0]
    return entries
