"""What a run needs to be executed by any process, as JSON; and the driver that executes it.

A run begins with the conversation as it was loaded when the run was started. So each attempt makes the same requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as fields_in
from typing import Any

from aswarm._agent import Agent, Response, UnknownCall
from aswarm._decisions import OpenCall
from aswarm._errors import ConfigurationError, RunRefused
from aswarm._journal.agent_lookup import AgentLookup
from aswarm._messages import Message, last_head, normalize
from aswarm._run.handlers import Middleware
from aswarm._run.options import RunOptions
from aswarm._run.streams import EventStream, deliver_live
from aswarm._swarm import prepare_recorded
from aswarm._usage import Usage
from aswarm.conversations import Change, Store, Stored
from aswarm.conversations._recorded_run import with_new
from aswarm.conversations._recorder import common_messages
from aswarm.conversations._records import checked_context
from aswarm.serve._driving import Driver, Drivers, conversation_key
from aswarm.serve._entries import as_json
from aswarm.serve._requests import CallAnswer, ClientTool
from aswarm.serve._runs import NewRun


@dataclass(frozen=True, slots=True)
class Work:
    """What a run needs. `stored`: the conversation before it. `last_run`: the run before it in the conversation."""

    new: NewRun
    stored: Stored
    last_run: str | None

    def to_json(self) -> bytes:
        """As JSON. Raises ConfigurationError if something in it is not JSON."""
        checked_context(self.new.context_variables)
        checked_context(self.new.client_context)
        return as_json({"new": asdict(self.new), "stored": asdict(self.stored), "last_run": self.last_run})

    @classmethod
    def from_json(cls, data: bytes) -> Work:
        """The work of which `data` is the JSON."""
        found = json.loads(data)
        new = found["new"]
        new["answers"] = [CallAnswer(**answer) for answer in new["answers"]]
        new["tools"] = [ClientTool(**each) for each in new["tools"]]
        if new["regenerate"]:  # the answer was taken back when the run was started
            new |= {"regenerate": False, "continues": True}
        stored = found["stored"]
        stored["unknown_calls"] = [UnknownCall(**call) for call in stored["unknown_calls"]]
        return cls(NewRun(**new), Stored(**stored), found["last_run"])


class DurableDriver(Driver):
    """Drives a run from its work. `use` comes before `drive`."""

    def __init__(self, drivers: Drivers, work: Work, run_id: str) -> None:
        new = replace(work.new, run_id=run_id)
        name = work.stored.agent or new.agent
        agent = drivers.agent(None) if name is None else drivers.known.get(name)
        if agent is None:
            raise ConfigurationError(
                f"the run is with the agent {name!r}, which this process does not have; add it to agents="
            )
        super().__init__(drivers, new, agent, None)
        self._work = work
        self._middleware: Middleware | None = None
        self.agents = AgentLookup(agent, drivers.known)

    async def _load_stored(self) -> Stored:
        return self._work.stored

    @property
    def history(self) -> list[Message]:
        """The messages that the run begins with."""
        messages = normalize(self._messages)
        return with_new(self.stored, messages) if messages else self.stored.messages

    @property
    def open_calls(self) -> int:
        """How many calls the message has whose open calls the run begins with."""
        history = self.history
        return len(history[last_head(history)].get("tool_calls") or ()) if history and self._resume is not None else 0

    def use(self, middleware: Middleware) -> None:
        """Run with this middleware."""
        self._middleware = middleware

    def _stream(self) -> AbstractAsyncContextManager[EventStream]:
        new, own = self.new, {} if self.new.conversation is None else self.stored.context_variables
        given = new.client_context if new.conversation is not None else new.context_variables
        options = RunOptions(
            self.agent,
            self.history,
            {**own, **(given or {})},
            max_turns=self._drivers.limits.max_turns,
            resume=False if self._resume is None else self._resume,
            run_id=self.run_id,
        )
        assert self._middleware is not None  # noqa: S101 - `use` comes first
        state, events = prepare_recorded(self._drivers.swarm, options, deliver_live, self._middleware, stream=True)
        return EventStream(state, events)


class StoredHistory:
    """What a run leaves in its conversation: two writes, whose revisions are made of the id of the run.

    So an attempt that repeats a write changes nothing. The engine has what happens between them.
    """

    def __init__(self, store: Store, work: Work, run_id: str, history: list[Message]) -> None:
        self._store = store
        self._stored = work.stored
        self._id = "" if work.new.conversation is None else conversation_key(work.new.user, work.new.conversation)
        self._history = history
        self._revisions = [hashlib.blake2b(f"{run_id}/{n}".encode(), digest_size=8).hexdigest() for n in (0, 1)]
        self._context = {**work.stored.context_variables, **checked_context(work.new.client_context)}

    async def begin(self, agent: Agent, *, is_repeated: bool) -> None:
        """Write the new messages. `is_repeated`: an earlier attempt may have done it. Raises Conflict."""
        if not self._id:
            return
        if is_repeated:
            found = await self._store.load(self._id)
            if found is not None and found.revision in self._revisions:
                return
        await self._write(self._stored, self._revisions[0], self._history, agent, self._context)

    async def end(self, response: Response, error: Exception | None) -> None:
        """Write what the run has left. `error`: what has ended it. Raises Conflict."""
        if self._id:
            base = replace(self._stored, revision=self._revisions[0], messages=self._history)
            messages = [*self._history, *response.messages]
            while isinstance(error, RunRefused) and messages and messages[-1]["role"] == "user":
                del messages[-1]  # a guard has refused it
            context = checked_context(response.context_variables)
            await self._write(base, self._revisions[1], messages, response.agent, context, response)

    async def _write(
        self,
        base: Stored,
        revision: str,
        messages: list[Message],
        agent: Agent,
        context: dict[str, Any],
        response: Response | None = None,
    ) -> None:
        keep = common_messages(base.messages, messages)
        stop, unknown = (None, ()) if response is None else (response.stop, response.unknown_calls)
        change = Change(base.revision, revision, keep, messages[keep:], agent.name, context, stop, unknown)
        await self._store.write(self._id, change)


def response_of(fields: Mapping[str, Any], agent: Agent) -> Response:
    """The `Response` that the last entry of a log has."""
    usage = {each.name: fields["usage"][each.name] for each in fields_in(Usage) if each.name in fields["usage"]}
    return Response(
        messages=fields["messages"],
        agent=agent,
        context_variables=fields["context_variables"],
        usage=Usage(**usage),
        stop=fields["stop"],
        run_id=fields["run_id"],
        unknown_calls=[UnknownCall(**call) for call in fields["unknown_calls"]],
        waiting=[_open_call(call) for call in fields["waiting"]],
        spent=fields.get("spent"),
    )


def _open_call(call: Mapping[str, Any]) -> OpenCall:
    return OpenCall(**{each.name: call[each.name] for each in fields_in(OpenCall) if each.name in call})
