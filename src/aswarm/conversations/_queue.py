"""The queue of a conversation. In this process, its runs execute one after another, in the order of their start."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio

from aswarm._runtime.backend import current_loop
from aswarm._values.errors import ConfigurationError

if TYPE_CHECKING:
    from ._store import Store  # `Store.conversation` makes a `Conversation`


class QueueSlot:
    """The slot of one run in a queue, from `Queue.acquire` to `release`."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.is_held = True

    def release(self) -> None:
        """Let the next run start."""
        self.is_held = False
        self.queue.free.release()

    def enter_tool(self) -> None:
        """Mark the current task: it runs a tool of this run."""
        _outer.set((*_outer.get(), self))


# The slots of the runs whose tools the current task runs. There may be several, because a tool may start another run.
_outer: ContextVar[tuple[QueueSlot, ...]] = ContextVar("aswarm_conversations", default=())


class Queue:
    """The runs of one conversation of one store, in one event loop."""

    def __init__(self, conversation_id: str, *owners: object) -> None:
        self._id = conversation_id
        # The key of this queue has the `id()` of these objects. These references keep the objects alive, because Python may
        # use the id of a dead object again.
        self._owners = owners
        # Not `anyio.Lock`, which only its owner task may release: another task may close a stream.
        self.free = anyio.Semaphore(1)

    async def acquire(self) -> QueueSlot:
        """Wait for the end of the earlier runs. Raises ConfigurationError if the current task runs a tool of an earlier run."""
        for slot in _outer.get():
            if slot.is_held and slot.queue is self:
                raise ConfigurationError(
                    f"a tool of the conversation {self._id!r} used the same conversation, and would wait for its own run "
                    "forever; use another conversation id, or start the run after the end of the current run"
                )
        await self.free.acquire()
        return QueueSlot(self)


_queues: WeakValueDictionary[tuple[int, int, str], Queue] = WeakValueDictionary()


def queue_of(store: Store, conversation_id: str) -> Queue:
    """Return the queue of a conversation in the running event loop. The queue is deleted when no caller refers to it."""
    loop = current_loop()
    key = (id(loop), id(store), conversation_id)
    queue = _queues.get(key)
    if queue is None:
        queue = _queues[key] = Queue(conversation_id, loop, store)
    return queue


async def wait_for_runs(store: Store, seconds: float) -> None:
    """Wait for the runs of a store in the running event loop, at most this number of seconds, even if cancelled."""
    place = id(current_loop()), id(store)
    queues = [queue for key, queue in list(_queues.items()) if key[:2] == place]
    with anyio.move_on_after(seconds, shield=True):
        for queue in queues:
            async with queue.free:
                pass
