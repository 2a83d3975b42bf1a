"""`Journal`: a file with the runs of a batch, so that a rerun after a crash continues them.

It is the log of the items (`ItemFile`), and not a queue. Each item is a run in the log. A rerun of the item is another attempt of
this run, which `EntryRecorder` records and replays. When each entry of an item is written:

    TurnStarted, CompletionFinished        together with the next entry
    ToolCallStarted                        before the function runs: the run waits for the disk
    ToolCallFinished, ToolCallWithdrawn    at once; the run does not wait
    RunFinished                            before the response is returned: the run waits for the disk

`entry_recorder` documents the replay of a call. A call without an outcome is in `Response.unknown_calls`. An item with RunFinished
does not run again: the batch returns the recorded `Response`.

A rerun starts each item from its first message. The loop makes the same requests and calls, and the recorder answers them from
the entries. It compares each request with the recorded request. Some data cannot be recorded: context variables that are not
JSON, and handoffs to agents that a rerun could not find by name. Such data raises an error in the first run. If a tool
changes an object in the context variables (a client, a cart), this change is not recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, Self, TypeAlias

from aswarm._log.items import ItemFile
from aswarm._record.entry_maker import ItemMaker
from aswarm._record.entry_recorder import EntryRecorder
from aswarm._record.facts import item_fingerprint
from aswarm._run.options import RunOptions
from aswarm._values.agent import Agent, Response, asked_for
from aswarm._values.errors import AswarmError, ConfigurationError
from aswarm.extensions import AgentDirectory

# Runs a conversation to its end, and passes its events to the recorder.
RunRecorded: TypeAlias = Callable[[RunOptions, EntryRecorder], Awaitable[Response]]
_LOOKUPS_KEPT = 64  # limited, because a batch may create an agent for every item


class Journal:
    """The journal of one batch. It belongs to one event loop; `async with` opens or creates the file, and closes it.

        async with Journal("run.sqlite", {"agent": agent.name}) as journal:
            response = await journal.run("item 7", RunOptions(agent, messages), run_recorded)

    Opening raises ConfigurationError like `ItemFile`. If `run` raises an exception, only this item has failed. But if `failure`
    is set, the error of a write, then the batch must stop.
    """

    def __init__(self, path: str | PathLike[str], fingerprint: Mapping[str, str], agents: Iterable[Agent] = ()) -> None:
        """`fingerprint`: identifies the batch; error messages name its keys. `agents`: see `AgentDirectory`."""
        self._file = ItemFile(path, fingerprint)
        self._agents = agents
        self._lookups: dict[int, AgentDirectory] = {}
        self.recent_requests = self._file.recent_requests

    @property
    def failure(self) -> BaseException | None:
        """The error after which the journal can no longer be written, or None."""
        return self._file.failure

    async def run(
        self, item_id: str, options: RunOptions, run: RunRecorded, own_context: Mapping[str, Any] | None = None
    ) -> Response:
        """Run an item, or continue it. For a finished item, return the recorded `Response`.

        `own_context`: the context variables in `options` that identify the item.

        Raises the exceptions of `run`, and RunError if the file cannot be written. Raises ConfigurationError if the item was
        recorded with other messages, another agent, another `own_context` or another `resume`. Other causes are an id that is
        not valid text or was used before in this batch, and a context variable that cannot be recorded.
        """
        digest = item_fingerprint(options.agent, options.messages, own_context, options.resume)
        item = await self._file.take(item_id, digest, options.messages)
        agents, maker = self._lookup(options.agent), ItemMaker(options.context_variables or {})
        if item.is_finished:
            recorded = maker.response(item.entries[-1], agents)
            return recorded if options.output is None else asked_for(recorded, options.output)

        def mismatch(turn: int, parts: str) -> ConfigurationError:
            return ConfigurationError(
                f"the item {item_id!r} cannot be resumed: request {turn} differs from the recorded one in its {parts}. Resume "
                "with the agents that the item started with (put text that changes from day to day, such as the date, into the "
                "messages and not into the instructions), or run the item again under another id: its tools then run again"
            )

        item.last_entry = maker.finished
        recorder = EntryRecorder(item, maker, agents, mismatch, recorded=item.entries, deltas=False)
        try:
            response = await run(replace(options, owner=item.owner), recorder)
        except BaseException:
            await item.finish(None, None)
            raise
        try:
            await item.finish(response, None)
        except AswarmError as error:
            error.response = response
            raise
        return response

    def _lookup(self, start: Agent) -> AgentDirectory:
        directory = self._lookups.get(id(start))
        if directory is None:
            if len(self._lookups) >= _LOOKUPS_KEPT:
                self._lookups.clear()
            # The directory keeps `start` alive, so no other agent can get the same `id()`.
            directory = self._lookups[id(start)] = AgentDirectory((start, *self._agents))
        return directory

    async def __aenter__(self) -> Self:
        await self._file.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._file.aclose()
