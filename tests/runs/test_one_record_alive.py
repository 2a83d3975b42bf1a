"""A run is declared dead only when its process is: suspended and busy processes keep their runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.serve.one_record import SILENT_SECONDS, faults_of, process_on, wait_for_note
from tests.support.serve.service_process import ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def ended(it: ServiceProcess, run: str) -> tuple[str, str | None]:
    """Wait for the end of a run, and return its status and its reason."""
    state = it.ended(run)
    return state["status"], state.get("reason")


def test_a_suspended_process_keeps_its_runs(tmp_path: Path) -> None:
    """A process that is stopped for longer than any lease and continued finishes its runs, each with one end."""
    store = tmp_path / "chats.sqlite"
    with process_on(store) as one, process_on(store) as two:
        runs = {name: one.say("slow 1", name) for name in "abc"}
        wait_for_note("slow")
        os.kill(one.process.pid, signal.SIGSTOP)
        try:
            time.sleep(3 * SILENT_SECONDS)
            during = [two.browser.get(f"/runs/{run}").json()["status"] for run in runs.values()]
        finally:
            os.kill(one.process.pid, signal.SIGCONT)
        assert [ended(two, run) for run in runs.values()] == [("finished", None)] * 3
        assert during == ["running"] * 3
        assert [faults_of(two, run, name) for name, run in runs.items()] == [[]] * 3


def test_a_busy_process_keeps_its_runs(tmp_path: Path) -> None:
    """A function that computes for longer than any lease, in the event loop, costs no run of its process its life."""
    store = tmp_path / "chats.sqlite"
    with process_on(store) as one, process_on(store) as two:
        runs = {"a": one.say("slow 1", "a"), "b": one.say(f"busy {3 * SILENT_SECONDS}", "b")}
        wait_for_note("busy")
        assert [ended(two, run) for run in runs.values()] == [("finished", None)] * 2
        assert [faults_of(two, run, name) for name, run in runs.items()] == [[]] * 2


def test_a_message_ends_no_run_of_a_suspended_process(tmp_path: Path) -> None:
    """A message for the conversation of a suspended process is refused with its run, which goes on."""
    store = tmp_path / "chats.sqlite"
    with process_on(store) as one, process_on(store) as two:
        run = one.say("slow 1")
        wait_for_note("slow")
        os.kill(one.process.pid, signal.SIGSTOP)
        try:
            time.sleep(3 * SILENT_SECONDS)
            answer = two.browser.post("/conversations/c/runs", json={"text": "Hello?"})
        finally:
            os.kill(one.process.pid, signal.SIGCONT)
        assert (answer.status_code, answer.json().get("error", {}).get("run")) == (409, run)
        assert ended(two, run) == ("finished", None)
        assert faults_of(two, run) == []
