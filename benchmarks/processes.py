"""The processes of a measurement: the server, and a worker for each contender. This module stops only its own processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_SECONDS = 600  # the limit for a job
# With this variable, each new process would compile a checkout of aswarm again, but no installed package. That would be unfair.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@asynccontextmanager
async def _process(*command: str, verbose: bool) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=None if verbose else DEVNULL,
        cwd=HERE,
        env=_ENVIRONMENT,
        limit=2**20,
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()  # the server and the workers stop at the end of their stdin
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _line(process: Process) -> str:
    if process.stdout is None:
        return ""
    return (await process.stdout.readline()).decode().strip()


@asynccontextmanager
async def server(*, verbose: bool = False) -> AsyncIterator[str]:
    """Run the fake server, and yield its URL."""
    async with _process(sys.executable, "server.py", verbose=verbose) as process:
        yield f"http://127.0.0.1:{await _line(process)}"


@dataclass
class Worker:
    """The process of one contender."""

    process: Process
    url: str

    async def ask(self, figure: str, **job: Any) -> dict[str, Any]:
        """Do a job, and return its result. If the job failed, the result has the key `error`."""
        line = json.dumps({"figure": figure, "url": self.url, **job}) + "\n"
        try:
            if self.process.stdin is not None:
                self.process.stdin.write(line.encode())
                await self.process.stdin.drain()
            answer = await asyncio.wait_for(_line(self.process), _SECONDS)
        except TimeoutError:
            return {"error": f"no result after {_SECONDS} s"}
        except (BrokenPipeError, ConnectionResetError):
            answer = ""
        return dict(json.loads(answer)) if answer else {"error": "the process has ended"}


@asynccontextmanager
async def worker(contender: str, url: str, *, verbose: bool = False) -> AsyncIterator[Worker]:
    """Inside the block, run a process for the jobs of a contender."""
    async with _process(sys.executable, "measure.py", contender, verbose=verbose) as process:
        yield Worker(process, url)


async def fresh(contender: str, url: str) -> dict[str, Any]:
    """Measure the CPU seconds of a new process from its start to its first answer."""
    async with _process(sys.executable, "first_answer.py", contender, f"{url}/v1", verbose=False) as process:
        line = await _line(process)
    return {"cpu_us": float(line) * 1e6} if line else {"error": "the process has ended without an answer"}
