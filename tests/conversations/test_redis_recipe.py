"""The store of the guide to conversations, in a Redis server of `fakeredis`: it passes the tests of the included stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import fakeredis
import pytest
from redis.exceptions import ConnectionError as NotConnected

from aswarm import Agent, AsyncSwarm, RunError, external_tool
from aswarm.conversations import Conflict, Conversation, Store
from aswarm.testing import ScriptedModel, call
from tests.conversations.test_stores import (
    test_a_conversation_as_it_was_earlier as test_a_conversation_as_it_was_earlier,
)
from tests.conversations.test_stores import test_a_deleted_conversation as test_a_deleted_conversation
from tests.conversations.test_stores import test_a_fork_has_the_first_messages as test_a_fork_has_the_first_messages
from tests.conversations.test_stores import test_a_fork_that_is_not_possible as test_a_fork_that_is_not_possible
from tests.conversations.test_stores import (
    test_a_list_has_the_last_updated_first as test_a_list_has_the_last_updated_first,
)
from tests.conversations.test_stores import (
    test_a_purge_deletes_old_conversations as test_a_purge_deletes_old_conversations,
)
from tests.conversations.test_stores import (
    test_a_purge_of_the_future_is_an_error as test_a_purge_of_the_future_is_an_error,
)
from tests.conversations.test_stores import (
    test_a_write_replaces_the_messages_that_it_does_not_keep as test_a_write_replaces_the_messages_that_it_does_not_keep,
)
from tests.conversations.test_stores import (
    test_a_write_that_is_repeated_changes_nothing as test_a_write_that_is_repeated_changes_nothing,
)
from tests.conversations.test_stores import (
    test_a_writer_that_comes_second_is_a_conflict as test_a_writer_that_comes_second_is_a_conflict,
)
from tests.conversations.test_stores import (
    test_a_written_conversation_is_loaded as test_a_written_conversation_is_loaded,
)
from tests.conversations.test_stores import (
    test_states_of_replaced_messages_are_removed as test_states_of_replaced_messages_are_removed,
)
from tests.support.contract.documentation import PROJECT, blocks_of
from tests.support.conversations.stores import change, user


@pytest.fixture
def anyio_backend() -> str:
    """The client of Redis works on asyncio."""
    return "asyncio"


@pytest.fixture
def store_class() -> Any:
    """The class of the guide."""
    [block] = [
        each
        for each in blocks_of(PROJECT / "docs/guides/conversations.md")
        if each.notes.get("file") == "redis_store.py"
    ]
    namespace: dict[str, Any] = {}
    exec(block.code, namespace)
    return namespace["RedisStore"]


@pytest.fixture
async def store(store_class: Any) -> AsyncIterator[Store]:
    """A store on an empty server."""
    async with fakeredis.FakeAsyncRedis() as redis:
        yield store_class(redis)


async def test_ids_with_a_prefix_are_listed(store: Store) -> None:
    """A list of one user must not show conversations of another user."""
    for each in ("u/1", "u/2", "u", "ü/1", "v"):
        await store.write(each, change(None))
    assert sorted(each.id for each in await store.list(prefix="u/")) == ["u/1", "u/2"]
    assert [each.id for each in await store.list(prefix="ü")] == ["ü/1"]


async def test_the_conversations_that_wait_are_listed(store: Store) -> None:
    """The store inherits `conversation()` and `async with` from the base class."""
    model = ScriptedModel([call("pay", call_id="call_1"), "Paid."])
    agent = Agent(
        functions=[external_tool(name="pay", description="Pay.", parameters={"type": "object", "properties": {}})]
    )
    async with store as same:
        chat = same.conversation("a", AsyncSwarm(model.client()), agent=agent)
        await chat.run("Pay.")
        await same.write("b", change(None, stop="answer"))
        assert [each.id for each in await same.list(stop="waiting", limit=5)] == ["a"]
        await chat.resume({"call_1": "paid"})
        assert await same.list(stop="waiting") == []


async def test_one_of_two_writers_at_the_same_time_is_first(store: Store) -> None:
    """Redis refuses the other transaction, which then finds the new revision."""
    first = change(None, user("1"))
    await store.write("a", first)
    caught: list[Conflict] = []

    async def write(text: str) -> None:
        try:
            await store.write("a", change(first, user(text)))
        except Conflict as conflict:
            caught.append(conflict)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(write, str(number))
    stored = await store.load("a")
    assert len(caught) == 4
    assert stored is not None and len(stored.messages) == 2


async def test_a_run_is_kept(store: Store) -> None:
    """A conversation with a call, and a fork of it, on the store."""

    async def pay() -> str:
        """Pay."""
        return "paid"

    swarm = AsyncSwarm(ScriptedModel([call("pay"), "Done.", "Again."]).client())
    chat = Conversation(store, "a", swarm, agent=Agent(functions=[pay]))
    assert (await chat.run("Go")).text == "Done."
    fork = await chat.fork("b", until=1)
    assert (await fork.run("And?")).text == "Again."
    stored = await chat.load()
    assert (stored.stop, len(stored.messages), len((await fork.load()).messages)) == ("answer", 4, 3)


async def test_a_server_that_is_not_there_is_an_error(store_class: Any) -> None:
    """A `Store` raises RunError then."""
    server = fakeredis.FakeServer()
    server.connected = False
    store = store_class(fakeredis.FakeAsyncRedis(server=server))
    with pytest.raises(RunError, match="cannot be reached") as caught:
        await store.load("a")
    assert isinstance(caught.value.__cause__, NotConnected)
