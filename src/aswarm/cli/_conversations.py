"""The conversation of a command and its store: the options `--store` and `--conversation`, `--load` and `--save`.

`--save FILE` is like `--store FILE` for a new conversation. `--load FILE` starts with the conversation in FILE, and does not
change FILE. A stored conversation is only data, and cannot approve a call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.decisions import Resume, resume_from_json
from aswarm._values.errors import ConfigurationError

from ._exits import SetupError

if TYPE_CHECKING:
    from aswarm.conversations import Conversation, Store, Stored

F = TypeVar("F", bound=Callable[..., Any])

_store_option = click.option(
    "--store",
    metavar="FILE|URL",
    help="Save the conversation while it runs, to this SQLite file, or to the PostgreSQL database with this URL.",
)
_conversation_option = click.option(
    "--conversation",
    metavar="ID",
    help="The id of a new conversation in --store, or of one to continue. [default: conversation]",
)


def store_options(function: F) -> F:
    """Add `--store` and `--conversation`."""
    return _store_option(_conversation_option(function))


def decisions_in(path: str) -> Resume:
    """Return the decisions from a JSON file, or from stdin for `-`. Raises SetupError if there are none."""
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        decisions: Any = json.loads(text)
    except OSError as error:
        raise SetupError(f"--resume: {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SetupError(f"--resume: {path} is not JSON: {error}") from error
    try:
        return resume_from_json(decisions)
    except ValueError as error:
        raise SetupError(f"--resume: {path} {error}") from error


@dataclass(frozen=True, slots=True)
class Kept:
    """The options of a command about its conversation. Raises SetupError for options that exclude each other."""

    load: str | None = None
    save: str | None = None
    store: str | None = None
    conversation: str | None = None

    def __post_init__(self) -> None:
        if self.store is None and self.conversation is not None:
            raise SetupError("--conversation needs --store: the file or the URL of a store")
        if self.store is not None and not (self.load is None and self.save is None):
            raise SetupError("--store cannot be combined with --load and --save; use one of them")

    @property
    def id(self) -> str:
        """The id of the conversation in its store."""
        from aswarm.repl._kept import ID  # noqa: PLC0415 - only once it is needed

        return ID if self.conversation is None else self.conversation

    @asynccontextmanager
    async def open(self, swarm: AsyncSwarm, agent: Agent) -> AsyncGenerator[Conversation | None]:
        """Open the store. Yields the conversation in it, or None without a store. Raises SetupError if a file cannot be used."""
        if (self.load, self.save, self.store) == (None, None, None):
            yield None
            return
        from aswarm.conversations import Conversation, MemoryStore  # noqa: PLC0415 - as above
        from aswarm.repl._kept import store_at  # noqa: PLC0415 - as above

        loaded = None if self.load is None else await loaded_from(self.load)
        place = self.save if self.store is None else self.store
        async with MemoryStore() if place is None else store_at(place) as store:
            if self.store is None:
                await self._start(store, loaded)
            yield Conversation(store, self.id, swarm, agent=agent)

    async def _start(self, store: Store, loaded: Stored | None) -> None:
        """Write the loaded conversation to the store of `--save`. Raises SetupError if the store has another conversation."""
        from aswarm.conversations import Stored  # noqa: PLC0415 - as above
        from aswarm.repl._kept import is_earlier, write_copy  # noqa: PLC0415 - as above

        stored = await store.load(self.id)
        if stored is not None and not is_earlier(stored, loaded or Stored(self.id)):
            raise SetupError(f"--save: {self.save} has another conversation; use another file, or --load this file too")
        if loaded is not None and (stored is None or stored.revision != loaded.revision):
            await write_copy(store, self.id, loaded, stored)


async def loaded_from(file: str) -> Stored:
    """Return the conversation in the file of `--load`. Raises SetupError if the file has no conversation."""
    from aswarm.repl._kept import conversation_in  # noqa: PLC0415 - as above

    try:
        return await conversation_in(file)
    except ConfigurationError as error:
        raise SetupError(f"--load: {error}") from error
