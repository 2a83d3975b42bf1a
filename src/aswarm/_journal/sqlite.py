"""The SQLite file of a journal: whose it is, what is in it, reading and writing.

Decides whether a file is the journal of this batch, and whether an item was met before. Every call blocks. One process
has the file at a time, by SQLite's own lock, which ends with the process however that ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple

from aswarm._errors import ConfigurationError
from aswarm._json import shown

FORMAT = 1
_APPLICATION = 0x6173776D  # "aswm", where SQLite keeps whose file it is
_BUSY_SECONDS = 1.0  # a process that was killed may take a moment to be gone
_SHOWN = 80  # how much of a value an error message shows
_AT_ONCE = 150  # rows of one statement; five values each are below the limit of every SQLite
_TABLES = """
CREATE TABLE batch (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE item (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, content TEXT NOT NULL);
CREATE TABLE step (
    seq INTEGER PRIMARY KEY, item INTEGER NOT NULL, kind TEXT NOT NULL, turn INTEGER NOT NULL,
    position INTEGER NOT NULL, data TEXT NOT NULL
);
CREATE INDEX step_of_item ON step (item, kind);
"""


class Step(NamedTuple):
    """Something that happened to an item. `turn` counts completions from 1; calls open at the start have turn 0."""

    item: int
    kind: str
    turn: int = 0
    position: int = 0
    data: str = ""


class Found(NamedTuple):
    """An item as the file knows it. `steps`: those of earlier processes; of a finished item only the last."""

    number: int
    content: str
    is_repeated: bool = False
    steps: Sequence[Step] = ()


class JournalFile:
    """An open journal. `open` makes it, or checks it; may then be used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._is_durable: bool | None = None
        (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()
        self._first = self._next = last + 1
        self._seen = bytearray(last + 1)  # which of the items of earlier processes were begun by this one

    @classmethod
    def open(cls, path: str | PathLike[str], fingerprint: Mapping[str, str]) -> JournalFile:
        """Open the journal, or make it. Raises ConfigurationError for what is no journal, or not that of this batch."""
        name = fspath(path)
        if name in ("", ":memory:"):  # SQLite would take them, and keep nothing
            raise ConfigurationError(f"journal must be the path of a file, or None for no journal, not {name!r}")
        try:
            connection = sqlite3.connect(name, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise ConfigurationError(_trouble(name, error)) from error
        try:
            _take(connection, name, fingerprint)
            return cls(connection)
        except (sqlite3.Error, UnicodeEncodeError) as error:
            connection.close()
            raise ConfigurationError(_trouble(name, error)) from error
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the file; what the write-ahead log holds is brought into it."""
        self._connection.close()

    def work(self, asked: Sequence[tuple[str, str]], steps: Sequence[Step], *, is_durable: bool) -> list[Found]:
        """Look up items by id and content, and write them where they are new; then write the steps. All or nothing.

        What was written outlives the process when this returns. With `is_durable` it is on the disk, and outlives the
        machine, and so does all that was written before.
        """
        self._set_durable(is_durable)
        found, items = self._find(asked) if asked else ([], [])
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

    def _find(self, asked: Sequence[tuple[str, str]]) -> tuple[list[Found], list[tuple[int, str, str]]]:
        known = {row[1]: row for row in self._select("SELECT number, id, content FROM item WHERE id", _ids(asked))}
        steps = self._steps_of([number for number, _, _ in known.values() if number < self._first])
        found: list[Found] = []
        items: list[tuple[int, str, str]] = []
        for item_id, content in asked:
            if item_id in known:
                number, _, recorded = known[item_id]
                found.append(Found(number, recorded, self._is_repeated(number), steps.get(number, ())))
            else:
                items.append((self._next, item_id, content))
                known[item_id] = items[-1]
                found.append(Found(self._next, content))
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
        open_items = [number for number, known in steps.items() if not known]
        for row in self._select(f"{columns} WHERE item", open_items, " ORDER BY seq"):
            steps[row[0]].append(Step(*row))
        return steps

    def _select(self, query: str, values: Iterable[object], order: str = "") -> Iterator[Any]:
        for chunk in _chunks(list(values)):
            yield from self._connection.execute(f"{query} IN ({_marks(len(chunk))}){order}", chunk).fetchall()


def _take(connection: sqlite3.Connection, name: str, fingerprint: Mapping[str, str]) -> None:
    """Lock the file, and check or make what is in it. Nothing of a file of somebody else's is changed."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    is_new = not (application or version or tables)
    if not is_new and application != _APPLICATION:
        raise ConfigurationError(f"{name} is a database, but no journal of aswarm; give the journal another path")
    if not is_new and version != FORMAT:
        raise ConfigurationError(
            f"the journal {name} was written by another version of aswarm (its format is {version}, this one's is "
            f"{FORMAT}): finish the batch with that version, or start it anew with another path"
        )
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigurationError(f"the journal {name} needs a file system that has SQLite's write-ahead log")
    connection.execute("PRAGMA fullfsync = ON")  # of macOS, where what was synced may not be on the disk yet
    connection.execute("BEGIN EXCLUSIVE")
    if is_new:
        _make(connection, fingerprint)
    else:
        _check(name, dict(connection.execute("SELECT key, value FROM batch")), fingerprint)
    connection.execute("COMMIT")


def _make(connection: sqlite3.Connection, fingerprint: Mapping[str, str]) -> None:
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.executemany("INSERT INTO batch VALUES (?, ?)", fingerprint.items())
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _check(name: str, recorded: Mapping[str, str], fingerprint: Mapping[str, str]) -> None:
    for key in {**recorded, **fingerprint}:
        then, now = recorded.get(key), fingerprint.get(key)
        if then != now:
            verb = "are" if key.endswith("s") else "is"
            raise ConfigurationError(
                f"{name} is the journal of another batch: its {key} {verb} {shown(then, _SHOWN)}, and in this batch "
                f"{shown(now, _SHOWN)}. Run that batch to its end, or give this one a journal of its own"
            )


def _trouble(name: str, error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what extends it
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"the journal {name} is in use: another batch has it open; wait for its end, or give this one its own"
    if code == sqlite3.SQLITE_NOTADB:
        return f"{name} is no journal of aswarm: {error}; give the journal another path"
    return f"the journal {name} cannot be opened: {error}"


def _ids(asked: Sequence[tuple[str, str]]) -> dict[str, None]:
    return dict.fromkeys(item_id for item_id, _ in asked)


def _inserts(into: str, rows: Sequence[Sequence[object]]) -> Iterator[tuple[str, list[object]]]:
    # One statement for many rows: the interpreter's lock is given up, and waited for, once for each statement.
    for chunk in _chunks(rows):
        mark = f"({_marks(len(chunk[0]))})"
        values = ", ".join([mark] * len(chunk))
        # Nothing but names from here is written into the statement.
        yield f"INSERT INTO {into} VALUES {values}", [value for row in chunk for value in row]  # noqa: S608 - see above


def _chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), _AT_ONCE):
        yield rows[start : start + _AT_ONCE]


def _marks(count: int) -> str:
    return ", ".join("?" * count)
