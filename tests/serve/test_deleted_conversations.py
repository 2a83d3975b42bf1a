"""DELETE of a conversation beside other requests, and readers of its runs."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from aswarm.testing import ScriptedAnswer
from tests.support.serve.served import events_of, served


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
async def test_a_reader_of_a_deleted_run_gets_an_event(caplog: pytest.LogCaptureFixture) -> None:
    """The stream ends with a RunFailed, and the server logs no error."""
    async with served([ScriptedAnswer("word " * 2_000)], cut=1) as it:
        run = await it.say()
        await it.ended(run)
        deletions, original = [it.service.runs], it.service.runs.registry.next

        async def read(*arguments: Any, **keywords: Any) -> Any:
            entries = await original(*arguments, **keywords)
            if deletions:
                await deletions.pop().delete_conversation("c", user="ann")
            return entries

        it.service.runs.registry.next = read  # type: ignore[method-assign]
        events = [json.loads(each["data"]) for each in events_of((await it.ann.get(f"/runs/{run}/events")).text)]
        assert events[0]["type"] == "RunStarted"
        assert (events[-1]["type"], events[-1]["error"]["type"]) == ("RunFailed", "RunNotFound")
        assert (await it.ann.get(f"/runs/{run}/events")).status_code == 404
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
