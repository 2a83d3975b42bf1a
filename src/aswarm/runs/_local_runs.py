"""`LocalRuns` executes runs as tasks of this process. Their log is in the database of the conversations.

Processes may share this database. After a process died, another process continues its runs or closes them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from aswarm._record.entries import Entry
from aswarm._record.entry_maker import ErrorText
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm.conversations import MemoryStore, SQLiteStore, Store
from aswarm.conversations._base import SQLStore

from . import _deleting
from ._attempt import Execution
from ._base import Runs
from ._live import LiveLog
from ._requests import Limits

logger = logging.getLogger("aswarm")

_DIED = "process_died"
_MOST_IN_MEMORY = 10_000
_FORGET_AFTER = 1_000  # ended runs
_MOST_DEATHS = 3  # a run is closed after so many of its processes died, because it may be the cause


class LocalRuns(Runs):
    """Implements `Runs` for the processes of one machine: `async with LocalRuns(swarm, agents=[...], store=store) as runs: ...`.

    Processes with the same store share their runs: a process can read and stop the runs of another process. If a process dies,
    another process with the same `version` continues its runs.

    Args:
        swarm: The swarm that runs the agents; by default an `AsyncSwarm()`, which is closed at the end of the block.
        agents: A list, or a dict by name. A new conversation starts with the first agent.
        store: The store of the conversations and the runs: an open `SQLiteStore`, `PostgresStore` or `MemoryStore`, the path
            of a SQLite file, or None for memory.
        limits: The limits of the runs. In memory, at most 10,000 ended runs are kept by default. Without a `store`, the oldest
            conversations are then deleted with the last of their runs.
        version: The version of the agents' code. Without a version, the runs of a dead process are closed with RunStopped.
        failover_seconds: The interval of the check for dead processes. A message to a conversation with an active run also
            starts this check.
        error_text: A function that gets the exception of a failed run, and returns its text for readers.
        task_agent: An agent for titles and similar tasks; its name for clients is "helper".

    Raises:
        ConfigurationError: For an argument of the wrong type, a store without a database, and agents without unique names.
    """

    def __init__(
        self,
        swarm: AsyncSwarm | None = None,
        *,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        store: Store | str | os.PathLike[str] | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        version: str | None = None,
        failover_seconds: float = 3,
        error_text: ErrorText | None = None,
        task_agent: Agent | None = None,
    ) -> None:
        kept_in = _store(store)
        self._is_in_memory, self._ended_runs = isinstance(kept_in, MemoryStore), 0
        deletes_conversations = store is None and isinstance(limits, Limits) and limits.kept_runs is None  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
        if self._is_in_memory and isinstance(limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            # In memory, the number of kept runs always has a limit.
            unlimited = [name for name in ("kept_runs", "waiting_runs_per_user") if getattr(limits, name) is None]
            limits = replace(limits, **dict.fromkeys(unlimited, _MOST_IN_MEMORY))
        super().__init__(
            swarm or AsyncSwarm(), agents=agents, store=kept_in, version=version or "", limits=limits,
            failover_seconds=failover_seconds, error_text=error_text, task_agent=task_agent,
        )  # fmt: skip
        if deletes_conversations:
            self.registry.deleter.statements = _deleting.delete_with_conversations
        self.registry.on_end = self._note_end
        self._owned: list[AbstractAsyncContextManager[object]] = [self.swarm] if swarm is None else []
        if self.store is not store:
            self._owned.append(self.store)

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Open the swarm and the store, if they belong to this object."""
        for manager in self._owned:
            await stack.enter_async_context(manager)
        await super().prepare(stack)

    async def open(self, stack: AsyncExitStack) -> None:  # noqa: ARG002 - `tasks` executes the runs
        """Continue the runs of dead processes."""
        self.is_open = True  # before the takeover, because the functions of a continued run may start runs
        await self.take_over()

    def enqueue(self, run_id: str) -> None:
        """Execute each run at once."""

    def stop(self, attempt: Execution) -> None:
        """End the run."""
        attempt.cancel("shutdown")

    async def recover(self, run_id: str) -> bool:
        """Continue a run of the same version, and close any other run."""
        attempt = await self.take(run_id)
        if attempt is None:
            return True
        can_continue = bool(self.version) and attempt.version == self.version and attempt.deaths < _MOST_DEATHS
        if attempt.cancel_reason is None and can_continue and attempt.is_exact:
            logger.info("the run %s is continued", run_id, extra=attempt.record.log_fields)
            self.tasks.start_soon(attempt.execute)
            return False
        await attempt.close(attempt.cancel_reason or _DIED)
        return True

    def _note_end(self, live: LiveLog, last: Entry | None) -> None:  # noqa: ARG002 - see `Registry.on_end`
        """In memory, delete old runs, because many runs may end before the next regular check."""
        self._ended_runs += 1
        if self._is_in_memory and self._ended_runs % _FORGET_AFTER == 0:
            self.registry.notifier.poll_soon(self._forgetting)


def _store(store: Store | str | os.PathLike[str] | None) -> SQLStore:
    if store is None:
        return MemoryStore()
    if isinstance(store, str) and "://" in store:
        raise ConfigurationError(
            f"store must be the path of a SQLite file, or a store, and not a URL with {store.partition('://')[0]!r}; open a "
            "PostgresStore(...) or SQLiteStore(...) yourself and pass it. Only DurableRuns take a URL"
        )
    if isinstance(store, str | os.PathLike):
        return SQLiteStore(store)
    if not isinstance(store, SQLStore):
        raise ConfigurationError(
            f"{type(store).__name__} has no database, and runs are recorded in the database of their conversations; use a "
            "SQLiteStore, a PostgresStore or a MemoryStore. Your own store works only with Conversation"
        )
    return store
