"""Runs a script of tests/serve/clients on Node.js against a service, and reports when the script asks for it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLIENTS = Path(__file__).parents[2] / "serve" / "clients"
Json = dict[str, Any]


async def play(script: str, url: str, scene: str, *arguments: str, asked: Callable[[], None] | None = None) -> Json:
    """Run a scene of a script, and return the JSON object that it prints last.

    An earlier line "go" calls `asked`: the client has reached the state for the test.
    """
    command = ("node", str(CLIENTS / script), os.environ["NODE_CLIENTS"], url, scene, *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, limit=2**24)
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    last = b""
    try:
        async with asyncio.timeout(120):
            async for line in process.stdout:
                last = line
                if line == b"go\n" and asked is not None:
                    asked()
    finally:
        if process.returncode is None and not last.startswith(b"{"):
            process.kill()
        code = await process.wait()
        said = (await errors).decode()
    assert code == 0, said
    found: Json = json.loads(last)
    return found
