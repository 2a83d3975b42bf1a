"""`aswarm worker`, `aswarm runs`, and the databases of `aswarm serve` and `aswarm batch`."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm import Agent, AsyncSwarm, tool
from aswarm._record import log
from aswarm._record.entries import Entry
from aswarm._record.log import LogRow
from aswarm.durable import DurableRuns
from aswarm.testing import ScriptedModel, call
from tests.support.cli.cli_runs import ended, invoke, model, refused, started
from tests.support.durable.durables import empty_file

MODULE = '''\
import os
from aswarm import Agent, AsyncSwarm, tool
from aswarm.durable import DurableRuns

@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"

boss = Agent(name="Boss", functions=[pay])
number = 7

def runs() -> DurableRuns:
    return DurableRuns(
        AsyncSwarm(), agents=boss, store="sqlite:///runs.db", version="1", concurrency=int(os.environ.get("AT_ONCE", "5"))
    )
'''
URL = "sqlite:///runs.db"


@pytest.fixture(autouse=True)
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `shop` in the current directory, and an empty database."""
    (folder / "shop.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    asyncio.run(empty_file(folder / "runs.db"))


def at_work(script: Any, *run_ids: str) -> None:
    """Runs that have been executed: each pays, which waits for an approval."""

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    async def main() -> None:
        async with (
            AsyncSwarm(ScriptedModel(script).client()) as swarm,
            DurableRuns(swarm, agents=Agent(name="Boss", functions=[pay]), store=URL, version="1") as runs,
        ):
            for run_id in run_ids:
                await (await runs.start("Boss", "Pay!", run_id=run_id)).wait()

    asyncio.run(main())


def lines(text: str) -> list[Any]:
    """The JSON objects of the lines."""
    return [json.loads(line) for line in text.splitlines()]


def test_runs_are_listed_and_shown() -> None:
    """A line of JSON for each run; the URL of the database is enough."""
    at_work([call("pay", call_id="p", amount=5), "Hello."], "a", "b")
    listed = lines(invoke("runs", "list", URL).stdout)
    assert [(run["id"], run["status"], run["user"]) for run in listed] == [
        ("b", "finished", "-"),
        ("a", "waiting", "-"),
    ]
    assert lines(invoke("runs", "list", URL, "--status", "running").stdout) == []
    (shown,) = lines(invoke("runs", "show", "shop:runs", "a").stdout)
    assert shown["end"]["response"]["waiting"][0]["id"] == "p"
    missing = invoke("runs", "show", URL, "c")
    assert missing.exit_code == 1
    assert "there is no run 'c'" in missing.stderr


def test_a_run_is_answered_stopped_and_deleted() -> None:
    """The run that continues waits for a worker; it is stopped; then both are deleted."""
    at_work([call("pay", call_id="p", amount=5)], "a")
    (answered,) = lines(invoke("runs", "answer", "shop:runs", "a", "p=yes").stdout)
    assert answered["status"] == "running"
    (shown,) = lines(invoke("runs", "show", URL, answered["id"]).stdout)
    assert "end" not in shown
    (stopped,) = lines(invoke("runs", "cancel", "shop:runs", answered["id"]).stdout)
    assert stopped["status"] == "stopped"
    assert lines(invoke("runs", "purge", URL, "--older-than", "1d").stdout) == [{"deleted": 0}]
    assert lines(invoke("runs", "purge", URL, "--older-than", "0s").stdout) == [{"deleted": 2}]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["runs", "answer", "shop:runs", "a", "p"], "CALL=yes"),
        (["runs", "answer", "shop:runs", "a", "p=oh"], "neither yes, no nor JSON"),
        (["runs", "purge", URL, "--older-than", "soon"], "30d"),
        (["runs", "answer", URL, "a", "p=yes"], "give module:attribute"),
        (["runs", "list", "sqlite:///other.db"], "there is no database 'other.db'"),
        (["runs", "list", "shop"], "expected module:attribute"),
        (["runs", "list", "shop:number"], "must be a DurableRuns"),
        (["worker", "shop:boss"], "must be a DurableRuns"),
        (["serve", "shop:boss", "--store", URL], "--code-version"),
        (["batch", "shop:boss", "in.jsonl", "--store", URL], "--code-version"),
        (
            ["batch", "shop:boss", "in.jsonl", "--store", URL, "--code-version", "1", "--rpm", "5"],
            "--rpm is not for durable",
        ),
        (
            ["batch", "shop:boss", "in.jsonl", "--store", URL, "--code-version", "1", "--attempts", "5"],
            "--attempts is not for durable",
        ),
    ],
    ids=str,
)
def test_mistakes_are_told(arguments: list[str], text: str) -> None:
    """One line says what to write."""
    Path("in.jsonl").write_text('{"input": "Hi!"}\n')
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


