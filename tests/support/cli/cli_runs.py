"""Helpers for tests of the command line: a model on loopback, a module of agents, and two ways to run a command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner, Result

from aswarm.cli import main
from aswarm.conversations import SQLiteStore, Stored
from aswarm.testing import ScriptedAnswer, ScriptedCall, check_history
from tests.support.providers.loopback import LoopbackServer, Reply, serve, sse, sse_response, whole, whole_response

Step = str | ScriptedCall | list[ScriptedCall] | ScriptedAnswer | Reply

AGENTS = '''\
from aswarm import Agent

async def look_up(order_id: int, context_variables: dict) -> str:
    """Look up an order."""
    print("looking up")
    return f"Order {order_id} of {context_variables['user']}"

def stop() -> str:
    """Raise the exception of Ctrl-C."""
    raise KeyboardInterrupt

orders = Agent(name="Orders", model="model-of-orders", functions=[look_up])
triage = Agent(name="Triage", functions=[orders, stop])
AGENTS = {"orders": orders}
text = "no agent"

def make() -> Agent:
    return Agent(name="Made")
'''


@contextmanager
def model(*steps: Step) -> Generator[LoopbackServer]:
    """Run a server on loopback, in a thread, that answers with these steps."""
    waiting = iter(steps)

    def reply(body: dict[str, Any]) -> Reply:
        step = next(waiting)
        if isinstance(step, Reply):
            return step
        answer = step if isinstance(step, ScriptedAnswer) else _answer(step)
        streamed, at_once = (sse_response, whole_response) if "input" in body else (sse, whole)
        return streamed(answer, cut=4) if body.get("stream") else at_once(answer)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(reply)) as server:
        yield server


def _answer(step: str | ScriptedCall | list[ScriptedCall]) -> ScriptedAnswer:
    if isinstance(step, str):
        return ScriptedAnswer(step)
    return ScriptedAnswer(calls=[step] if isinstance(step, ScriptedCall) else step)


def refused(status: str, message: str) -> Reply:
    """Return an HTTP error that is not retried."""
    body = b'{"error": {"message": "%s"}}' % message.encode()
    return Reply([body], status=status, content_type="application/json")


def environment(server: LoopbackServer | None = None) -> dict[str, str]:
    """Return the environment of a command."""
    known = {} if server is None else {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "test-key"}
    return {**known, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def invoke(*arguments: str, server: LoopbackServer | None = None, stdin: str | bytes | None = None) -> Result:
    """Run the command in this process. An exception that is not an exit is raised."""
    result = runner_result(*arguments, server=server, stdin=stdin)
    assert "Traceback" not in result.output
    return result


class _Command:
    """The command line for the runner of click, which calls `main` with the arguments."""

    name = "aswarm"

    @staticmethod
    def main(args: Iterable[str], **_: Any) -> None:
        before, sys.argv = sys.argv, ["aswarm", *args]
        try:
            main()
        finally:
            sys.argv = before


def runner_result(*arguments: str, server: LoopbackServer | None = None, stdin: str | bytes | None = None) -> Result:
    """Run the command in this process, also a command that prints a traceback."""
    command: Any = _Command
    return CliRunner().invoke(command, list(arguments), input=stdin, env=environment(server), catch_exceptions=False)


def stored(file: str = "chats.sqlite", conversation_id: str = "ann") -> Stored | None:
    """Return a conversation in a file, whose history is valid."""

    async def load() -> Stored | None:
        async with SQLiteStore(file) as store:
            return await store.load(conversation_id)

    found = anyio.run(load)
    check_history([] if found is None else found.messages, allow_open=True)
    return found


def texts(file: str = "chats.sqlite", conversation_id: str = "ann") -> list[Any]:
    """Return the contents of the messages of a conversation in a file."""
    found = stored(file, conversation_id)
    return [] if found is None else [message.get("content") for message in found.messages]


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true."""
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.005)


def started(
    *arguments: str, server: LoopbackServer | None = None, python: Iterable[str] = (), **variables: str
) -> subprocess.Popen[bytes]:
    """Start the command in another process."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    return subprocess.Popen(
        [sys.executable, *python, "-m", "aswarm", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**own, **environment(server), **variables},
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Wait for the end of the process. Returns exit code, stdout and stderr."""
    with process:
        stdout, stderr = process.communicate(timeout=60)
        return process.returncode, (stdout or b"").decode(), stderr.decode()
