"""A durable run that is taken over twice has one log with each fact once."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import psycopg
import pytest

from tests.support.conversations.stores import emptied_database
from tests.support.serve.one_record import FINAL, entries_of, faults_of, noted, process_on
from tests.support.serve.record_checker import shown_text
from tests.support.serve.service_process import ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(autouse=True)
def _notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE_RECORD_NOTES", str(tmp_path / "notes.txt"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    return emptied_database(request.getfixturevalue("postgres"))


def read_until(it: ServiceProcess, run: str, kind: str, times: int) -> None:
    """Read the log until it has so many entries of a type, or until its end; 120 seconds at most."""
    ends = time.monotonic() + 120
    with it.browser.stream("GET", f"/runs/{run}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                times -= json.loads(line[6:])["type"] == kind
            if times <= 0:
                return
            assert time.monotonic() < ends, f"the log of {run} goes on without {kind}"


@pytest.mark.parametrize(
    "kills", [["TextDelta"] * 2, pytest.param(["ToolCallFinished", "TextDelta"], marks=pytest.mark.heavy)]
)
def test_a_run_that_is_taken_over_twice_has_one_log(url: str, kills: list[str]) -> None:
    """Killed twice, between calls or in the middle of the answer: one end, each call finishes once, and the answer is whole."""
    run = ""
    for kind in kills:
        with process_on(url) as it:
            run = run or it.say("work 3")
            # So that the attempt before is repeated, and the next entries are new.
            read_until(it, run, "TurnStarted", 3 if kind == "ToolCallFinished" else 4)
            read_until(it, run, kind, 2)
            time.sleep(0.25)
            it.kill()
    with process_on(url) as it:
        assert it.ended(run)["status"] == "finished"
        entries = entries_of(it, run)
        faults = faults_of(it, run)
        time.sleep(1)  # nothing is written behind the end
        assert [entry.seq for entry in entries_of(it, run)] == [entry.seq for entry in entries]
    answers = [entry.fields["message"]["content"] for entry in entries if entry.type == "CompletionFinished"]
    assert faults == []
    assert answers.count(FINAL) == 1
    assert shown_text(entries) == FINAL
    assert noted() == {f"count {number}": 1 for number in range(3)}


def test_an_idle_worker_that_is_killed_leaves_nothing(url: str, tmp_path: Path) -> None:
    """The next worker clears up after it: the files and the rows of queues are as many as before."""

    def left() -> tuple[int, int]:
        return len(list(tmp_path.glob("runs.db*"))), rows_of_queues(url)

    with process_on(url) as it:
        first = left()
        it.kill()
    assert first[1] >= 1, "the queue of the worker, beside those of other tests on this server"
    with process_on(url):
        ends = time.monotonic() + 60
        while (now := left()) != first:
            assert time.monotonic() < ends, f"{now} instead of {first}"
            time.sleep(0.05)


def rows_of_queues(url: str) -> int:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)
        statement = "SELECT count(*) FROM queues"
    else:
        connection = psycopg.connect(url)  # type: ignore[assignment]
        statement = "SELECT count(*) FROM dbos.queues"
    try:
        return int(connection.execute(statement).fetchone()[0])
    except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):  # that DBOS has none any more
        return 0
    finally:
        connection.close()
