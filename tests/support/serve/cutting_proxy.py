"""A TCP proxy on loopback that cuts its connections on request, like a bad mobile network."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self


class CuttingProxy:
    """A proxy to `port`, with its own port, in a thread. `cut()` resets all open connections.

    A subclass may listen and connect elsewhere, and handle each piece of data.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = 0
        self.cuts = 0
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(120)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(120)

    def cut(self) -> int:
        """Reset all connections. Returns their number."""
        return asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(120)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        server = await self._listen()
        self._ready.set()
        await self._stop.wait()
        server.close()
        while self._writers:
            await self._cut()
            await asyncio.sleep(0.01)

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._target)

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        """Pass a piece of data on. `is_answer`: it comes from the target."""
        writer.write(data)
        await writer.drain()

    async def _cut(self) -> int:
        writers = list(self._writers)
        for writer in writers:
            writer.transport.abort()
        self.cuts += bool(writers)
        return len(writers) // 2

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(
                self._copy(reader, far_writer, is_answer=False), self._copy(far_reader, writer, is_answer=True)
            )
        finally:
            self._writers -= both
            for each in both:
                each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        try:
            while data := await reader.read(65536):
                await self._pass(data, writer, is_answer=is_answer)
        except OSError:
            pass
        finally:
            writer.close()
