"""Takes from an iterator in a thread, so that a slow file or a silent pipe never holds the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import closing, suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(items: Generator[T], ahead: int = 64) -> AsyncGenerator[T]:
    """The items, at most `ahead` of them taken before they are asked for. Raises what taking them raises.

    Leaving early never waits: a thread that is stuck in a read ends with the process, and closes `items` where it goes on.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue()
    room, left = threading.Semaphore(ahead), threading.Event()

    def put(what: tuple[T] | BaseException | None) -> None:
        with suppress(RuntimeError):  # the event loop has been closed
            loop.call_soon_threadsafe(arrived.put_nowait, what)

    def take() -> None:
        try:
            with closing(items):
                for item in items:
                    room.acquire()
                    if left.is_set():
                        return
                    put((item,))
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for
            put(error)

    threading.Thread(target=take, name="aswarm input", daemon=True).start()
    try:
        while (what := await arrived.get()) is not None:
            if isinstance(what, BaseException):
                raise what
            room.release()
            yield what[0]
    finally:
        left.set()
        room.release()
