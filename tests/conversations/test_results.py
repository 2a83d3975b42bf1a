"""Long results in a store: they belong to their conversation, and are copied and deleted with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Reply, RunError, tool
from aswarm.conversations import SQLiteStore, SQLStore
from aswarm.middleware import spill_results
from aswarm.testing import Request, ScriptedModel, call
from aswarm.tools import agent_tool
from tests.support.conversations.stores import KINDS, change, user

HANDLES = [f"r{number:016x}" for number in range(3)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of store, and the backend that it runs on."""
    return request.param


@pytest.fixture
def anyio_backend(kind: str) -> str:
    """The backend of a kind."""
    return kind.partition("-")[2]


async def texts(store: SQLStore, conversation: str) -> dict[str, Any]:
    """The first part of each text of a conversation."""
    owner = f"conversation:{conversation}"
    return {handle: await store.results.read(owner, handle, 0) for handle in await store.results.handles(owner)}


async def test_a_text_is_stored_once_for_its_owner(store: SQLStore) -> None:
    """Any text, in parts, the newest first. Another owner has nothing, and no text is stored for an unknown owner."""
    await store.write("a", change(None, user("Hi")))
    await store.write("b", change(None, user("Hi")))
    parts = ["NUL \0, ✓ and 𝄞" * 4_000, *[f"{number}" for number in range(40)]]
    await store.results.put("conversation:a", HANDLES[0], parts)
    await store.results.put("conversation:a", HANDLES[1], ["newer"])
    await store.results.put("conversation:a", HANDLES[0], ["another"])  # a replay changes nothing
    assert await store.results.handles("conversation:a") == [HANDLES[1], HANDLES[0]]
    read = [await store.results.read("conversation:a", HANDLES[0], number) for number in range(42)]
    assert read == [*parts, None]
    assert await texts(store, "b") == await texts(store, "nowhere") == {}
    for owner in ("conversation:nowhere", "run:a", "run:nowhere"):
        assert await store.results.read(owner, HANDLES[0], 0) is None
        with pytest.raises(
            RunError, match=r"a long result cannot be kept, because the .* was deleted, or is not in the database"
        ):
            await store.results.put(owner, HANDLES[0], ["lost"])


async def test_a_fork_has_the_results_that_it_shows(store: SQLStore) -> None:
    """Not those of later messages. It keeps them when the first conversation is deleted, and loses them with its own end."""
    shown = {"role": "tool", "tool_call_id": "x", "content": f"[result {HANDLES[0]}: 9 characters]\n..."}
    await store.write("a", change(None, user("Hi"), shown, user(f"later: {HANDLES[1]}")))
    for handle in HANDLES:
        await store.results.put("conversation:a", handle, [f"text of {handle}", "end"])
    await store.fork("a", "early", until=2)
    await store.fork("a", "whole")
    assert await texts(store, "early") == {HANDLES[0]: f"text of {HANDLES[0]}"}
    assert set(await texts(store, "whole")) == set(HANDLES[:2])
    assert await store.delete("a")
    assert await texts(store, "a") == {}
    assert await store.results.read("conversation:early", HANDLES[0], 1) == "end"
    assert await store.purge(older_than_seconds=0) == 2
    assert await texts(store, "early") == await texts(store, "whole") == {}


async def test_a_conversation_that_is_deleted_while_a_function_runs_keeps_nothing(store: SQLStore) -> None:
    """The run ends with an error: its text has no owner any more. A new conversation of the same id has no old text."""

    async def rows() -> str:
        """Return many rows, while another program deletes the conversation."""
        if deletes:
            assert await store.delete("a")
            deletes.clear()
        return "row " * 10_000

    deletes = [True]

    def answer(request: Request) -> Any:
        results = [message["content"] for message in request.messages if message["role"] == "tool"]
        return ([call("rows")], [call("search_result", text="row")])[len(results)] if len(results) < 2 else "Done."

    swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=[spill_results(500)])
    chat = store.conversation("a", swarm, agent=Agent(functions=[rows]))
    with pytest.raises(RunError, match="deleted"):
        await chat.run("Go")
    assert await store.load("a") is None
    response = await chat.run("Go")
    assert response.messages[-1]["content"] == "Done."
    assert len(await texts(store, "a")) == 1


async def test_a_fork_of_a_run_that_waits_inside_has_the_results_of_the_inner_run(store: SQLStore) -> None:
    """An agent tool has a long result and then waits. In the fork it continues, and both agents read the result."""

    def rows() -> str:
        """Return many rows."""
        return "".join(f"row {number}\n" for number in range(20_000))

    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    def answer(request: Request) -> Any:
        results = [message["content"] for message in request.messages if message["role"] == "tool"]
        if "pay" in request.tool_names:
            steps = [call("rows"), call("pay", call_id="p"), call("search_result", text="ROW 19999"), "Inner done."]
        else:
            steps = [call("inner", request="Go", call_id="i"), call("search_result", text="row 18888"), "Done."]
        return steps[len(results)]

    swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=[spill_results(500)])
    agent = Agent(name="Outer", functions=[agent_tool(Agent(name="Inner", functions=[rows, pay]))])
    chat = store.conversation("a", swarm, agent=agent)
    assert (await chat.run("Go")).stop == "waiting"
    copy = await chat.fork("b")
    assert await store.delete("a")
    response = await copy.resume({"i": Reply({"p": True})})
    assert response.messages[-1]["content"] == "Done."
    found = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert found[0] == "Inner done."
    assert "row 18888 " in found[1]
    (handle,) = await texts(store, "b")
    assert found[1].startswith(f"{handle} at ")


async def test_a_deleted_result_is_not_in_the_file(tmp_path: Path) -> None:
    """Its pages are overwritten when the store is closed, and so are its logs."""
    path, secret = tmp_path / "chats.sqlite", "the secret of ann "
    async with SQLiteStore(path) as store:
        await store.write("a", change(None, user("Hi")))
        await store.results.put("conversation:a", HANDLES[0], [secret * 1_000] * 3)
        assert await store.delete("a")
    assert not any(secret.encode() in file.read_bytes() for file in tmp_path.iterdir())
