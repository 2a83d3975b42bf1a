"""`Deleter` deletes runs: the runs of a conversation, and old runs."""
# ruff: noqa: S608 - statements contain only names of this module; all data is passed as parameters

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from aswarm._log import runs as log
from aswarm._log.runs import ACTIVE, HAS_LATER_RUN, ROWS_AT_ONCE
from aswarm._log.stored import revisions_of
from aswarm._record.entries import now
from aswarm._sql.database import Database
from aswarm._sql.transactions import Transaction, chunks, marks

from ._prepared import conversation_key
from ._requests import ConversationNotFound, Limits, RunActive
from ._starting import close_open_calls

_OF_CONVERSATION = '"user" = ? AND conversation = ?'
_DELETED_AT_ONCE = 500
_MAY_WAIT = f"waits = 1 AND conversation IS NOT NULL AND NOT {HAS_LATER_RUN}"


class Deleter:
    """Deletes the runs of one `Runs`.

    `before`: deletes what another library has about ended runs; it may be called again after a failure. `statements`: deletes the
    rows of ended runs. `unlimited_user`: the user whose runs are never deleted because of the limits.
    """

    def __init__(self, database: Database, limits: Limits) -> None:
        self.before: Callable[[Sequence[str]], Awaitable[None]] = _delete_nothing
        self.statements: Callable[[Sequence[str]], Transaction[None]] = delete
        self.unlimited_user = ""
        self._database = database
        self.limits = limits

    async def clear(self, conversation: str, user: str, **options: Any) -> None:
        """Delete the runs of a conversation in one transaction. `options`: see the function `clear`."""
        conversation_key(user, conversation)  # raises for an invalid id
        ended = await self._database.submit(lambda: ended_of(user, conversation), reads_only=True)
        await self.before(ended)
        statements = partial(clear, user, conversation, **options)
        deleted = await self._database.submit(statements, durable=True, notifies=True)
        await self.before([run_id for run_id in deleted if run_id not in ended])  # they have ended meanwhile

    async def delete(self, run_ids: Sequence[str]) -> None:
        """Delete ended runs. After a failure, the caller may repeat this."""
        for some in chunks(run_ids, _DELETED_AT_ONCE):
            await self.before(some)
            await self._database.run(self.statements, some)

    async def forget_old(self) -> None:
        """Delete the ended runs, and stop the waiting runs, that are beyond the limits."""
        beyond = partial(surplus, self.limits, but_user=self.unlimited_user)
        old, waiting = await self._database.read(beyond)  # it may read many rows
        await self.delete(old)
        for run_id in waiting:
            record = await self._database.submit(partial(log.find, run_id, None), reads_only=True)
            if record is not None:
                await close_open_calls(self._database, record, "too_many_waiting")


async def _delete_nothing(run_ids: Sequence[str]) -> None:
    """Do nothing."""


# --- the runs of a conversation ---


def ended_of(user: str, conversation: str) -> Transaction[list[str]]:
    """Return the ids of the ended runs of a conversation."""
    statement = f"SELECT id FROM aswarm_run WHERE {_OF_CONVERSATION} AND NOT ({ACTIVE})"
    return [run_id for (run_id,) in (yield statement, (user, conversation))]


def clear(
    user: str, conversation: str, *, with_conversation: bool = True, only: Collection[str] | None = None
) -> Transaction[list[str]]:
    """Delete a conversation and its runs, or only its runs. Returns the ids of the runs.

    Raises RunActive if a run is active, and ConversationNotFound. Then nothing is deleted. `only`: if the conversation has
    other runs than these, nothing is deleted either.
    """
    owner, key = (user, conversation), conversation_key(user, conversation)
    # The locks have the order of the transactions that end a run: first the runs, then the conversation. A start locks the
    # conversation and then inserts its run. So behind both locks, the second query sees each run that was started before.
    yield f"SELECT id FROM aswarm_run WHERE {_OF_CONVERSATION} FOR UPDATE", owner
    stored = yield "SELECT id FROM aswarm_conversation WHERE id = ? FOR UPDATE", (key,)
    if with_conversation and not stored:
        raise ConversationNotFound(conversation)
    active = yield f"SELECT id FROM aswarm_run WHERE {_OF_CONVERSATION} AND {ACTIVE}", owner
    if active:
        raise RunActive(active[0][0])
    run_ids = yield from ended_of(user, conversation)
    if only is not None and not set(run_ids) <= set(only):
        return []
    yield from delete(run_ids)
    if with_conversation:
        yield "DELETE FROM aswarm_conversation WHERE id = ?", (key,)
    return run_ids


def delete(run_ids: Sequence[str]) -> Transaction[None]:
    """Delete runs with their entries."""
    for some in chunks(run_ids, ROWS_AT_ONCE):
        # The rows of runs first: a transaction that changes the end of a run locks them in this order too.
        yield f"DELETE FROM aswarm_run WHERE id IN ({marks(some)})", some
        yield f"DELETE FROM aswarm_entry WHERE run IN ({marks(some)})", some


