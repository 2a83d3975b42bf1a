"""`Clients`: people and pages that use recorded runs: they leave, come back, and send a request twice.

PYTEST_DONT_REWRITE: the texts of these assertions are complete.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import anyio

from aswarm._record.entries import Entry

from ._crash import Crash
from ._world import World

T = TypeVar("T")
_PATIENCE = (None, 0.001, 0.02, 0.1)  # seconds that a reader waits before it leaves


class RecordedRuns(Protocol):
    """The methods of `aswarm.runs.Runs` that clients call."""

    async def start(self, new: Any, /) -> Any:
        """Start a run."""
        ...

    async def read(self, run_id: str, after: int = -1, *, user: str) -> Sequence[Entry]:
        """Read entries of a run."""
        ...

    async def get(self, run_id: str, *, user: str) -> Any:
        """Return the record of a run."""
        ...


class Clients:
    """Clients of recorded runs: `LocalRuns` in the same process, or in a `Crash` that serves them.

        clients = Clients(world, crash)
        run = await clients.start(NewRun("ann", "trip", messages=[{"role": "user", "content": "Book it."}], key="1"))
        entries = await clients.read(run.id, user="ann")

    Each request is repeated while its connection is reset.

    Args:
        world: The world.
        server: The `Runs`, or a `Crash` that serves them.
        name: The name of the clients in the names of their choices.
    """

    def __init__(self, world: World, server: RecordedRuns | Crash[Any], *, name: str = "client") -> None:
        self._world = world
        self._server = server
        self._name = name

    async def call(self, function: Callable[[Any], Awaitable[T]]) -> T:
        """Call a function with the `Runs`, again while the connection is reset, which happens if the process dies."""
        while True:
            with suppress(ConnectionResetError):
                if isinstance(self._server, Crash):
                    return await self._server.call(function)
                await self._world.pause(f"{self._name}: request")
                return await function(self._server)
            await self._world.pause(f"{self._name}: repeats")

    async def start(self, new: Any) -> Any:
        """Start a run with new messages, or with the answers to open calls; in some universes, the request is sent twice.

        Returns the run. Both copies must start the same run, so `new` needs a `key` or a `run_id`, or has
        answers. If one copy is refused, for example because the run has already ended, the other one counts. Raises the error
        of a request that is refused.
        """
        records: list[Any] = []
        errors: list[Exception] = []

        async def send() -> None:
            try:
                records.append(await self.call(lambda runs: runs.start(new)))
            except Exception as error:  # noqa: BLE001 - raised below, unless the other copy succeeds
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            if self._world.draw(f"{self._name}: sends twice", 2):
                await self._world.pause(f"{self._name}: second copy")
                group.start_soon(send)
        if not records:
            raise errors[0]
        runs = {record.id for record in records}
        assert len(runs) == 1, f"one request has started the runs {sorted(runs)}"  # noqa: S101
        return records[0]

    async def read(self, run_id: str, *, user: str) -> Sequence[Entry]:
        """Read the log of a run to its end. The reader leaves at drawn moments, and continues after its last entry.

        Then read the log again from its start, add it to `World.logs`, and return it. Raises AssertionError if the reader got
        an entry twice, or another end.
        """
        seen = await self._follow(run_id, user)
        numbers = [entry.seq for entry in seen]
        assert numbers == sorted(set(numbers)), f"the entries of {run_id} came in the order {numbers}"  # noqa: S101
        log = await self.call(lambda runs: _whole(runs, run_id, user))
        self._world.logs[run_id] = log
        assert [entry.type for entry in seen[-1:]] == [entry.type for entry in log[-1:]], (  # noqa: S101
            f"a reader of {run_id} saw the end {seen[-1:]}, and its log has {log[-1:]}"
        )
        return log

    async def _follow(self, run_id: str, user: str) -> list[Entry]:
        seen: list[Entry] = []
        while not (seen and seen[-1].is_last):
            after = seen[-1].seq if seen else -1
            patience = _PATIENCE[self._world.draw(f"{self._name}: patience", len(_PATIENCE))]
            batch: Sequence[Entry] = ()
            with anyio.move_on_after(patience):
                batch = await self.call(lambda runs: runs.read(run_id, after, user=user))  # noqa: B023 - awaited here
            if batch:
                seen += batch[: len(batch) - self._world.draw(f"{self._name}: misses", len(batch))]
            else:
                await self._world.pause(f"{self._name}: comes back")
        return seen


async def _whole(runs: RecordedRuns, run_id: str, user: str) -> list[Entry]:
    entries: list[Entry] = []
    while not (entries and entries[-1].is_last):
        entries += await runs.read(run_id, entries[-1].seq if entries else -1, user=user)
    return entries
