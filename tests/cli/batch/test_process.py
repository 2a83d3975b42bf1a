"""`aswarm batch` as a process: Ctrl-C, SIGTERM, and kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import ended, environment, until
from tests.support.providers.loopback import LoopbackServer, Reply, serve, whole
from tests.support.record.journaled import kinds

pytestmark = pytest.mark.processes

Process = subprocess.Popen[bytes]

AGENTS = '''\
import pathlib
from aswarm import Agent

async def note(number: int) -> str:
    """Note a number."""
    with pathlib.Path("noted").open("a") as file:
        file.write(f"{number}\\n")
    return "noted"

noter = Agent(name="Noter", functions=[note])
'''
OUT = "out.jsonl"
UNKNOWN = "cancelled; its outcome is unknown"


@pytest.fixture(autouse=True)
def forty(project: Path) -> None:
    """An agent that notes numbers, and a file of forty items."""
    (project / "agents.py").write_text(AGENTS, encoding="utf-8")
    lines = [json.dumps({"id": f"item-{number}", "input": f"note {number}"}) for number in range(40)]
    (project / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def lines() -> list[dict[str, Any]]:
    """Return the whole lines of the output."""
    text = Path(OUT).read_bytes() if Path(OUT).exists() else b""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


@contextmanager
def server(stalls_after: int | None = None) -> Generator[LoopbackServer]:
    """Serve a model that calls the function and then answers. `stalls_after`: the number of answered requests."""
    asked = count(1)

    def reply(body: dict[str, Any]) -> Reply:
        if stalls_after is not None and next(asked) > stalls_after:
            return Reply([], silent=True)
        last = body["messages"][-1]
        if last["role"] == "tool":
            return replace(whole(ScriptedAnswer("done")), pause=0.01)
        number = int(last["content"].split()[1])
        return replace(whole(ScriptedAnswer(calls=[call("note", number=number)])), pause=0.01)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(reply)) as running:
        yield running


def start(model: LoopbackServer, *options: str) -> Process:
    """Start the command, five items at a time."""
    command = [sys.executable, "-m", "aswarm", "batch", "agents:noter", "in.jsonl", "--concurrency", "5", *options]
    pipe = subprocess.PIPE
    own = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={**own, **environment(model)}
    )


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.heavy)]
)
def test_ctrl_c_and_sigterm_stop_a_batch(number: signal.Signals, expected: int) -> None:
    """A stopped batch leaves whole lines, and the same command with --store runs the other items once."""
    with server(stalls_after=30) as model:
        process = start(model, "-o", OUT)
        until(lambda: len(model.requests) >= 35)
        until(lambda: len(lines()) >= 5)
        process.send_signal(number)
        code, stdout, stderr = ended(process)
    assert (code, stdout) == (expected, "")
    assert "Traceback" not in stderr
    assert "Stopped. To continue, run the same command again with --store FILE:" in stderr
    done = len(lines())
    assert f"{done} item" in stderr
    with server() as model:
        code, _, stderr = ended(start(model, "-o", OUT, "--store", "run.sqlite"))
    assert code == 0
    assert f"{40 - done} item" in stderr
    assert sorted(line["id"] for line in lines()) == sorted(f"item-{number}" for number in range(40))


@pytest.mark.heavy
def test_kill_9_loses_no_written_outcome() -> None:
    """A batch that was killed twice has one line for each item, and no item has run twice."""
    options = ["--store", "run.sqlite"]
    with server() as model:
        for enough in (5, 20):
            process = start(model, "-o", OUT, *options)
            until(lambda enough=enough: len(lines()) >= enough)
            process.kill()
            ended(process)
        before = [line["id"] for line in lines()]
        code, _, stderr = ended(start(model, "-o", OUT, *options))
    unknown_calls = [made for line in lines() for made in line["unknown_calls"]]
    assert code == (5 if unknown_calls else 0), stderr
    after = [line["id"] for line in lines()]
    assert after[: len(before)] == before
    assert sorted(after) == sorted(f"item-{number}" for number in range(40))
    noted = Path("noted").read_text().split()
    # A kill between the record of a start and the first step of the function leaves an unknown outcome in the history.
    unknown = {line["id"].removeprefix("item-") for line in lines() if UNKNOWN in json.dumps(line["messages"])}
    assert len(unknown_calls) == len(unknown)
    assert kinds(Path("run.sqlite")).count("RunFinished") == 40
    assert ("is unknown" in stderr) == bool(unknown)
    assert {str(number) for number in range(40)} - unknown <= set(noted)
    assert len(unknown) <= 2 * 5
    assert len(noted) == len(set(noted))
