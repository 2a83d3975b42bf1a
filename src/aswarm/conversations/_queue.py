"""The queue of a conversation: its runs in this process run one after another, in order of their arrival."""

from __future__ import annotations

from contextvars import ContextVar
from weakref import WeakValueDictionary

import anyio

from aswarm._runtime.backend import current_loop
from aswarm._values.errors import ConfigurationError

from ._store import Store


class RunSlot:
    """The slot of one run in a queue, from `RunQueue.acquire` to `release`."""

    def __init__(self, queue: RunQueue) -> None:
        self.queue = queue
        self.is_held = True

    def release(self) -> None:
        """Let the next run start."""
        self.is_held = False
        self.queue.free.release()

    def enter_tool(self) -> None:
        """Mark the current task as running a tool of this run."""
        _outer.set((*_outer.get(), self))


# The runs whose tools the current task is running.
_outer: ContextVar[tuple[RunSlot, ...]] = ContextVar("aswarm_conversations", default=())


class RunQueue:
    """The runs of one conversation of one store, in one event loop."""

    def __init__(self, conversation_id: str, *owners: object) -> None:
        self._id = conversation_id
        # These references keep the objects alive, so that their `id()` in the key of this queue stays unique.
        self._owners = owners
        # A semaphore and not a lock, because the task that closes a stream may differ from the task that opened it.
        self.free = anyio.Semaphore(1)

    async def acquire(self) -> RunSlot:
        """Wait for the end of the earlier runs. Raises ConfigurationError inside a tool of one of them."""
        if any(slot.is_held and slot.queue is self for slot in _outer.get()):
            raise ConfigurationError(
                f"a tool of a run of the conversation {self._id!r} used the same conversation, and would wait for its own run; "
                "use another id, or start it after the end of the run"
            )
        await self.free.acquire()
        return RunSlot(self)


_queues: WeakValueDictionary[tuple[int, int, str], RunQueue] = WeakValueDictionary()


def queue_of(store: Store, conversation_id: str) -> RunQueue:
    """Return the queue of a conversation in the running event loop. It exists as long as a caller refers to it."""
    loop = current_loop()
    key = (id(loop), id(store), conversation_id)
    queue = _queues.get(key)
    if queue is None:
        queue = _queues[key] = RunQueue(conversation_id, loop, store)
    return queue


async def wait_for_runs(store: Store, seconds: float) -> None:
    """Wait for the runs of a store in the running event loop, at most this number of seconds, even if cancelled."""
    place = id(current_loop()), id(store)
    queues = [queue for key, queue in list(_queues.items()) if key[:2] == place]
    with anyio.move_on_after(seconds, shield=True):
        for queue in queues:
            async with queue.free:
                pass
