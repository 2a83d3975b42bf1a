"""`aswarm batch` as a process: Ctrl-C, SIGTERM, pipes, and kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import ended, environment, until
from tests.support.cli.cli_runs import refused as refusal
from tests.support.providers.loopback import LoopbackServer, Reply, serve, whole
from tests.support.record.journaled import kinds
from tests.support.repl.terminal import terminal

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
def server(stalls_after: int | None = None, refused: Collection[int] = ()) -> Generator[LoopbackServer]:
    """Serve a model that calls the function and then answers. `stalls_after`: the number of answered requests."""
    asked = count(1)

    def reply(body: dict[str, Any]) -> Reply:
        if stalls_after is not None and next(asked) > stalls_after:
            return Reply([], silent=True)
        last = body["messages"][-1]
        if last["role"] == "tool":
            return replace(whole(ScriptedAnswer("done")), pause=0.01)
        number = int(last["content"].split()[1])
        if number in refused:
            return refusal("400 Bad Request", "no")
        return replace(whole(ScriptedAnswer(calls=[call("note", number=number)])), pause=0.01)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(reply)) as running:
        yield running


def start(model: LoopbackServer, source: str = "in.jsonl", *options: str, stdin: int | None = None) -> Process:
    """Start the command, five items at a time."""
    command = [sys.executable, "-m", "aswarm", "batch", "agents:noter", source, "--concurrency", "5", *options]
    pipe = subprocess.PIPE
    own = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    return subprocess.Popen(
        command, stdin=stdin or subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={**own, **environment(model)}
    )


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.heavy)]
)
def test_ctrl_c_and_sigterm_stop_a_batch(number: signal.Signals, expected: int) -> None:
    """A stopped batch leaves whole lines, and the same command with --resume runs the other items once."""
    with server(stalls_after=30) as model:
        process = start(model, "in.jsonl", "-o", OUT)
        until(lambda: len(model.requests) >= 35)
        until(lambda: len(lines()) >= 5)
        process.send_signal(number)
        code, stdout, stderr = ended(process)
    assert (code, stdout) == (expected, "")
    assert "Traceback" not in stderr
    assert "Stopped. To continue, run the same command again with --resume." in stderr
    done = len(lines())
    assert f"{done} item" in stderr
    with server() as model:
        code, _, stderr = ended(start(model, "in.jsonl", "-o", OUT, "--resume"))
    assert code == 0
    assert f"{40 - done} item" in stderr
    assert sorted(line["id"] for line in lines()) == sorted(f"item-{number}" for number in range(40))


@pytest.mark.heavy
def test_outcomes_come_while_the_input_is_open() -> None:
    """A line from a pipe runs before the next line comes, and Ctrl-C does not wait for the next line."""
    with server() as model:
        process = start(model, "-", "-o", OUT, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(b'{"input": "note 1"}\n')
        process.stdin.flush()
        until(lambda: len(lines()) == 1)
        process.send_signal(signal.SIGINT)
        until(lambda: process.poll() is not None)
        code, _, stderr = ended(process)
    assert code == 130
    assert "1 item in" in stderr


@pytest.mark.heavy
def test_stdin_to_its_end() -> None:
    """`cat in.jsonl | aswarm batch agents:noter - > out.jsonl` runs all lines."""
    with server() as model:
        process = start(model, "-", stdin=subprocess.PIPE)
        assert process.stdin is not None
        stdout, stderr = process.communicate(Path("in.jsonl").read_bytes(), timeout=60)
    assert process.returncode == 0
    assert len(stdout.splitlines()) == 40
    assert b"40 items in" in stderr


@pytest.mark.heavy
def test_a_broken_pipe_stops_the_batch() -> None:
    """`aswarm batch ... | head -1` sends no further request, and is exit code 141."""
    with server(stalls_after=40) as model:
        process = start(model)
        head = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, check=True, timeout=240)
        assert json.loads(head.stdout)["status"] == "answer"
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        code, _, stderr = ended(process)
    assert code == 141
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr


@pytest.mark.heavy
def test_a_reader_that_pauses() -> None:
    """Ctrl-C does not wait for a reader that pauses, and the summary counts the written lines."""
    items = [json.dumps({"input": f"note {number}", "metadata": "x" * 10_000}) for number in range(40)]
    Path("long.jsonl").write_text("\n".join(items), encoding="utf-8")
    with server() as model:
        process = start(model, "long.jsonl")
        until(lambda: len(model.requests) >= 20)  # six lines fill the pipe, five more outcomes wait
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        until(lambda: process.poll() is not None)
        code, stdout, stderr = ended(process)
    assert code == 130
    assert "Traceback" not in stderr
    assert "Fatal" not in stderr
    whole = [line for line in stdout.splitlines(keepends=True) if line.endswith("\n")]
    assert f"{len(whole)} item" in stderr


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--resume"], id="output", marks=pytest.mark.heavy),
        pytest.param(["--journal", "run.sqlite"], id="journal"),
    ],
)
def test_kill_9_loses_no_written_outcome(options: list[str]) -> None:
    """A batch that was killed twice has one line for each item, and no item has run twice."""
    with server() as model:
        for enough in (5, 20):
            process = start(model, "in.jsonl", "-o", OUT, *options)
            until(lambda enough=enough: len(lines()) >= enough)
            process.kill()
            ended(process)
        before = [line["id"] for line in lines()]
        code, _, stderr = ended(start(model, "in.jsonl", "-o", OUT, *options))
    unknown_calls = [made for line in lines() for made in line["unknown_calls"]]
    assert code == (5 if unknown_calls else 0), stderr
    after = [line["id"] for line in lines()]
    assert after[: len(before)] == before
    assert sorted(after) == sorted(f"item-{number}" for number in range(40))
    if "--journal" not in options:
        return
    noted = Path("noted").read_text().split()
    # A kill between the record of a start and the first step of the function leaves an unknown outcome in the history.
    unknown = {line["id"].removeprefix("item-") for line in lines() if UNKNOWN in json.dumps(line["messages"])}
    assert len(unknown_calls) == len(unknown)
    assert kinds(Path("run.sqlite")).count("RunFinished") == 40
    assert ("is unknown" in stderr) == bool(unknown)
    assert {str(number) for number in range(40)} - unknown <= set(noted)
    assert len(unknown) <= 2 * 5
    assert len(noted) == len(set(noted))


@pytest.mark.heavy
def test_kill_9_and_failed_items() -> None:
    """After kill -9, --resume runs failed items again, and keeps the old lines."""
    with server(refused={1, 3, 30}) as model:
        process = start(model, "in.jsonl", "-o", OUT)
        until(lambda: {"item-1", "item-3"} <= {line["id"] for line in lines() if line["status"] == "error"})
        until(lambda: len(lines()) >= 12)
        process.kill()
        ended(process)
    before = Path(OUT).read_bytes()
    answered = {line["id"] for line in lines() if line["status"] == "answer"}
    failed = {line["id"] for line in lines()} - answered
    # A crash of the machine can leave such a part of a line.
    cut = b'{"id": "item-39", "sta'
    Path(OUT).write_bytes(before + cut)
    with server() as model:
        code, _, stderr = ended(start(model, "in.jsonl", "-o", OUT, "--resume"))
        asked = {request["messages"][1]["content"].replace("note ", "item-") for request in model.requests}
    assert code == 0, stderr
    assert f"{40 - len(answered)} item" in stderr
    assert f"{len(answered)} item" in stderr.partition("\n")[2]
    assert not asked & answered
    assert failed < asked
    assert Path(OUT).read_bytes().startswith(before + cut + b"\n")
    after = [json.loads(line) for line in Path(OUT).read_bytes().splitlines() if line != cut]
    assert len(after) == 40 + len(failed)
    assert {line["id"]: line["status"] for line in after} == {f"item-{number}": "answer" for number in range(40)}


@pytest.mark.heavy
def test_a_terminal_has_a_bar() -> None:
    """A terminal shows a bar, and then the summary."""
    program = "import sys; sys.argv[0] = 'aswarm'\nfrom aswarm.cli import main\nmain()"
    with server() as model:
        options = ["batch", "agents:noter", "in.jsonl", "-o", OUT]
        with terminal(program, *options, **environment(model)) as screen:
            assert screen.end() == 0
            shown = screen.screen.text
    assert "40/40" in shown
    assert "40 items in" in shown
