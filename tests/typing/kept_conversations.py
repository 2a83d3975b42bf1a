"""Typed use of conversations: the types of answers and of events."""

from typing import assert_type

from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, Event, Response
from aswarm.conversations import Conversation, MemoryStore, PostgresStore, SQLiteStore, Store, Stored


class Trip(BaseModel):
    """An answer with a type."""

    city: str


async def runs(swarm: AsyncSwarm) -> None:
    """A run knows the type that it was asked for."""
    async with SQLiteStore("chats.sqlite") as store:
        chat = store.conversation("a", swarm, agent=Agent())
        response = await chat.run("Hi", output=Trip)
        assert_type(response.output, Trip)
        assert_type((await chat.run("Hi", run_id="a", budget=None, output=Trip)).output, Trip)
        await chat.resume(resume=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        assert_type(await chat.load(), Stored)
        async with chat.stream("Hi") as run:
            async for event in run:
                assert_type(event, Event)
        last: Response = run.response
        print(last)


class Desk:
    """A service takes any store."""

    def __init__(self, swarm: AsyncSwarm, store: Store) -> None:
        self.chat = store.conversation("a", swarm, agent=Agent())
        self.store = store

    async def waiting(self) -> list[str]:
        async with self.store as store:
            assert_type(store, Store)
            return [each.id for each in await store.list(stop="waiting")]


def stores(swarm: AsyncSwarm) -> list[Conversation]:
    """Each store is a `Store`."""
    kinds: list[Store] = [MemoryStore(), SQLiteStore("x"), PostgresStore("")]
    return [Conversation(store, "a", swarm, agent=Agent()) for store in kinds]
