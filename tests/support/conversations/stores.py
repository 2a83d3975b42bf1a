"""Stores for tests: an empty schema or database of PostgreSQL for each test."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg

from aswarm.conversations import Change, ConversationStream, Stored
from aswarm.types import EventStream

KINDS = ["memory-asyncio", "memory-trio", "sqlite-asyncio", "sqlite-trio", "postgres-asyncio", "postgres-trio"]


def empty_schema(server: str) -> str:
    """Return the connection string of a new empty schema."""
    schema = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return f"{server}&options=-csearch_path%3D{schema}"


def emptied_database(server: str) -> str:
    """Return the connection string of an empty database for durable runs. Its tables are made only once, which is slow."""
    url = server.replace("/postgres?", "/durable?")
    with psycopg.connect(server, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'durable'").fetchall():
            connection.execute("CREATE DATABASE durable")
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('dbos', 'public') "
            "AND tablename NOT LIKE 'aswarm_format_%' AND tablename NOT IN ('dbos_migrations', 'queues')"
        ).fetchall()
        if tables:
            connection.execute(f"TRUNCATE {', '.join(name for (name,) in tables)} CASCADE".encode())
    return url


def user(text: str) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def change(base: Stored | Change | None, *messages: dict[str, Any], keep: int | None = None, **others: Any) -> Change:
    """Return a write that adds messages, or replaces the messages from `keep`."""
    before = 0 if base is None else len(base.messages) if isinstance(base, Stored) else base.keep + len(base.messages)
    fields: dict[str, Any] = {
        "base": "" if base is None else base.revision,
        "revision": secrets.token_hex(4),
        "keep": before if keep is None else keep,
        "messages": messages,
        "agent": "Agent",
        "context_variables": {},
    }
    return Change(**fields | others)


async def read(stream: ConversationStream, into: list[str] | None = None) -> EventStream:
    """Read a stream to its end; `into` gets the names of the events."""
    async with stream as run:
        async for event in run:
            if into is not None:
                into.append(type(event).__name__)
    return run
