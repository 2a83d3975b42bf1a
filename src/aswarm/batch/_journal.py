"""`Journal`: a file with the runs of a batch, so that a rerun after a crash continues them.

It is a SQLite file, which only one process at a time can use, on one machine. While the file is open, a write-ahead log and a
lock file are in the same folder. It is not a queue. Each item is a run in the log of the file. A rerun of the item is another
attempt of this run, which `Recorder` records and replays. The entries of an item, and when each is written:

    TurnStarted, CompletionFinished    the whole completion, with its usage     together with the next entry
    ToolCallStarted                    a function is about to run               before it runs: the run waits for the disk
    ToolCallFinished                   the outcome of the call                  at once; the run does not wait
    ToolCallWithdrawn                  the call stays open; its function has not run              at once; the run does not wait
    RunFinished                        the `Response` of the item               before it is returned: the run waits for the disk

One thread writes all entries in order, many in one transaction. So a crash can lose only the last entries. A written entry
survives a crash of the process. After a wait for the disk, all earlier entries also survive a power failure.

`recorder` documents the replay of a call. A call without an outcome is in `Response.unknown_calls`. An item with RunFinished
does not run again: the batch returns the recorded `Response`.

A rerun starts each item from its first message. The loop makes the same requests and calls, and the recorder answers them from
the entries. It compares each request with the recorded request. Some data cannot be recorded: context variables that are not
JSON, and handoffs to agents that a rerun could not find by name. Such data raises an error in the first run. If a tool
changes an object in the context variables (a client, a cart), this change is not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from os import PathLike, fspath
from typing import Any, Self, TypeAlias

from pydantic_core import to_jsonable_python

from aswarm._record.entries import Entry, entries_of, now
from aswarm._record.entry_maker import withdrawal
from aswarm._record.facts import Facts
from aswarm._record.fingerprints import item_fingerprint
from aswarm._record.outcomes import recorded_response, response_fields
from aswarm._record.recorder import Recorder
from aswarm._run.call import ToolCall
from aswarm._run.options import RunOptions
from aswarm._runtime import clocks
from aswarm._tools.directory import AgentDirectory
from aswarm._values.agent import Agent, Response, asked_for
from aswarm._values.errors import AswarmError, ConfigurationError, StoreError, named
from aswarm._values.events import (
    CallWaiting,
    CompletionFinished,
    Event,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from aswarm._values.messages import has_started_inside

from ._journal_file import JournalFile, JournalWriter, StoredItem, check_batch, entries_since

# Runs a conversation to its end, and passes its events to the recorder.
RunRecorded: TypeAlias = Callable[[RunOptions, Recorder], Awaitable[Response]]
_LOOKUPS_KEPT = 64  # limited, because a batch may create an agent for every item
_AT_ONCE = ("ToolCallFinished", "ToolCallWithdrawn")
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens", "details")
# A provider's client may put objects into a message. They are recorded in the form in which they are sent.
_encode = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode


class Journal:
    """The journal of one batch. It belongs to one event loop; `async with` opens or creates the file, and closes it.

        async with Journal("run.sqlite", {"agent": agent.name}) as journal:
            response = await journal.run("item 7", RunOptions(agent, messages), run_recorded)

    Opening raises ConfigurationError for the journal of another batch or of a newer version, for a journal that another
    process has open, and for a file of another kind. If `run` raises an exception, only this item has failed. But if `failure`
    is set, the journal can no longer be written, and the batch must stop.
    """

    def __init__(self, path: str | PathLike[str], fingerprint: Mapping[str, str], agents: Iterable[Agent] = ()) -> None:
        """`fingerprint`: identifies the batch; error messages name its keys. `agents`: see `AgentDirectory`."""
        self.path = fspath(path)
        if self.path in ("", ":memory:"):  # SQLite accepts these names, and keeps nothing on disk
            raise ConfigurationError(f"journal must be the path of a file, or None for no journal, not {self.path!r}")
        self._fingerprint = fingerprint
        self._file = JournalFile(path)
        self._writer = JournalWriter(self._file, clocks.urandom(16).hex())
        self._agents = agents
        self._lookups: dict[int, AgentDirectory] = {}

    @property
    def failure(self) -> BaseException | None:
        """The error after which the journal can no longer be written, or None."""
        return self._writer.failure

    async def recent_requests(self, seconds: float) -> list[tuple[float, int]]:
        """Return the age in seconds and the tokens of each completion that finished in the last `seconds`."""
        at = now()
        entries = await self._file.run(entries_since, at - round(seconds * 1000))
        return [
            (max(0, at - entry.at_ms) / 1000, entry.fields["usage"]["total_tokens"])
            for entry in entries
            if entry.type == "CompletionFinished"
        ]

    async def run(
        self, item_id: str, options: RunOptions, run: RunRecorded, own_context: Mapping[str, Any] | None = None
    ) -> Response:
        """Run an item, or continue it. For a finished item, return the recorded `Response`.

        `own_context`: the context variables in `options` that identify the item.

        Raises the exceptions of `run`, and RunError if the file cannot be written. Raises ConfigurationError if the item was
        recorded with other messages, another agent, another `own_context` or another `resume`. Other causes are an id that is
        not valid text or was used before in this batch, and a context variable that cannot be recorded.
        """
        stored = await self._find(item_id, options, own_context)
        agents, context = self._lookup(options.agent), options.context_variables or {}
        entries = entries_of(stored.rows)
        if stored.is_finished:
            fields = entries[-1].fields["_response"]
            # If no agent has the recorded name, `agent` is a placeholder with this name. A run of the placeholder fails.
            agent = agents.find_or_name(fields["agent"], "the journal has a response of the agent")
            recorded = recorded_response(fields, agent, context)
            return recorded if options.output is None else asked_for(recorded, options.output)
        item = _ItemLog(self._writer, item_id, entries[-1].seq + 1 if entries else 0)
        recorder = Recorder(item, item, agents, item.mismatch, facts=Facts(entries), deltas=False)
        response = await run(options, recorder)
        try:
            await item.finish(response_fields(response, context))
        except AswarmError as error:
            error.response = response
            raise
        return response

    async def _find(self, item_id: str, options: RunOptions, own_context: Mapping[str, Any] | None) -> StoredItem:
        try:
            item_id.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the journal cannot hold the id {item_id!r}: {error.reason}. Use an id that UTF-8 can encode"
            ) from error
        digest = item_fingerprint(options.agent, options.messages, own_context, options.resume)
        stored = await self._writer.find(item_id, digest)
        if stored.digest != digest:
            raise ConfigurationError(
                f"the item {item_id!r} differs from the item with this id in the journal {self.path}: in its "
                "messages, its context variables, its decisions or the name of its agent. Give the item another id, or the batch "
                "another journal"
            )
        if stored.is_repeated:
            raise ConfigurationError(
                f"two items of the batch have the id {item_id!r}; with a journal, each item needs an id of its own"
            )
        return stored

    def _lookup(self, start: Agent) -> AgentDirectory:
        directory = self._lookups.get(id(start))
        if directory is None:
            if len(self._lookups) >= _LOOKUPS_KEPT:
                self._lookups.clear()
            # The directory keeps `start` alive, so no other agent can get the same `id()`.
            directory = self._lookups[id(start)] = AgentDirectory((start, *self._agents))
        return directory

    async def aclose(self) -> None:
        await self._writer.aclose()

    async def __aenter__(self) -> Self:
        await self._file.open()
        try:
            await self._file.run(check_batch, self.path, self._fingerprint)
        except StoreError as error:
            await self.aclose()
            raise ConfigurationError(f"the journal {self.path} cannot be opened: {error.__cause__}") from error
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _ItemLog:
    """The log of one item. It has only the entries that a rerun needs. `number`: the number of the next entry."""

    def __init__(self, writer: JournalWriter, item_id: str, number: int) -> None:
        self._writer = writer
        self._id = item_id
        self._number = number

    def add(self, entry: Entry) -> None:
        # A completion is not written at once. It is written with the next entry: the start of a call or the end of the item.
        line = _encode({"seq": self._number, "at": entry.at_ms, "type": entry.type, **entry.fields})
        self._writer.put(self._id, self._number, line.encode(), now=entry.type in _AT_ONCE)
        self._number += 1

    async def commit(self) -> None:
        await self._writer.commit()

    async def finish(self, response: Mapping[str, Any]) -> None:
        """Record the end of the item, and wait until it is on disk. Only then may the response be returned."""
        self.add(_entry("RunFinished", {"_response": response}))
        await self._writer.commit(self._id)

    def mismatch(self, turn: int, parts: str) -> ConfigurationError:
        return ConfigurationError(
            f"the item {self._id!r} cannot be resumed: request {turn} differs from the recorded one in its {parts}. Resume "
            "with the agents that the item started with (put text that changes from day to day, such as the date, into the "
            "messages and not into the instructions), or run the item again under another id: its tools then run again"
        )

    def event(
        self, event: Event, _response: Callable[[], Response], private: Mapping[str, Any] | None = None
    ) -> list[Entry]:
        """Return the entry of an event, if a rerun needs it."""
        if isinstance(event, CallWaiting):  # a rerun decides again whether the call must wait
            # If a function of an inner run has started, the call counts as started: a rerun cannot know its outcome.
            return [] if has_started_inside(event.data) else [_entry("ToolCallWithdrawn", {"index": event.index})]
        if isinstance(event, ToolProgress):
            if isinstance(event.value, CallWaiting) and has_started_inside(event.value.data):
                return []
            return [_entry("ToolProgress", {**_of_code(event), **private})] if private else []
        fields = _fields(event)
        return [_entry(type(event).__name__, {**fields, **(private or {})})] if fields else []

    def withdrawn_call(self, call: ToolCall) -> Entry:
        return _entry(*withdrawal(call))


def _fields(event: Event) -> dict[str, Any]:
    match event:
        case TurnStarted():
            return {"turn": event.turn}
        case CompletionFinished():
            usage = {key: getattr(event.usage, key) for key in _USAGE}
            return {"message": event.message, "finish_reason": event.finish_reason, "usage": usage}
        case ToolCallStarted():
            return {"index": event.index}
        case ToolCallFinished():
            error = {} if event.error is None else {"error": named(event.error)}
            still_running = {"still_running": True} if event.still_running else {}
            return {"index": event.index, "content": event.content, **error, **still_running}
        case _:
            return {}


def _of_code(event: ToolProgress) -> dict[str, Any]:
    """Return the fields that record a call inside code, or the start of the code; see `Facts`."""
    value = event.value
    if isinstance(value, CallWaiting):  # a rerun decides again whether the call must wait
        value = {"type": "ToolCallWithdrawn", "index": value.index, "name": value.name}
    elif isinstance(value, ToolCallStarted | ToolCallFinished):
        value = {"type": type(value).__name__, "name": value.name, **_fields(value)}
    return {"index": event.index, "value": value}


def _entry(kind: str, fields: Mapping[str, Any]) -> Entry:
    return Entry(0, now(), kind, fields)
