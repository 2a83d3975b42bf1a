"""Commands that serve: a process, or this process until Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import httpx
from click.testing import Result

from tests.support.cli.cli_runs import invoke
from tests.support.providers.loopback import LoopbackServer

URL = re.compile(r"http://\S+/")


@contextmanager
def running(*command: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Yield the process of a command that serves, and its address."""
    environment = {**os.environ, "OPENAI_API_KEY": "none"}
    with subprocess.Popen(
        [sys.executable, "-m", "aswarm", *command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            found = URL.search(process.stderr.readline())
            assert found is not None
            yield process, found.group()
        finally:
            process.kill()


def served_here(*command: str, ask: Callable[[httpx.Client], object], server: LoopbackServer | None = None) -> Result:
    """Run a command that serves in this process. A thread calls `ask`, and then presses Ctrl-C."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    failures: list[BaseException] = []

    def visit() -> None:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
                for _ in range(600):
                    try:
                        client.get("/")
                    except httpx.TransportError:
                        time.sleep(0.1)
                    else:
                        break
                ask(client)
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=visit)
    thread.start()
    result = invoke(*command, "--port", str(port), server=server)
    thread.join()
    assert not failures, (failures, result.output)
    return result
