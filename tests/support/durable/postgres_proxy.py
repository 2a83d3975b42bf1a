"""A proxy in front of a PostgreSQL server that simulates a restart or a lost answer."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, quote, urlsplit

from tests.support.serve.cutting_proxy import CuttingProxy


class PostgresProxy(CuttingProxy):
    """A proxy for the server of a connection string. `url` is the same database through the proxy.

    `stop` cuts all connections and refuses others until `start`. `lose(n)` does so when the server has received the n-th message
    from now, counted from 1 over all connections: its answer is lost.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        host = parse_qs(urlsplit(url).query)["host"][0]
        self._socket = str(next(Path(host).glob(".s.PGSQL.*[0-9]")))
        self._folder = tempfile.TemporaryDirectory()
        self.url = url.replace(host, self._folder.name).replace(quote(host, safe=""), quote(self._folder.name, safe=""))
        self.is_stopped = False
        self._left = 0  # messages until the lost answer; 0 for none

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.is_stopped = True
        super().__exit__(kind, error, traceback)
        self._folder.cleanup()

    def stop(self) -> None:
        self.is_stopped = True
        self.cut()

    def start(self) -> None:
        self.is_stopped, self._left = False, 0

    def lose(self, message: int) -> None:
        """Stop when the server has received so many messages."""
        self._left = message

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._accept, Path(self._folder.name, Path(self._socket).name))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.is_stopped:
            raise ConnectionRefusedError
        return await asyncio.open_unix_connection(self._socket)

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        if is_answer and self.is_stopped:
            raise ConnectionResetError
        await super()._pass(data, writer, is_answer=is_answer)
        if self._left and not is_answer:
            self._left -= 1
            if not self._left:
                self.is_stopped = True
                await asyncio.sleep(0.1)  # so that the server processes the message
                await self._cut()
