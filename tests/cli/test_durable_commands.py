"""`aswarm worker`, `aswarm runs`, and the databases of `aswarm serve` and `aswarm batch`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm import Agent, AsyncSwarm, tool
from aswarm.durable import DurableRuns
from aswarm.testing import ScriptedModel, call
from tests.support.cli.cli_runs import ended, invoke, model, refused, started, until
from tests.support.durable.durables import empty_file
from tests.support.providers.loopback import Reply

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
STORE = ["--store", URL, "--code-version", "1"]


@pytest.fixture(autouse=True)
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `shop` in the current directory, and an empty database."""
    (folder / "shop.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    asyncio.run(empty_file(folder / "runs.db"))


def client() -> DurableRuns:
    """Return durable runs that execute nothing."""
    swarm = AsyncSwarm(ScriptedModel([]).client())
    return DurableRuns(swarm, agents=Agent(name="Boss"), store=URL, version="1", concurrency=0)


def at_work(script: Any, *run_ids: str) -> None:
    """Execute runs whose payment waits for an approval."""

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
    """Return the JSON objects of the lines."""
    return [json.loads(line) for line in text.splitlines()]


def test_runs_are_listed_and_shown() -> None:
    """`runs list` and `runs show` need only the URL of the database, and print a line of JSON for each run."""
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
    """A run can be answered, stopped and deleted, and an answer to another call is refused."""
    at_work([call("pay", call_id="p", amount=5)], "a")
    other = invoke("runs", "answer", "shop:runs", "a", "q={}")
    assert (other.exit_code, "does not wait for an answer" in other.stderr) == (1, True)
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
        (["serve", "shop:boss", *STORE[:2]], "--code-version"),
        (["batch", "shop:boss", "in.jsonl", *STORE[:2]], "--code-version"),
        (["batch", "shop:boss", "in.jsonl", *STORE, "--rpm", "5"], "--rpm is not for durable"),
        (["batch", "shop:boss", "in.jsonl", *STORE, "--attempts", "5"], "--attempts is not for durable"),
    ],
    ids=str,
)
def test_mistakes_are_usage_errors(arguments: list[str], text: str) -> None:
    """A mistake is a usage error that names the remedy."""
    Path("in.jsonl").write_text('{"input": "Hi!"}\n')
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


@pytest.mark.processes
def test_a_run_that_no_worker_can_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL of a database has no agents that could stop a run of a dead worker; the module has them."""

    async def start() -> None:
        async with client() as runs:
            await runs.start("Boss", "Hi!", run_id="a")

    asyncio.run(start())
    with model(Reply([], silent=True)) as server:
        worker = started("worker", "shop:runs", server=server)
        until(lambda: server.requests)
        worker.kill()
        ended(worker)
    monkeypatch.setattr("aswarm.cli.commands.runs.SECONDS_FOR_OTHERS", 0.3)
    result = invoke("runs", "cancel", URL, "a")
    assert result.exit_code == 2
    assert "give module:attribute" in " ".join(result.stderr.split())
    assert '"stopped"' in invoke("runs", "cancel", "shop:runs", "a").stdout


def test_a_worker_must_execute_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would execute no runs is a usage error."""
    monkeypatch.setenv("AT_ONCE", "0")
    result = invoke("worker", "shop:runs")
    assert result.exit_code == 2
    assert "concurrency=0" in result.stderr