def test_a_run_that_no_worker_can_stop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun, and the URL of a database has no agents to write its history; with the agents it is stopped."""

    async def begun() -> None:
        swarm = AsyncSwarm(ScriptedModel([]).client())
        client = DurableRuns(swarm, agents=Agent(name="Boss"), store=URL, version="1", concurrency=0)
        async with client as runs:
            await runs.start("Boss", "Hi!", run_id="a")
            assert await runs._take("a") is not None
            turn = LogRow(1, 1, Entry(1, 0, "TurnStarted", {"turn": 1, "agent": "Boss"}).to_log())
            assert await runs._database.run(log.append, "a", 1, turn)

    asyncio.run(begun())
    monkeypatch.setattr("aswarm.cli.commands.runs._SECONDS_FOR_OTHERS", 0.3)
    result = invoke("runs", "cancel", URL, "a")
    assert result.exit_code == 2
    assert "give module:attribute" in " ".join(result.stderr.split())
    assert '"stopped"' in invoke("runs", "cancel", "shop:runs", "a").stdout


@pytest.mark.heavy
def test_a_question_is_answered_with_json() -> None:
    """Any JSON; a call that does not wait is refused."""
    at_work([call("pay", call_id="p", amount=5)], "a")
    refused = invoke("runs", "answer", "shop:runs", "a", "q={}")
    assert refused.exit_code == 1
    assert "does not wait for an answer" in refused.stderr


@pytest.mark.heavy
def test_a_worker_must_execute_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that would execute none is a mistake."""
    monkeypatch.setenv("AT_ONCE", "0")
    result = invoke("worker", "shop:runs")
    assert result.exit_code == 2
    assert "concurrency=0" in result.stderr


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each command that needs it."""
    Path("plain.py").write_text("from aswarm import Agent\nboss = Agent(name='Boss')\n")
    monkeypatch.setitem(sys.modules, "aswarm.durable", None)
    Path("in.jsonl").write_text('{"input": "Hi!"}\n')
    store = ["--store", URL, "--code-version", "1"]
    for arguments in (
        ["worker", "shop:runs"],
        ["serve", "plain:boss", *store],
        ["batch", "plain:boss", "in.jsonl", *store],
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "durable runs need" in result.stderr


@pytest.mark.heavy
def test_a_batch_of_durable_runs(folder: Path) -> None:
    """Each line is a run. The same command again asks no model, and writes the same outcomes."""
    Path("in.jsonl").write_text('{"id": 1, "input": "Hi!"}\n{"id": 2, "input": "Bye!"}\n')
    command = ["batch", "shop:boss", "in.jsonl", "--store", URL, "--code-version", "1", "--concurrency", "1"]
    with model("Hello.", "Goodbye.") as server:
        first = invoke(*command, "-o", "1.jsonl", server=server)
        second = invoke(*command, "-o", "2.jsonl", server=server)
    assert (first.exit_code, second.exit_code) == (0, 0)
    found = [{line["id"]: line["text"] for line in lines(Path(name).read_text())} for name in ("1.jsonl", "2.jsonl")]
    assert found == [{1: "Hello.", 2: "Goodbye."}] * 2


def test_an_item_that_fails_is_told() -> None:
    """Its line has the error, and the exit code says so."""
    Path("in.jsonl").write_text('{"input": "Hi!"}\n')
    with model(refused("400 Bad Request", "broken")) as server:
        result = invoke("batch", "shop:boss", "in.jsonl", "--store", URL, "--code-version", "1", server=server)
    assert result.exit_code == 1
    (line,) = lines(result.stdout)
    assert line["status"] == "error"
    assert "broken" in line["error"]["message"]


STORE = ["--store", URL, "--code-version", "1"]


@pytest.mark.heavy
def test_an_item_that_failed_runs_again() -> None:
    """The same command runs it again; the item that ended keeps its outcome."""
    Path("in.jsonl").write_text('{"id": 1, "input": "Hi!"}\n{"id": 2, "input": "Bye!"}\n')
    command = ["batch", "shop:boss", "in.jsonl", *STORE, "--concurrency", "1"]
    with model("Hello.", refused("400 Bad Request", "broken"), "Goodbye.") as server:
        first, second, third = (invoke(*command, server=server) for _ in range(3))
    assert [result.exit_code for result in (first, second, third)] == [1, 0, 0]
    assert [line["status"] for line in lines(first.stdout)] == ["answer", "error"]
    for result in (second, third):
        assert {line["id"]: line["text"] for line in lines(result.stdout)} == {1: "Hello.", 2: "Goodbye."}


@pytest.mark.heavy
def test_a_batch_stops_after_an_error() -> None:
    """With --on-error stop, the items that have not begun do not begin."""
    Path("in.jsonl").write_text('{"input": "Hi!"}\n' * 3)
    with model(refused("400 Bad Request", "broken"), "Hello.") as server:
        result = invoke(
            "batch", "shop:boss", "in.jsonl", *STORE, "--concurrency", "1", "--on-error", "stop", server=server
        )
    assert [line["status"] for line in lines(result.stdout)] == ["error"]


@pytest.mark.heavy
def test_an_item_that_waited_has_the_outcome_of_its_answer() -> None:
    """`aswarm runs answer` decides; the same batch again executes what continues, and writes its outcome."""
    Path("in.jsonl").write_text('{"id": 1, "input": "Pay!"}\n')
    command = ["batch", "shop:boss", "in.jsonl", *STORE]
    with model([call("pay", call_id="p", amount=5)], "It is paid.") as server:
        first = invoke(*command, server=server)
        (waiting,) = lines(invoke("runs", "list", URL, "--status", "waiting").stdout)
        invoke("runs", "answer", "shop:runs", waiting["id"], "p=yes")
        assert lines(invoke("runs", "list", URL, "--status", "waiting").stdout) == []
        second = invoke(*command, server=server)
    assert first.exit_code == 3
    assert [line["status"] for line in lines(first.stdout)] == ["waiting"]
    assert [line["text"] for line in lines(second.stdout)] == ["It is paid."]
    assert waiting["reason"] == "waiting"


@pytest.mark.heavy
def test_a_line_with_decisions_is_rejected() -> None:
    """Its text says how a durable run is answered."""
    Path("in.jsonl").write_text('{"input": "Pay!", "resume": {"p": true}}\n')
    result = invoke("batch", "shop:boss", "in.jsonl", *STORE)
    assert result.exit_code == 1
    assert "aswarm runs answer" in result.stderr


@pytest.mark.processes
@pytest.mark.slow
def test_a_worker_executes_and_leaves() -> None:
    """A real process: it executes what is in the queue, and ends with code 0 after SIGTERM."""
    at_work([call("pay", call_id="p", amount=5)], "a")
    (answered,) = lines(invoke("runs", "answer", "shop:runs", "a", "p=yes").stdout)
    with model("It is paid.") as server:
        process = started("worker", "shop:runs", "--drain", "5", server=server)
        text = _wait(answered["id"], process)
        process.send_signal(signal.SIGTERM)
        code, _, stderr = ended(process)
    assert text == "It is paid."
    assert code == 0
    assert "executing runs of the version 1" in stderr


def _wait(run_id: str, process: subprocess.Popen[bytes]) -> str:
    """The text of a run, once another process has executed it."""

    async def wait() -> str:
        client = DurableRuns(
            AsyncSwarm(ScriptedModel([]).client()), agents=Agent(name="Boss"), store=URL, version="1", concurrency=0
        )
        async with client as runs:
            with anyio.fail_after(60):
                return (await (await runs.find_run(run_id)).result()).text

    assert process.poll() is None
    return asyncio.run(wait())


@pytest.mark.processes
@pytest.mark.slow
def test_a_service_of_durable_runs() -> None:
    """`aswarm serve --store URL`: a run through HTTP, which the database has after the process has ended."""
    with model("Hello.") as server:
        process = started("serve", "shop:boss", "--store", URL, "--code-version", "1", "--port", "0", server=server)
        assert process.stderr is not None
        address = process.stderr.readline().decode().split()[1]
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            begun = client.post("conversations/c/runs", json={"text": "Hi!"})
            events = client.get(f"runs/{begun.json()['run']}/events").text
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] in (0, 143, -15)
    assert "Hello" in events.replace('"}', "")
    assert [run["status"] for run in lines(invoke("runs", "list", URL).stdout)] == ["finished"]