def delete_with_conversations(run_ids: Sequence[str]) -> Transaction[None]:
    """Delete runs, and each conversation with the last of its runs. For a database in memory, which needs no locks."""
    owners = set[tuple[str, str]]()
    for some in chunks(run_ids, ROWS_AT_ONCE):
        rows = yield f'SELECT "user", conversation FROM aswarm_run WHERE id IN ({marks(some)})', some
        owners.update(row for row in rows if row[1] is not None)
    yield from delete(run_ids)
    for owner in owners:
        if not (yield f"SELECT 1 FROM aswarm_run WHERE {_OF_CONVERSATION} LIMIT 1", owner):
            yield "DELETE FROM aswarm_conversation WHERE id = ?", (conversation_key(*owner),)


# --- old runs ---


class Surplus(NamedTuple):
    """The runs that are beyond the limits: ended runs to delete, and waiting runs to stop."""

    old: list[str]
    waiting: list[str]


class _Ended(NamedTuple):
    id: str
    user: str
    conversation: str | None
    ended: int
    size: int
    may_wait: int


def surplus(limits: Limits, *, but_user: str = "") -> Transaction[Surplus]:
    """Return the runs that are beyond the limits. `but_user`: a user whose runs have no limits.

    A run that waits is no old run. When a run no longer waits, it never waits again, so the caller may delete the old runs in a
    later transaction.
    """
    too_many = Surplus([], [])
    if (limits.kept_seconds, limits.kept_runs, limits.kept_bytes, limits.waiting_runs_per_user) == (None,) * 4:
        return too_many
    runs = yield from _ended('"user" <> ?', but_user, with_size=limits.kept_bytes is not None)
    waiting = yield from _waiting(run for run in runs if run.may_wait)
    _add_waiting(too_many.waiting, [run for run in runs if run.id in waiting], limits)
    _add_old(too_many.old, [run for run in runs if run.id not in waiting], limits)
    return too_many


def _ended(condition: str, value: object, *, with_size: bool = False) -> Transaction[list[_Ended]]:
    """Return the ended runs for which a condition is true, the newest first. `with_size`: whether to read their sizes."""
    size = "(SELECT coalesce(sum(length(data)), 0) FROM aswarm_entry WHERE run = id)" if with_size else "0"
    rows = yield (
        f"""SELECT id, "user", conversation, ended, {size}, CASE WHEN {_MAY_WAIT} THEN 1 ELSE 0 END FROM aswarm_run
        WHERE ended IS NOT NULL AND {condition} ORDER BY ended DESC, number DESC""",
        (value,),
    )
    return [_Ended(*row) for row in rows]


def _waiting(runs: Iterable[_Ended]) -> Transaction[set[str]]:
    """Return the ids of the runs whose conversation is as they have left it. Otherwise no answer can reach the run."""
    keys = {conversation_key(run.user, str(run.conversation)): run.id for run in runs}
    waiting = set[str]()
    for some in chunks([*keys], ROWS_AT_ONCE):
        rows = yield f"SELECT id, revision FROM aswarm_conversation WHERE id IN ({marks(some)})", some
        waiting.update(keys[key] for key, revision in rows if revision in revisions_of(keys[key]))
    return waiting


def _add_waiting(surplus: list[str], runs: Sequence[_Ended], limits: Limits) -> None:
    most, counts = _most(limits.waiting_runs_per_user), Counter[str]()
    for run in runs:
        counts[run.user] += 1
        if counts[run.user] > most:
            surplus.append(run.id)


def _add_old(surplus: list[str], runs: Sequence[_Ended], limits: Limits) -> None:
    most, most_bytes, size = _most(limits.kept_runs), _most(limits.kept_bytes), 0
    before = -math.inf if limits.kept_seconds is None else now() - limits.kept_seconds * 1000
    for position, run in enumerate(runs):
        size += run.size
        if run.ended < before or position >= most or size > most_bytes:
            surplus.append(run.id)


def _most(limit: float | None) -> float:
    return math.inf if limit is None else limit


# --- purging ---


class Purgeable(NamedTuple):
    """Data that may be deleted: runs, and the conversations that the runs have created, by user and id."""

    run_ids: list[str]
    conversations: list[tuple[str, str]]


def purgeable(seconds: float) -> Transaction[Purgeable]:
    """Return the runs that ended at least `seconds` ago, and the conversations that these runs created.

    The result does not contain runs that wait for an answer. It contains the run that created a conversation only if it
    contains all other runs of this conversation.
    """
    runs = yield from _ended("ended <= ?", now() - int(seconds * 1000))
    waiting = yield from _waiting(run for run in runs if run.may_wait)
    old_runs = {run.id: (run.user, str(run.conversation)) for run in runs if run.id not in waiting}
    rows = yield (
        """SELECT first.id, each.id FROM aswarm_run first JOIN aswarm_run each
        ON each."user" = first."user" AND each.conversation = first.conversation WHERE first.id = first.conversation""",
        (),
    )
    kept = {first for first, run_id in rows if run_id not in old_runs}
    run_ids = [run_id for run_id in old_runs if run_id not in kept]
    return Purgeable(run_ids, [old_runs[run_id] for run_id in run_ids if old_runs[run_id][1] == run_id])
