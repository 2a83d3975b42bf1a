"""`Journal`: the journal of one batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, TypeAlias

from aswarm._agent import Agent, Response, asked_for
from aswarm._decisions import Decisions
from aswarm._errors import AswarmError, ConfigurationError
from aswarm._run.handlers import Middleware
from aswarm._run.options import RunOptions

from .agent_lookup import AgentLookup
from .entry import JournalEntry
from .fingerprints import item_fingerprint
from .middleware import journal_middleware
from .record import ItemRecord
from .sqlite import JournalFile
from .writer import JournalWriter

# Runs a conversation to its end with this middleware.
RunWithMiddleware: TypeAlias = Callable[[RunOptions, Middleware], Awaitable[Response]]
_LOOKUPS_KEPT = 64  # a batch may make an agent for every item


class Journal:
    """The journal of one batch. It belongs to one event loop; `async with` opens the file, or makes it, and closes it.

        async with Journal("run.sqlite", {"agent": agent.name}) as journal:
            response = await journal.run("item 7", RunOptions(agent, messages), run_with_middleware)

    Opening raises ConfigurationError for the journal of another batch or of another version, for a journal that another
    process has open, and for a file of another kind. An exception of `begin` or `run` concerns that item alone, unless
    `failure` is set: then the journal cannot be written any more, and the batch must end.
    """

    def __init__(
        self, path: str | PathLike[str], fingerprint: Mapping[str, str], agents: Mapping[str, Agent] | None = None
    ) -> None:
        """`fingerprint` tells this batch from others; its keys stand in error messages. `agents`: see `AgentLookup`."""
        self.path = fspath(path)
        self._writer = JournalWriter(partial(JournalFile.open, self.path, fingerprint))
        self._agents = agents
        self._lookups: dict[int, AgentLookup] = {}

    @property
    def failure(self) -> Exception | None:
        """Why the journal cannot be written any more, or None."""
        return self._writer.failure

    async def run(
        self,
        item_id: str,
        options: RunOptions,
        run: RunWithMiddleware,
        own_context: Mapping[str, Any] | None = None,
    ) -> Response:
        """Run an item, or the rest of it; or return the recorded `Response` if the item has finished.

        `own_context`: those of the context variables in `options` that identify the item. Raises what `begin`, `run`
        and `JournalEntry.finish` raise.
        """
        entry = await self.begin(
            item_id, options.agent, options.messages, options.context_variables, own_context, options.resume
        )
        if (recorded := entry.response) is not None:
            return recorded if options.output is None else asked_for(recorded, options.output)
        response = await run(options, journal_middleware(entry))
        try:
            await entry.finish(response)
        except AswarmError as error:
            error.response = response
            raise
        return response

    async def begin(
        self,
        item_id: str,
        agent: Agent,
        messages: Any,
        context_variables: Mapping[str, Any] | None = None,
        own_context: Mapping[str, Any] | None = None,
        resume: bool | Decisions = False,
    ) -> JournalEntry:
        """Find the item in the file, or add it. The caller must not change `context_variables` until the item ends.

        Raises ConfigurationError if the item was recorded with other messages, another agent, `own_context` or `resume`,
        and for an id that is not valid text or that this batch has had before; RunError if the file cannot be written.
        """
        _check_id(item_id)
        content = item_fingerprint(agent, messages, own_context, resume)
        stored = await self._writer.find(item_id, content)
        if stored.content != content:
            raise ConfigurationError(
                f"the item {item_id!r} differs from the one that the journal {self.path} has under this id: in its "
                "messages, its context variables, its decisions or the name of its agent. Give the item another id, or the batch "
                "another journal"
            )
        if stored.is_repeated:
            raise ConfigurationError(
                f"two items of the batch have the id {item_id!r}; with a journal, each item needs an id of its own"
            )
        steps = ItemRecord(stored.steps)
        return JournalEntry(item_id, stored.number, steps, self._lookup(agent), context_variables or {}, self._writer)

    def _lookup(self, start: Agent) -> AgentLookup:
        known = self._lookups.get(id(start))
        if known is None:
            if len(self._lookups) >= _LOOKUPS_KEPT:
                self._lookups.clear()
            # It holds a reference to `start`, so no other agent can get this id.
            known = self._lookups[id(start)] = AgentLookup(start, self._agents)
        return known

    async def aclose(self) -> None:
        """Write the remaining records and close the file."""
        await self._writer.aclose()

    async def __aenter__(self) -> Self:
        await self._writer.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _check_id(item_id: str) -> None:
    try:
        item_id.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the journal cannot hold the id {item_id!r}: {error.reason}. Use an id that UTF-8 can encode"
        ) from error
