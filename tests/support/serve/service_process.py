"""A service in another process: `python service_process.py` on a port, and helpers to start and stop it.

The model is scripted; the text of the user sets the duration of a function: "slow 2" calls it for 2 seconds.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx

from aswarm import Agent, AsyncSwarm, progress
from aswarm.serve import bearer, create_app
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call


async def slow(seconds: float) -> str:
    """Report that the function runs, and take a while."""
    progress("running")
    await anyio.sleep(seconds)
    return "done"


def answer(request: Request) -> Any:
    """Call `slow`, or make a long text, if the user asks for it; otherwise answer with the number of messages."""
    last = request.body["messages"][-1]
    if last["role"] == "user" and last["content"].startswith("slow "):
        return call("slow", seconds=float(last["content"].split()[1]))
    if last["role"] == "user" and last["content"].startswith("long "):
        return ScriptedAnswer("word " * int(last["content"].split()[1]))
    return ScriptedAnswer(f"{len(request.body['messages'])} messages.")


def make_app() -> Any:
    """Return the service, from the environment. The servers call it as a factory."""
    swarm = AsyncSwarm(ScriptedModel(answer, cut=int(os.environ.get("SERVICE_CUT", "4"))).client())
    store = os.environ["SERVICE_STORE"]
    made = create_app(
        swarm,
        agents=Agent(name="Clerk", functions=[slow]),
        auth=bearer("token"),
        store=store,
        drain_seconds=float(os.environ.get("SERVICE_DRAIN", "2")),
        wires=("openai",),
    )
    version = os.environ.get("SERVICE_ASGI")

    async def versioned(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope["asgi"] = {**scope["asgi"], "spec_version": version}
        await made(scope, receive, send)

    return versioned if version else made


COMMANDS = {
    "uvicorn": "uvicorn {module}:make_app --factory --log-level warning --port {port}",
    "granian": "granian {module}:make_app --factory --interface asgi --log-level warning --port {port}",
    "hypercorn": "hypercorn {module}:make_app() --log-level warning --bind 127.0.0.1:{port}",
}


@dataclass
class ServiceProcess:
    """A running process. `browser` is a client of its user."""

    process: subprocess.Popen[bytes]
    browser: httpx.Client

    def say(self, text: str, conversation: str = "c") -> str:
        """Start a run, and return its id."""
        answered = self.browser.post(f"/conversations/{conversation}/runs", json={"text": text})
        assert answered.status_code == 202, answered.text
        run: str = answered.json()["run"]
        return run

    def ended(self, run: str) -> dict[str, Any]:
        """Wait for the end of a run, and return its state."""
        for _ in range(1_000):
            state: dict[str, Any] = self.browser.get(f"/runs/{run}").json()
            if state["status"] != "running":
                return state
            time.sleep(0.02)
        raise AssertionError("the run does not end")

    def wait_for(self, run: str, kind: str) -> None:
        """Wait until the log of a run has an entry of this type."""
        with self.browser.stream("GET", f"/runs/{run}/events") as stream:
            assert any(f'"{kind}"' in line for line in stream.iter_lines())

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()


@contextmanager
def service_process(
    store: Path, *, server: str = "uvicorn", drain: float = 2, version: str = "", module: str = __name__
) -> Iterator[ServiceProcess]:
    """Start a process, and wait until it answers. It is killed at the end.

    `version`: the version of ASGI for the app. `module`: the module with `make_app`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"SERVICE_STORE": str(store), "SERVICE_DRAIN": str(drain), "SERVICE_ASGI": version}
    environment = {**os.environ, **settings}
    command = [sys.executable, "-m", *COMMANDS[server].format(module=module, port=port).split()]
    process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[3])
    headers = {"authorization": "Bearer token"}
    browser = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20, trust_env=False)
    try:
        wait_until_it_answers(browser, process)
        yield ServiceProcess(process, browser)
    finally:
        browser.close()
        process.send_signal(signal.SIGKILL)
        process.wait()


def wait_until_it_answers(browser: httpx.Client, process: subprocess.Popen[Any], attempts: int = 1_500) -> None:
    """Ask for the health of the service again and again, each 0.02 s. Fails if the process ends, or after the last attempt."""
    for _ in range(attempts):
        assert process.poll() is None, "the process has ended"
        try:
            browser.get("/health")
        except httpx.ConnectError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the process does not answer")
