"""Long results of runs: of one user and one conversation, also beside code, forks, deletions and another process."""

from __future__ import annotations

import re
from typing import Any

from aswarm import Agent
from aswarm.middleware import spill_results
from aswarm.testing import Request, call
from tests.support.runs.kept_runs import Open, Place, also_durable


def rows() -> str:
    """Return many rows."""
    return "the secret of ann " * 10_000


AGENT = Agent(name="Boss", functions=[rows])


def contents(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def answer(request: Request) -> Any:
    """Call what the last message of the user asks for: "rows", or a handle and the position of a read."""
    asked = [message["content"] for message in request.messages if message["role"] == "user"][-1]
    if request.messages[-1]["role"] == "tool":
        return "Done."
    name, *handle = asked.split()
    return call(name, **({"handle": handle[0], "start": 4} if handle else {"text": "ANN"} if name != "rows" else {}))


async def asked(place: Place, text: str, **more: Any) -> str:
    """Return the result of the call that a run makes."""
    run = await place.start(text, **more)
    last = await run.last_entry()
    assert last.type == "RunFinished", last
    return str([entry.fields["content"] async for entry in run.entries() if entry.type == "ToolCallFinished"][-1])


def settings() -> dict[str, Any]:
    return {"agents": [AGENT], "middleware": [spill_results(1_000)]}


@also_durable("sqlite", "postgres")
async def test_a_handle_that_another_user_guesses_reads_nothing(place: Open) -> None:
    """Neither does another conversation of the same user, whatever its id is, nor a run without a conversation."""
    async with place(answer, **settings()) as it:
        handle = re.findall("r[0-9a-f]{16}", await asked(it, "rows", run_id="ann/c"))[0]
        assert "secret" in await asked(it, f"read_result {handle}")
        assert "secret" in await asked(it, "search_result")
        for user, conversation in (("bob", "c"), ("ann", "d"), ("ann%2Fc", "c"), ("ann", None), ("bob", None)):
            for text in (f"read_result {handle}", "search_result"):
                found = await asked(it, text, user=user, conversation=conversation)
                assert "secret" not in found
        await it.runs.delete_conversation("c", user="ann")
        assert "no longer kept" in await asked(it, f"read_result {handle}")


@also_durable("postgres")
async def test_a_run_without_a_conversation_keeps_its_results_with_its_log(place: Open) -> None:
    """They are deleted with the run. A client chooses the id of a run, so it is no owner of a conversation of the same name."""
    async with place(answer, **settings()) as it:
        await asked(it, "rows", conversation="c")
        run = await it.start("rows", conversation=None, run_id="ann/c")
        await run.last_entry()
        owner, results = "run:ann/c", it.runs.store.results
        (handle,) = await results.handles(owner)
        assert "secret" in str(await results.read(owner, handle, 2))
        assert len(await results.handles("conversation:ann/c")) == 1
        deleter: Any = it.runs
        await deleter.registry.deleter.delete([run.id])
        assert await results.handles(owner) == []
        assert len(await results.handles("conversation:ann/c")) == 1
        await it.runs.forget("c", user="ann")  # the runs, and not the conversation
        assert len(await results.handles("conversation:ann/c")) == 1
