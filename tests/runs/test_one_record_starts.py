"""A run exists when its start is answered, and never before: refused starts, two processes, and errors of the database."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.serve.one_record import faults_of, post, process_on
from tests.support.serve.service_process import ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.processes]

WRONG = {"answers": [{"call": "no such call", "run": None, "approve": True}]}


def with_long_history(it: ServiceProcess) -> None:
    """Give the conversation so long a history that loading it takes a while."""
    for _ in range(6):
        it.ended(it.say("long 150000"))


def together(*requests: Callable[[], httpx.Response]) -> list[httpx.Response]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return [future.result(60) for future in [pool.submit(request) for request in requests]]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_refused_start_is_refused_for_all_and_refuses_no_other(tmp_path: Path, processes: int) -> None:
    """Nobody gets the id of a run that does not exist afterwards, and a valid message beside a refused start is taken."""
    store = tmp_path / "chats.sqlite"
    with process_on(store) as one, process_on(store) as two:
        with_long_history(one)
        other = two if processes == 2 else one
        for number in range(20):
            wrongs = [lambda it=it, key=f"key {number}": post(it, WRONG, key=key) for it in (one, other, one, other)]
            assert not [answer.json() for answer in together(*wrongs) if answer.is_success]
            wrong, right = together(
                lambda number=number: post(one, WRONG, key=f"wrong {number}"),
                lambda number=number: post(other, {"text": f"Hi {number}"}),
            )
            assert (wrong.is_success, right.is_success) == (False, True), right.text
            one.ended(right.json()["run"])


def test_an_acknowledged_run_is_not_deleted(tmp_path: Path) -> None:
    """The disk is full while a run starts. A client that has got the id of the run finds it later, after any other start."""
    store = tmp_path / "chats.sqlite"
    lost: list[str] = []
    with process_on(store) as one, process_on(store) as two:
        with_long_history(one)
        for number in range(8):
            with ThreadPoolExecutor(1) as pool:
                started = pool.submit(post, one, {"text": "Hi!"}, key=f"key {number}")
                time.sleep(0.005 * number)
                full_disk(one, is_full=True)
                try:
                    started.result(60)
                    again = post(two, {"text": "Hi!"}, key=f"key {number}")
                finally:
                    full_disk(one, is_full=False)
            post(one, {"text": "Hi!"}, conversation=f"other {number}")
            if again.is_success:
                run = again.json()["run"]
                if two.browser.get(f"/runs/{run}").status_code != 200:
                    lost.append(run)
                    continue
                assert one.ended(run)["status"] in ("finished", "failed", "stopped")
                assert faults_of(two, run) == []
    assert lost == []


def full_disk(it: ServiceProcess, *, is_full: bool) -> None:
    """Let the process write no file beyond its first bytes, or any file again. The files of other processes grow."""
    resource.prlimit(it.process.pid, resource.RLIMIT_FSIZE, (16 if is_full else -1, -1))
