"""The queue of a conversation: its runs in this process go one after another, in the order in which they came."""

from __future__ import annotations

from contextvars import ContextVar
from weakref import WeakValueDictionary

import anyio

from aswarm._errors import ConfigurationError
from aswarm._runtime.backend import current_loop

from ._store import Store


class RunSlot:
    """The slot of one run in a queue, from `RunQueue.acquire` to `release`."""

    def __init__(self, queue: RunQueue) -> None:
        self._queue = queue
        self.is_held = True

    def release(self) -> None:
        """Let the next run begin."""
        self.is_held = False
        self._queue.free.release()

    def enter_tool(self) -> None:
        """Count the current task as one that works for a tool of this run."""
        _outer.set((*_outer.get(), self))

    def is_of(self, queue: RunQueue) -> bool:
        """Whether it is held in this queue."""
        return self.is_held and self._queue is queue


# The runs for whose tools the current task works.
_outer: ContextVar[tuple[RunSlot, ...]] = ContextVar("aswarm_conversations", default=())


class RunQueue:
    """The runs of one conversation of one store, in one event loop."""

    def __init__(self, conversation_id: str, *owners: object) -> None:
        self._id = conversation_id
        # While they are alive, no other object has their identity, which is in the key of this queue.
        self._owners = owners
        # A semaphore and no lock: a stream may be closed by another task than the one that has opened it.
        self.free = anyio.Semaphore(1)

    async def acquire(self) -> RunSlot:
        """Wait until the runs that came before have ended. Raises ConfigurationError inside a tool of one of them."""
        if any(slot.is_of(self) for slot in _outer.get()):
            raise ConfigurationError(
                f"a tool of a run of the conversation {self._id!r} used the same conversation, and would wait for its own run; "
                "use another id, or begin once the run has ended"
            )
        await self.free.acquire()
        return RunSlot(self)


_queues: WeakValueDictionary[tuple[int, int, str], RunQueue] = WeakValueDictionary()


def queue_of(store: Store, conversation_id: str) -> RunQueue:
    """The queue of a conversation in the running event loop. It is there for as long as a caller holds it."""
    loop = current_loop()
    key = (id(loop), id(store), conversation_id)
    queue = _queues.get(key)
    if queue is None:
        queue = _queues[key] = RunQueue(conversation_id, loop, store)
    return queue


async def wait_for_runs(store: Store, seconds: float) -> None:
    """Wait until the runs of a store in the running event loop have ended, for so long at most, even if it is cancelled."""
    place = id(current_loop()), id(store)
    queues = [queue for key, queue in list(_queues.items()) if key[:2] == place]
    with anyio.move_on_after(seconds, shield=True):
        for queue in queues:
            async with queue.free:
                pass
