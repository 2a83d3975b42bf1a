"""`Journal`: the journal of one batch, and `Entry`: what it has of one item."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, TypeAlias

from aswarm._agent import Agent, Response
from aswarm._errors import AswarmError, ConfigurationError
from aswarm._run.handlers import Handlers, Middleware
from aswarm._run.options import RunOptions

from .agent_lookup import Agents
from .fingerprints import content_of
from .middleware import JournalMiddleware
from .record import Place, Tape, recorded_response, response_data
from .sqlite import JournalFile, Step
from .writer import Writer

# Runs to the end, with this middleware.
Run: TypeAlias = Callable[[RunOptions, Middleware], Awaitable[Response]]
_AGENTS_KEPT = 64  # a batch may make an agent for every item


class Journal:
    """The journal of one batch. Belongs to one event loop; `async with` opens it, or makes it, and closes it.

        async with Journal("run.sqlite", {"agent": agent.name}) as journal:
            response = await journal.run("item 7", RunOptions(agent, messages), swarm._run_to_end)

    Opening raises ConfigurationError for the journal of another batch or of another version, for one that another process
    has open, and for a file that is something else. What `begin` and `run` raise is the trouble of that item alone, unless
    `failure` is set: then the journal cannot be written any more, and the batch must end.
    """

    def __init__(self, path: str | PathLike[str], fingerprint: Mapping[str, str]) -> None:
        """`fingerprint`: what tells this batch from others, under names that an error message can use."""
        self.path = fspath(path)
        self._writer = Writer(partial(JournalFile.open, self.path, fingerprint))
        self._agents: dict[int, Agents] = {}

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be recorded any more, or None."""
        return self._writer.failure

    async def run(
        self,
        item_id: str,
        options: RunOptions,
        run: Run,
        own_context: Mapping[str, Any] | None = None,
    ) -> Response:
        """Run an item, or what is left of it, or give back the `Response` that it had.

        `run`: runs with the middleware of the journal. `own_context`: the context variables by which the item is known,
        among those of `options`. Raises what `begin`, `run` and `Entry.finish` raise.
        """
        entry = await self.begin(item_id, options.agent, options.messages, options.context_variables, own_context)
        if (recorded := entry.response) is not None:
            return recorded
        response = await run(options, entry.middleware)
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
    ) -> Entry:
        """Begin an item: its id, and what it is run with; `context_variables` must stay as they are until its end.

        Raises ConfigurationError for an item that was recorded with other messages, another agent or another
        `own_context`, and for an id that is no text or that this batch has had already; RunError where the journal
        cannot be written.
        """
        _check_id(item_id)
        content = content_of(agent, messages, own_context)
        found = await self._writer.find(item_id, content)
        if found.content != content:
            raise ConfigurationError(
                f"the item {item_id!r} is not the one that the journal {self.path} has under this id: its messages, its "
                "context variables or its agent are others. Give it an id of its own, or another journal to the batch"
            )
        if found.is_repeated:
            raise ConfigurationError(
                f"two items have the id {item_id!r}; with a journal, each must have one of its own"
            )
        tape = Tape(found.steps)
        return Entry(item_id, found.number, tape, self._agents_of(agent), context_variables or {}, self._writer)

    def _agents_of(self, start: Agent) -> Agents:
        known = self._agents.get(id(start))
        if known is None:
            if len(self._agents) >= _AGENTS_KEPT:
                self._agents.clear()
            known = self._agents[id(start)] = Agents(start)  # which holds `start`, so that the id stays its own
        return known

    async def aclose(self) -> None:
        """Write what is left and close the file."""
        await self._writer.aclose()

    async def __aenter__(self) -> Self:
        await self._writer.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


@dataclass(slots=True)
class Entry:
    """What the journal has of one item, and what it will have."""

    id: str
    number: int
    tape: Tape
    agents: Agents
    context: Mapping[str, Any]
    writer: Writer

    @property
    def response(self) -> Response | None:
        """The `Response` of a finished item, made anew; None where it has not finished.

        Its context variables are those given to `begin`, with what the run changed. Its `agent` is None where no agent
        of the recorded name can be found.
        """
        if self.tape.finished is None:
            return None
        record = json.loads(self.tape.finished)
        agent = None if record["agent"] is None else self.agents.find(record["agent"])
        return recorded_response(record, agent, self.context)

    def middleware(self, handlers: Handlers) -> Handlers:
        """The handlers of one attempt: they answer from the record, and record what comes after it."""
        wrapped = JournalMiddleware(self, handlers)
        return Handlers(wrapped.complete, wrapped.call_tool, handlers.run)

    async def finish(self, response: Response) -> None:
        """Record that the item is done, and wait until that is on the disk: only then may it be given out.

        Raises ConfigurationError for context variables that cannot be recorded, RunError where nothing can.
        """
        await self.commit("finished", Place(0, 0), response_data(response, self.context))

    def record(self, kind: str, place: Place, data: str = "") -> None:
        """Record one step; see `Tape`."""
        step = Step(self.number, kind, *place, data)
        # A completion is followed by the start of a call, or by the end of the item, which are written at once.
        self.writer.put(step, at_once=kind != "completion")
        self.tape.take(step)

    async def commit(self, kind: str, place: Place, data: str = "") -> None:
        """Record one step, and wait until it and all before it are on the disk."""
        step = Step(self.number, kind, *place, data)
        self.tape.take(step)
        await self.writer.commit(step)


def _check_id(item_id: str) -> None:
    try:
        item_id.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"the id {item_id!r} is no text that a journal can hold: {error.reason}") from error
