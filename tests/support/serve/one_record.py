"""Services and runs for the tests of one record, and processes that serve them.

`make_app` is for `service_process(store, module=__name__)`: `store` is the path of a SQLite file for `LocalRuns`, or the
URL of a database for `DurableRuns`. Functions note their calls in the file of ONE_RECORD_NOTES.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from aswarm import Agent, AsyncSwarm, tool
from aswarm.durable import DurableRuns
from aswarm.runs import Entry, LocalRuns, show_everything
from aswarm.serve import Service, bearer
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call
from tests.support.serve.record_checker import record_faults
from tests.support.serve.service_process import ServiceProcess, service_process

SILENT_SECONDS = 1.0  # a process that is silent for a multiple of it is alive
FINAL = "This is the whole answer, said once."
Json = dict[str, Any]


# --- a process --------------------------------------------------------------------------------------------------------


def note(*words: object) -> None:
    """Write a line that survives the process."""
    with Path(os.environ["ONE_RECORD_NOTES"]).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


async def slow(seconds: float) -> str:
    """Take a while."""
    note("slow")
    await asyncio.sleep(seconds)
    return "done"


async def count(number: int) -> str:
    """Count."""
    note("count", number)
    return f"counted {number}"


@tool(approve=True)
async def pay() -> str:
    """Pay."""
    note("pay")
    return "paid"


CLERK = Agent(name="Clerk", functions=[slow, count, pay])


def answer(request: Request) -> Any:
    """Follow the first word of the user: "slow 2", "pay", "long 9" (words), or "work 3" (turns and an answer)."""
    messages = request.messages
    last_user = max(at for at, message in enumerate(messages) if message["role"] == "user")
    word, *numbers = str(messages[last_user]["content"]).split()
    turn = sum(message["role"] == "assistant" for message in messages[last_user:])
    if word == "slow" and turn == 0:
        return call("slow", seconds=float(numbers[0]))
    if word == "pay" and turn == 0:
        return call("pay")
    if word == "long":
        return ScriptedAnswer("word " * int(numbers[0]))
    if word == "work" and turn < int(numbers[0]):
        return call("count", number=turn)
    return ScriptedAnswer(FINAL, pause=0.1) if word == "work" else ScriptedAnswer("Done.")


def make_app() -> Service:
    """Return the service of a process, from its environment."""
    swarm = AsyncSwarm(ScriptedModel(answer, cut=int(os.environ.get("SERVICE_CUT", "4"))).client())
    url = os.environ["SERVICE_STORE"]
    if "://" in url:
        runs: Any = DurableRuns(swarm, agents=[CLERK], store=url, version="1", failover_seconds=0.2, max_deaths=1000)
    else:
        runs = LocalRuns(swarm, store=url, agents=[CLERK], failover_seconds=SILENT_SECONDS)
    return Service(runs, auth=bearer("token"), show=show_everything, drain_seconds=1)


@contextmanager
def process_on(store: Path | str) -> Iterator[ServiceProcess]:
    """Start a process that serves the runs of a store; it is killed at the end of the block."""
    with service_process(store, module=__name__) as it:  # type: ignore[arg-type] - a URL is passed on as it is
        yield it


# --- the view of clients ----------------------------------------------------------------------------------------------


def entries_of(it: ServiceProcess, run: str, after: int = -1) -> list[Entry]:
    """Return the entries of a run until its end."""
    import json

    text = it.browser.get(f"/runs/{run}/events?after={after}").text
    return [Entry.from_dict(json.loads(line[6:])) for line in text.splitlines() if line.startswith("data: ")]


def faults_of(it: ServiceProcess, run: str, conversation: str = "c") -> list[str]:
    """Return the contradictions between the log of a run, its conversation and its answer; empty if there are none."""
    history = it.browser.get(f"/conversations/{conversation}").json()["messages"]
    return record_faults(entries_of(it, run), history)


def noted() -> Counter[str]:
    """Return the number of times that each line was noted."""
    path = Path(os.environ["ONE_RECORD_NOTES"])
    return Counter(path.read_text().splitlines() if path.exists() else ())


def wait_for_note(line: str, seconds: float = 20) -> None:
    """Wait until a function has noted this line. Raises AssertionError after some seconds."""
    ends = time.monotonic() + seconds
    while not noted()[line]:
        assert time.monotonic() < ends, f"{line!r} is not noted: {noted()}"
        time.sleep(0.01)


def post(it: ServiceProcess, body: Json, *, key: str | None = None, conversation: str = "c") -> httpx.Response:
    """Request a run, from any thread."""
    headers = {} if key is None else {"idempotency-key": key}
    return it.browser.post(f"/conversations/{conversation}/runs", json=body, headers=headers)
