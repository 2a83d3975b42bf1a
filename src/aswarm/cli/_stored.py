"""The options `--store` and `--conversation`, which name a conversation that a store keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ._exits import SetupError

if TYPE_CHECKING:
    from aswarm.conversations import PostgresStore, SQLiteStore

F = TypeVar("F", bound=Callable[..., Any])


def store_options(function: F) -> F:
    """`--store` and `--conversation`."""
    store = click.option(
        "--store",
        metavar="FILE|URL",
        help="Keep the conversation, as it happens, in this SQLite file, or in the PostgreSQL database of this URL.",
    )
    conversation = click.option(
        "--conversation", metavar="ID", help="The id of the conversation in --store: a new one, or one to continue."
    )
    return store(conversation(function))


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """The store of `--store`, and the id of `--conversation` in it."""

    store: str
    conversation: str

    def open(self) -> PostgresStore | SQLiteStore:
        """The store, to be opened by `async with`."""
        from aswarm.conversations import PostgresStore, SQLiteStore  # noqa: PLC0415 - only once it is needed

        return PostgresStore(self.store) if "://" in self.store else SQLiteStore(self.store)


def store_target(store: str | None, conversation: str | None) -> StoreTarget | None:
    """The target, or None if neither option is given. Raises SetupError for one option without the other."""
    if store is None and conversation is None:
        return None
    if store is None or conversation is None:
        raise SetupError("--store and --conversation belong together: a file, and the id of a conversation in it")
    return StoreTarget(store, conversation)
