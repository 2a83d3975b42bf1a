"""A run is declared dead only when its process is: a suspended process keeps its runs."""

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
    """It is stopped for longer than any lease, and then finishes its runs. A message for a conversation of it is refused meanwhile."""
    store = tmp_path / "chats.sqlite"
    with process_on(store) as one, process_on(store) as two:
        runs = {name: one.say("slow 1", name) for name in "abc"}
        wait_for_note("slow")
        os.kill(one.process.pid, signal.SIGSTOP)
        try:
            time.sleep(3 * SILENT_SECONDS)
            during = [two.browser.get(f"/runs/{run}").json()["status"] for run in runs.values()]
            answer = two.browser.post("/conversations/c/runs", json={"text": "Hello?"})
        finally:
            os.kill(one.process.pid, signal.SIGCONT)
        assert [ended(two, run) for run in runs.values()] == [("finished", None)] * 3
        assert during == ["running"] * 3
        assert (answer.status_code, answer.json().get("error", {}).get("run")) == (409, runs["c"])
        assert [faults_of(two, run, name) for name, run in runs.items()] == [[]] * 3
