"""DELETE of a conversation beside other requests, by one and by two processes, and readers of its runs."""

from __future__ import annotations

import importlib.util
import json
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import events_of, served
from tests.support.serve.service_process import ServiceProcess, service_process

KINDS = [
    "chats.sqlite",
    pytest.param(
        "sqlite:///{folder}/runs.db",
        marks=pytest.mark.skipif(importlib.util.find_spec("dbos") is None, reason="durable runs need dbos"),
    ),
]


def together(*requests: Callable[[], httpx.Response]) -> list[httpx.Response]:
    """Send requests from threads, each after a delay of some milliseconds."""
    responses: dict[int, httpx.Response] = {}
    pause, delays = threading.Event(), [random.uniform(0, 0.006) for _ in requests]

    def send(number: int, request: Callable[[], httpx.Response]) -> None:
        pause.wait(delays[number])
        responses[number] = request()

    threads = [threading.Thread(target=send, args=each) for each in enumerate(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [responses[number] for number in range(len(requests))]


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.processes
@pytest.mark.parametrize("store", KINDS)
def test_a_deletion_and_a_start_never_both_win(tmp_path: Path, store: str) -> None:
    """In two processes: either nothing runs and nothing is left, or the deletion is refused and the run has its record.

    A message that arrives after the deletion starts a new conversation.
    """
    place: Any = store.format(folder=tmp_path) if "://" in store else tmp_path / store
    with (
        service_process(place, module="tests.support.serve.shared_process") as one,
        service_process(place, module="tests.support.serve.shared_process") as two,
    ):
        outcomes = Counter(race(tmp_path, number, (one, two)[number % 2], one) for number in range(24))
    assert sum(outcomes.values()) == 24


def race(folder: Path, number: int, starter: ServiceProcess, deleter: ServiceProcess) -> tuple[int, int]:
    """Delete a conversation while an answer or a message starts a run in it. Returns the statuses of both requests."""
    name, is_answer = f"/conversations/{number}", number % 4 < 2
    asked = deleter.say(f"pay {number}", str(number))
    assert deleter.ended(asked)["reason"] == "waiting"
    answers = {"answers": [{"call": f"c{number}", "run": asked, "approve": True}]}
    body = answers if is_answer else {"text": f"work {number}"}
    started, deleted = together(
        lambda: starter.browser.post(f"{name}/runs", json=body), lambda: deleter.browser.delete(name)
    )
    (folder / f"go-{number}").touch()
    stored, has_run = deleter.browser.get(name), False
    if started.status_code == 202:
        has_run = deleter.ended(started.json()["run"])["status"] == "finished"
    done = (folder / "done").read_text().split() if (folder / "done").exists() else []
    assert (str(number) in done) == has_run
    if deleted.status_code == 409:
        assert (started.status_code, has_run) == (202, True)
        assert deleter.browser.get(f"/runs/{asked}").status_code == 200
    elif is_answer or not has_run:
        assert (deleted.status_code, stored.status_code) == (204, 404)
        assert started.status_code in (404, 409)
    else:
        assert deleted.status_code == 204
        assert stored.json()["messages"][0] == {"role": "user", "content": f"work {number}"}
    return started.status_code, deleted.status_code


@pytest.mark.asyncio
async def test_a_fork_of_a_conversation_that_is_just_deleted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork is 404 if the conversation is deleted after the fork has found it."""
    async with served(["Hello."]) as it:
        await it.ended(await it.say())
        store, fork = it.service.runs.store, it.service.runs.store.fork

        async def after_deletion(*arguments: Any, **keywords: Any) -> None:
            assert (await it.ann.delete("/conversations/c")).status_code == 204
            await fork(*arguments, **keywords)

        monkeypatch.setattr(store, "fork", after_deletion)
        answer = await it.ann.post("/conversations/c/fork", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")


@pytest.mark.asyncio
async def test_deletions_have_their_statuses(workshop: Workshop) -> None:
    """A deletion is 204, 404 for an unknown conversation, and 409 while a run is active."""
    async with served(["Hello.", call("slow")], workshop, drain_seconds=0) as it:
        await it.ended(await it.say())
        run = await it.say(conversation="d")
        await workshop.began.wait()
        statuses = [(await it.ann.delete(f"/conversations/{name}")).status_code for name in "ccd"]
        assert statuses == [204, 404, 409]
        assert (await it.state(run))["status"] == "running"


@pytest.mark.asyncio
async def test_a_reader_of_a_deleted_run_gets_an_event(caplog: pytest.LogCaptureFixture) -> None:
    """The stream ends with a RunFailed, and the server logs no error."""
    async with served([ScriptedAnswer("word " * 2_000)], cut=1) as it:
        run = await it.say()
        await it.ended(run)
        deletions, original = [it.service.runs], it.service.runs.read

        async def read(*arguments: Any, **keywords: Any) -> Any:
            entries = await original(*arguments, **keywords)
            if deletions:
                await deletions.pop().delete_conversation("c", user="ann")
            return entries

        it.service.runs.read = read  # type: ignore[method-assign]
        events = [json.loads(each["data"]) for each in events_of((await it.ann.get(f"/runs/{run}/events")).text)]
        assert events[0]["type"] == "RunStarted"
        assert (events[-1]["type"], events[-1]["error"]["type"]) == ("RunFailed", "RunNotFound")
        assert (await it.ann.get(f"/runs/{run}/events")).status_code == 404
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
