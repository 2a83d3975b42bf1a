"""The SQLite file of a journal: checking whose it is, reading and writing.

Decides whether a file is the journal of this batch, and whether an item is already in it. Every call blocks. A lock
keeps the file for one batch at a time; the lock ends with the process, also if the process is killed. SQLite's own lock
does not suffice: a process loses it when it closes any descriptor of the file, such as that of a copy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike, fspath
from typing import Any, Literal, NamedTuple, TypeAlias

from aswarm._errors import ConfigurationError
from aswarm._files import SideLock
from aswarm._json import shown

FORMAT = 1
_APPLICATION_ID = 0x6173776D  # "aswm"; a SQLite file says in its header which application it belongs to
_BUSY_SECONDS = 1.0  # a killed process may need a moment until its lock is gone
_SHOWN = 80  # how many characters of a value an error message shows
_ROWS_PER_STATEMENT = 150  # with five values each, below the limit of every SQLite
_TABLES = """
CREATE TABLE batch (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE item (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, content TEXT NOT NULL);
CREATE TABLE step (
    seq INTEGER PRIMARY KEY, item INTEGER NOT NULL, kind TEXT NOT NULL, turn INTEGER NOT NULL,
    position INTEGER NOT NULL, data TEXT NOT NULL
);
CREATE INDEX step_of_item ON step (item, kind);
"""


StepKind: TypeAlias = Literal["completion", "started", "outcome", "withdrawn", "finished"]


class Step(NamedTuple):
    """One recorded step of an item. `turn` counts completions from 1; calls that are open at the start have 0."""

    item: int
    kind: StepKind
    turn: int = 0
    position: int = 0
    data: str = ""


class StoredItem(NamedTuple):
    """An item in the file. `steps`: those of earlier processes; of a finished item only the last one.

    `is_repeated`: this process has looked the item up before.
    """

    number: int
    content: str
    is_repeated: bool = False
    steps: Sequence[Step] = ()


class JournalFile:
    """An open journal file. Any thread may use it, but only one at a time."""

    def __init__(self, connection: sqlite3.Connection, resources: ExitStack) -> None:
        """`close` closes what `resources` has, from now on."""
        self._connection = connection
        self._is_durable: bool | None = None
        (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()
        self._first = self._next = last + 1
        self._seen = bytearray(last + 1)  # which items of earlier processes were looked up by this one
        self._resources = resources.pop_all()

    @classmethod
    def open(cls, path: str | PathLike[str], fingerprint: Mapping[str, str]) -> JournalFile:
        """Open the journal, or make it. Raises ConfigurationError for a file of another kind or another batch."""
        name = fspath(path)
        if name in ("", ":memory:"):  # SQLite accepts these names, and keeps nothing on disk
            raise ConfigurationError(f"journal must be the path of a file, or None for no journal, not {name!r}")
        with ExitStack() as stack:
            stack.callback(_acquire(name).release)
            try:
                connection = sqlite3.connect(name, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
                stack.callback(connection.close)
                _lock_and_check(connection, name, fingerprint)
                return cls(connection, stack)
            except (sqlite3.Error, UnicodeEncodeError) as error:
                raise ConfigurationError(_open_error(name, error)) from error

    def close(self) -> None:
        """Close the file, and unlock it; SQLite moves the write-ahead log into it."""
        self._resources.close()

    def work(self, wanted: Sequence[tuple[str, str]], steps: Sequence[Step], *, is_durable: bool) -> list[StoredItem]:
        """Look up items by id and content, and add those that are new; then write the steps: all in one transaction.

        After this, the data survives the end of the process. With `is_durable` it is on disk, with all data written
        before, and survives a power failure.
        """
        self._set_durable(is_durable)
        found, items = self._find(wanted) if wanted else ([], [])
        statements = [
            *_inserts("item (number, id, content)", items),
            *_inserts("step (item, kind, turn, position, data)", steps),
        ]
        if len(statements) == 1:
            self._connection.execute(*statements[0])
        elif statements:
            self._connection.execute("BEGIN")
            for statement in statements:
                self._connection.execute(*statement)
            self._connection.execute("COMMIT")
        return found

    def _set_durable(self, is_durable: bool) -> None:
        if is_durable is not self._is_durable:
            self._is_durable = is_durable
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")

    def _find(self, wanted: Sequence[tuple[str, str]]) -> tuple[list[StoredItem], list[tuple[int, str, str]]]:
        """The items, and the rows of those that are new."""
        known = {row[1]: row for row in self._select("SELECT number, id, content FROM item WHERE id", _ids(wanted))}
        steps = self._steps_of([number for number, _, _ in known.values() if number < self._first])
        found: list[StoredItem] = []
        items: list[tuple[int, str, str]] = []
        for item_id, content in wanted:
            if item_id in known:
                number, _, recorded = known[item_id]
                found.append(StoredItem(number, recorded, self._is_repeated(number), steps.get(number, ())))
            else:
                items.append((self._next, item_id, content))
                known[item_id] = items[-1]
                found.append(StoredItem(self._next, content))
                self._next += 1
        return found, items

    def _is_repeated(self, number: int) -> bool:
        repeated = number >= self._first or bool(self._seen[number])
        if not repeated:
            self._seen[number] = 1
        return repeated

    def _steps_of(self, numbers: Iterable[int]) -> dict[int, list[Step]]:
        steps: dict[int, list[Step]] = {number: [] for number in numbers}
        columns = "SELECT item, kind, turn, position, data FROM step"
        for row in self._select(f"{columns} WHERE kind = 'finished' AND item", steps):
            steps[row[0]].append(Step(*row))
        unfinished = [number for number, known in steps.items() if not known]
        for row in self._select(f"{columns} WHERE item", unfinished, " ORDER BY seq"):
            steps[row[0]].append(Step(*row))
        return steps

    def _select(self, query: str, values: Iterable[object], order: str = "") -> Iterator[Any]:
        for chunk in _chunks(list(values)):
            yield from self._connection.execute(f"{query} IN ({_placeholders(len(chunk))}){order}", chunk).fetchall()


def _acquire(name: str) -> SideLock:
    try:
        lock = SideLock.acquire(name, _BUSY_SECONDS)
    except OSError as error:
        raise ConfigurationError(
            f"the journal {name} cannot be opened: {error.strerror}: {error.filename}. A journal needs a folder in which "
            "this process may make files"
        ) from error
    if lock is None:
        raise ConfigurationError(_in_use(name))
    return lock


def _lock_and_check(connection: sqlite3.Connection, name: str, fingerprint: Mapping[str, str]) -> None:
    """Lock the file; check its content, or make the tables of a new one. A file of another program is not changed."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    is_new = not (application or version or tables)
    if not is_new and application != _APPLICATION_ID:
        raise ConfigurationError(
            f"{name} is a database of another program, not a journal of aswarm; give the journal another path"
        )
    if not is_new and version != FORMAT:
        raise ConfigurationError(
            f"the journal {name} was written by another version of aswarm (its format is {version}, this version reads "
            f"{FORMAT}); finish the batch with that version, or start it again with another path"
        )
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigurationError(
            f"the journal {name} cannot be on this file system, because SQLite has no write-ahead log there; give it a "
            "path on a local disk"
        )
    connection.execute("PRAGMA fullfsync = ON")  # on macOS a plain sync may leave data in the cache of the disk
    connection.execute("BEGIN EXCLUSIVE")
    if is_new:
        _make_tables(connection, fingerprint)
    else:
        _check_fingerprint(name, dict(connection.execute("SELECT key, value FROM batch")), fingerprint)
    connection.execute("COMMIT")


def _make_tables(connection: sqlite3.Connection, fingerprint: Mapping[str, str]) -> None:
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.executemany("INSERT INTO batch VALUES (?, ?)", fingerprint.items())
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _check_fingerprint(name: str, recorded: Mapping[str, str], fingerprint: Mapping[str, str]) -> None:
    for key in {**recorded, **fingerprint}:
        then, now = recorded.get(key), fingerprint.get(key)
        if then != now:
            verb = "are" if key.endswith("s") else "is"
            raise ConfigurationError(
                f"{name} is the journal of another batch: its {key} {verb} {shown(then, _SHOWN)}, and in this batch "
                f"{shown(now, _SHOWN)}. Continue that batch with its settings, or give this one a journal of its own"
            )


def _open_error(name: str, error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code; the higher bits hold the extended one
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _in_use(name)
    if code == sqlite3.SQLITE_NOTADB:
        return f"{name} is not a journal of aswarm: {error}; give the journal another path"
    return f"the journal {name} cannot be opened: {error}"


def _in_use(name: str) -> str:
    return f"the journal {name} is in use: another batch has it open; wait until that ends, or use another journal"


def _ids(wanted: Sequence[tuple[str, str]]) -> dict[str, None]:
    return dict.fromkeys(item_id for item_id, _ in wanted)


def _inserts(into: str, rows: Sequence[Sequence[object]]) -> Iterator[tuple[str, list[object]]]:
    # One statement for many rows, because each statement releases the interpreter's lock and waits for it again.
    for chunk in _chunks(rows):
        row_placeholders = f"({_placeholders(len(chunk[0]))})"
        values = ", ".join([row_placeholders] * len(chunk))
        # The text of the statement holds only names from this module; all data is passed as parameters.
        yield f"INSERT INTO {into} VALUES {values}", [value for row in chunk for value in row]  # noqa: S608 - see above


def _chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        yield rows[start : start + _ROWS_PER_STATEMENT]


def _placeholders(count: int) -> str:
    return ", ".join("?" * count)
