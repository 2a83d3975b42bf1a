"""Runs an example with no network and no API key, against a scripted model on loopback.

    python examples/offline.py <name> [arguments of run.py]
    python examples/offline.py <name> <another script of the example>.py [its arguments]

`script()` in `examples/<name>/script.py` returns a `ScriptedModel`, which is served over real HTTP on a free port of 127.0.0.1. The
example runs unchanged in its own process, with `OPENAI_BASE_URL` and `OPENAI_API_KEY` set. The exit code is the exit code of the
example, 128 + n if signal n stopped the example, or 2 for an unknown example.

The server and the example stop together: when the example ends, and after SIGTERM or Ctrl-C. In a terminal, the example itself
handles Ctrl-C (a chat stops the answer and continues). This process then stops only when the example stops.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import traceback
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import httpx  # only for its response objects: a scripted model returns them

from aswarm.testing import Request, ScriptedModel

EXAMPLES = Path(__file__).resolve().parent
SECONDS_TO_END = 5


def main(arguments: list[str]) -> int:
    """Serve the example's model, and run the example. Returns the exit code of the example."""
    name, *rest = arguments or [""]
    folder = EXAMPLES / name
    script = rest.pop(0) if rest and rest[0].endswith(".py") else "run.py"
    if name not in _names() or not (folder / script).is_file():
        print(f"usage: python examples/offline.py <name> [script.py] [arguments]; {_choices(name)}", file=sys.stderr)
        return 2
    sys.path.insert(0, str(folder))
    model: ScriptedModel = importlib.import_module("script").script()
    return run_with(model, [str(folder / script), *rest])


def run_with(model: Answering, command: list[str]) -> int:
    """Serve the model, and run a Python command that uses it. Returns the exit code of the command."""
    stopped: list[int] = []
    try:
        return asyncio.run(_serve_and_run(model, command, stopped))
    except asyncio.CancelledError:
        return 128 + stopped[0]


def _names() -> list[str]:
    # The demo has its own model server and its own option `--scripted`.
    return sorted(path.parent.name for path in EXAMPLES.glob("*/script.py") if path.parent.name != "demo")


def _choices(name: str) -> str:
    if name in _names():
        return f"scripts of {name}: {', '.join(sorted(path.name for path in (EXAMPLES / name).glob('*.py')))}"
    return f"names: {', '.join(_names())}"


async def _serve_and_run(model: Answering, command: list[str], stopped: list[int]) -> int:
    _end_on_signals(stopped)
    server = await asyncio.start_server(partial(serve, model), "127.0.0.1", 0)
    try:
        return await run_with_model(command, server.sockets[0].getsockname()[1])
    finally:
        server.close()  # asyncio.run cancels unfinished answers


# --- the example's process ---


def environment(port: int) -> dict[str, str]:
    """Return the environment for an example, if its model is on this port of 127.0.0.1."""
    own = {
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "OPENAI_API_KEY": "offline",
        "PYTHONUNBUFFERED": "1",  # the output appears at once, through a pipe too
        # A proxy that is set for this machine cannot reach its loopback.
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    return {key: value for key, value in os.environ.items() if key != "OPENAI_DEFAULT_MODEL"} | own


async def run_with_model(command: list[str], port: int) -> int:
    """Run a Python command that uses the model on this port of 127.0.0.1. Returns its exit code."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment(port))
    try:
        code = await process.wait()
    finally:
        await _end(process)
    return code if code >= 0 else 128 - code


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(SECONDS_TO_END):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _end_on_signals(stopped: list[int]) -> None:
    """Cancel the current task after SIGTERM. Also after SIGINT, unless the terminal sends SIGINT to the example too."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("there is no task to cancel")

    def end(number: int, _: object) -> None:
        if number == signal.SIGTERM or not sys.stdin.isatty():
            stopped.append(number)
            loop.call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)


# --- the model's server: one answer for each connection ---


class Answering(Protocol):
    """The model of the server: a `ScriptedModel`, or another object that answers requests."""

    async def _respond(self, request: Request, /) -> httpx.Response:
        """Return the HTTP response to one request."""


async def serve(model: Answering, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the single request of a connection. This is a handler for `asyncio.start_server`."""
    try:
        response = await _respond(model, reader)
        await _send(response, writer)
    except (ConnectionError, asyncio.IncompleteReadError, httpx.TransportError):
        pass  # the client has left, or the script breaks the connection
    except asyncio.CancelledError:
        pass  # the server stops; some versions of Python 3.11 print a cancelled connection as an error
    finally:
        writer.close()


async def _respond(model: Answering, reader: asyncio.StreamReader) -> httpx.Response:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    if not request_line.startswith("POST /v1/chat/completions "):
        return _error(404, f"the scripted model only knows POST /v1/chat/completions, not {request_line}")
    try:
        return await model._respond(Request(json.loads(body), headers))
    except httpx.TransportError:
        raise
    except Exception as error:  # noqa: BLE001 - an error in the script is shown on both sides
        traceback.print_exc()
        return _error(400, f"the script failed: {type(error).__name__}: {error}")  # 400 is not retried


def _error(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": "offline", "code": None}})


async def _send(response: httpx.Response, writer: asyncio.StreamWriter) -> None:
    stream: Any = response.stream  # of a model's answer; it never blocks
    headers = {**response.headers, "connection": "close"}
    is_whole = "content-length" in headers
    if not is_whole:
        headers["transfer-encoding"] = "chunked"
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    try:
        async for piece in stream:
            writer.write(piece if is_whole else b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        if not is_whole:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
    finally:
        await stream.aclose()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