def test_the_error_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, each command for durable runs is a usage error."""
    Path("plain.py").write_text("from aswarm import Agent\nboss = Agent(name='Boss')\n")
    monkeypatch.setitem(sys.modules, "aswarm.durable", None)
    Path("in.jsonl").write_text('{"input": "Hi!"}\n')
    for arguments in (
        ["worker", "shop:runs"],
        ["serve", "plain:boss", *STORE],
        ["batch", "plain:boss", "in.jsonl", *STORE],
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "durable runs need" in result.stderr


def test_an_item_that_failed_runs_again() -> None:
    """The same command runs a failed item again, and keeps the outcomes of the other items."""
    Path("in.jsonl").write_text('{"id": 1, "input": "Hi!"}\n{"id": 2, "input": "Bye!"}\n')
    command = ["batch", "shop:boss", "in.jsonl", *STORE, "--concurrency", "1"]
    with model("Hello.", refused("400 Bad Request", "broken"), "Goodbye.") as server:
        first, second, third = (invoke(*command, server=server) for _ in range(3))
    assert [result.exit_code for result in (first, second, third)] == [1, 0, 0]
    assert [line["status"] for line in lines(first.stdout)] == ["answer", "error"]
    for result in (second, third):
        assert {line["id"]: line["text"] for line in lines(result.stdout)} == {1: "Hello.", 2: "Goodbye."}


def test_a_batch_stops_after_an_error() -> None:
    """With --on-error stop, no item starts after an error."""
    Path("in.jsonl").write_text('{"input": "Hi!"}\n' * 3)
    with model(refused("400 Bad Request", "broken"), "Hello.") as server:
        result = invoke(
            "batch", "shop:boss", "in.jsonl", *STORE, "--concurrency", "1", "--on-error", "stop", server=server
        )
    assert [line["status"] for line in lines(result.stdout)] == ["error"]


def test_an_item_that_waited_has_the_outcome_of_its_answer() -> None:
    """After `aswarm runs answer`, the same batch executes the item and writes its outcome."""
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
    assert (waiting["status"], waiting["reason"]) == ("waiting", "waiting")


def test_an_output_of_durable_runs_continues() -> None:
    """The same command with the same output skips finished items, and looks again for the answers to waiting items."""
    Path("in.jsonl").write_text('{"id": 1, "input": "Hi!"}\n{"id": 2, "input": "Pay!"}\n')
    command = ["batch", "shop:boss", "in.jsonl", "-o", "out.jsonl", *STORE, "--concurrency", "1"]
    with model("Hello.", [call("pay", call_id="p", amount=5)], "It is paid.") as server:
        assert invoke(*command, server=server).exit_code == 3
        (waiting,) = lines(invoke("runs", "list", URL, "--status", "waiting").stdout)
        invoke("runs", "answer", "shop:runs", waiting["id"], "p=yes")
        second = invoke(*command, server=server)
    assert second.exit_code == 0
    assert [(line["id"], line["text"]) for line in lines(Path("out.jsonl").read_text("utf-8"))] == [
        (1, "Hello."),
        (2, ""),
        (2, "It is paid."),
    ]


def test_a_line_with_decisions_is_rejected() -> None:
    """A line with decisions is rejected with the command that answers durable runs."""
    Path("in.jsonl").write_text('{"input": "Pay!", "resume": {"p": true}}\n')
    result = invoke("batch", "shop:boss", "in.jsonl", *STORE)
    assert result.exit_code == 1
    assert "aswarm runs answer" in result.stderr


@pytest.mark.processes
@pytest.mark.slow
def test_a_worker_executes_and_stops() -> None:
    """A worker executes the queue, and exits with code 0 after SIGTERM."""
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


def test_a_second_signal_ends_the_wait_of_a_worker() -> None:
    """The worker of this process waits for its run after the first signal, and ends at the second."""

    async def start() -> None:
        async with client() as runs:
            await runs.start("Boss", "Hi!", run_id="a")

    def interrupt() -> None:
        until(lambda: server.requests)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            time.sleep(0.3)

    asyncio.run(start())
    with model(Reply([], silent=True)) as server:
        thread = threading.Thread(target=interrupt)
        thread.start()
        result = invoke("worker", "shop:runs", "--drain", "60", server=server)
        thread.join()
    assert (result.exit_code, "executing runs of the version 1" in result.stderr) == (0, True)
    (released,) = lines(invoke("runs", "release", URL, "a").stdout)
    assert released["id"] == "a"


def test_a_server_of_durable_runs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends with its server, and has printed the address."""

    async def serve(*_: Any, **__: Any) -> None:
        await anyio.sleep(0)

    monkeypatch.setattr("uvicorn.Server.serve", serve)
    result = invoke("serve", "shop:boss", *STORE, "--port", "0")
    assert (result.exit_code, "Boss: http://" in result.stderr) == (0, True)


def _wait(run_id: str, process: subprocess.Popen[bytes]) -> str:
    """Return the text of a run that another process executes."""

    async def wait() -> str:
        async with client() as runs:
            with anyio.fail_after(60):
                return (await (await runs.find_run(run_id)).result()).text

    assert process.poll() is None
    return asyncio.run(wait())


@pytest.mark.processes
@pytest.mark.slow
def test_a_service_of_durable_runs() -> None:
    """The database has a run of `aswarm serve --store URL` after the end of the process."""
    with model("Hello.") as server:
        process = started("serve", "shop:boss", *STORE, "--port", "0", server=server)
        assert process.stderr is not None
        address = process.stderr.readline().decode().split()[1]
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as browser:
            created = browser.post("conversations/c/runs", json={"text": "Hi!"})
            events = browser.get(f"runs/{created.json()['run']}/events").text
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] in (0, 143, -15)
    assert "Hello" in events.replace('"}', "")
    assert [run["status"] for run in lines(invoke("runs", "list", URL).stdout)] == ["finished"]
