"""Errors of a database file reach clients as errors of aswarm: 503 with Retry-After, and /health reports them."""

from __future__ import annotations

import json
import resource
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serve.one_record import entries_of, faults_of, noted, post, process_on, wait_for_note
from tests.support.serve.service_process import ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.processes]

SECONDS = 120  # after which a client has waited in vain; the process waits 10 s for the lock, once or twice


@contextmanager
def locked_file(it: ServiceProcess, store: Path) -> Iterator[None]:
    """Let another program hold the lock of the file for the whole block."""
    connection = sqlite3.connect(store, isolation_level=None, timeout=10)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@contextmanager
def full_disk(it: ServiceProcess, store: Path) -> Iterator[None]:
    """Let the process write nothing beyond the first bytes of its files for the whole block."""
    resource.prlimit(it.process.pid, resource.RLIMIT_FSIZE, (16, -1))
    try:
        yield
    finally:
        resource.prlimit(it.process.pid, resource.RLIMIT_FSIZE, (-1, -1))


Fault = Callable[[ServiceProcess, Path], AbstractContextManager[None]]


def answer_to(ask: Callable[[], httpx.Response]) -> tuple[Any, ...]:
    """Return the status of an answer, whether it has Retry-After, and whether it is an error of aswarm."""
    try:
        answer = ask()
    except httpx.HTTPError as error:
        return (repr(error),)
    words = ("sqlite", "Traceback", "KeyError", "database is locked")
    try:
        is_ours = bool(answer.json()["error"]["code"]) and not any(word in answer.text for word in words)
    except (json.JSONDecodeError, KeyError):
        is_ours = False
    return answer.status_code, "retry-after" in answer.headers, is_ours


@pytest.mark.parametrize("fault", [locked_file, full_disk])
def test_a_file_that_cannot_be_written_is_an_error_of_aswarm(tmp_path: Path, fault: Fault) -> None:
    """Start, answer and cancel are refused with 503 while it lasts; afterwards all goes on, and nothing ran that was refused."""
    store = tmp_path / "chats.sqlite"
    with process_on(store) as it:
        it.browser.timeout = SECONDS
        waiting = it.say("pay", "waiting")
        it.ended(waiting)
        (open_call,) = entries_of(it, waiting)[-1].response["waiting"]
        named = {"call": open_call.get("call_id") or open_call["id"], "run": waiting}
        decision = {"answers": [{**named, "approve": True}]}
        run = it.say("slow 600", "running")
        wait_for_note("slow")
        asked = {
            "start": lambda: post(it, {"text": "Hi!"}, conversation="new"),
            "answer": lambda: post(it, decision, conversation="waiting"),
            "cancel": lambda: it.browser.post(f"/runs/{run}/cancel"),
        }
        with fault(it, store), ThreadPoolExecutor(len(asked)) as pool:
            answers = dict(zip(asked, pool.map(answer_to, asked.values()), strict=True))
            health = it.browser.get("/health")
        assert answers == dict.fromkeys(asked, (503, True, True))
        assert (health.status_code, health.json()["status"]) != (200, "ok")
        assert noted()["pay"] == 0
        assert it.browser.post(f"/runs/{run}/cancel").json()["status"] == "stopped"
        assert faults_of(it, run, "running") == []
        assert it.ended(post(it, decision, conversation="waiting").json()["run"])["status"] == "finished"
        assert noted()["pay"] == 1
        assert it.browser.get("/health").json()["status"] == "ok"
