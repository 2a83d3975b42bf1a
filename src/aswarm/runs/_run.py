"""`Run`: one run of any `Runs`. It reads the log and the response of the run, cancels it, and answers its calls."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from aswarm._log.stored import RunRecord
from aswarm._record.entries import Entry
from aswarm._record.outcomes import recorded_response
from aswarm._values.agent import Agent, Response
from aswarm._values.decisions import Decisions
from aswarm._values.errors import ConfigurationError, RunError
from aswarm._values.messages import normalize
from aswarm._values.run_keywords import Messages

from . import _base  # the module, because it imports this one
from ._answers import answers_of
from ._requests import AnswersRefused, NewRun, RunActive, WhileRunning
from ._starting import ending_of


class Run:
    """One run. Any process that shares the database can get it: `await runs.get_run(run_id, user=...)`.

    The process that executes the run gets a live entry at once; other processes get it about 0.1 s later. `record`: the last
    known record of the run. After the end of the run, each method that waits for the end updates it.
    """

    def __init__(self, runs: _base.Runs, record: RunRecord) -> None:
        self._runs = runs
        self._registry = runs.registry
        self.record = record

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}: {self.record.state}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.record.id

    @property
    def conversation(self) -> str | None:
        """The id of its conversation, or None."""
        return self.record.conversation

    async def read(self, after: int = -1) -> Sequence[Entry]:
        """Wait for entries with numbers above `after`, and return one or more. After the last entry, the result is empty."""
        batch = await self._runs.read(self.id, after, user=self.record.user)
        if batch and batch[-1].is_last:
            self._note_end(batch[-1])
        return batch

    async def entries(self, after: int = -1) -> AsyncGenerator[Entry, None]:
        """Yield all entries with numbers above `after`: first the existing entries, then live entries until the run ends."""
        while batch := await self.read(after):
            for entry in batch:
                yield entry
            if batch[-1].is_last:
                return
            after = batch[-1].seq

    async def wait(self) -> RunRecord:
        """Wait for the end of the run, and return its record. It also returns if the run waits for an answer.

        Raises RuntimeError if the `Runs` object is closed before the end.
        """
        await self._registry.end_of(self.record)
        self.record = await self._runs.get(self.id, user=self.record.user)
        return self.record

    async def last_entry(self) -> Entry:
        """Wait for the end of the run. Returns the last entry of its log: RunFinished, RunFailed or RunStopped.

        Raises RunNotFound if the log was deleted.
        """
        last = await self._registry.end_of(self.record)
        if last is None:
            last = await self._registry.last_of(self.id)
        self._note_end(last)
        return last

    async def result(self) -> Response:
        """Wait for the end of the run. Returns its response.

        The `stop` of the response is "cancelled" for a stopped run, and "waiting" if calls wait for an answer. Raises RunError
        for a failed run: not the class of the original error, but its text and, if there is one, the `response` of the run.
        Raises RunNotFound if the log was deleted.
        """
        last = await self.last_entry()
        response = self._response(last)
        if last.type == "RunFailed":
            error = RunError(f"{last.fields['error']['type']}: {last.fields['error']['message']}")
            error.response = response
            raise error
        return response

    async def cancel(self, reason: str = "cancelled") -> RunRecord:
        """Stop the run, in whichever process it is, and wait until its tools have finished. Returns its record.

        The calls that the run has left open are closed, and cannot be answered. A run that waited for an answer then counts as
        stopped; any other end keeps its status and its reason.
        """
        self.record = await self._runs.cancel(self.id, user=self.record.user, reason=reason)
        return self.record

    async def answer(self, decisions: Decisions, *, key: str | None = None) -> Run:
        """Decide on all waiting calls of this run. Returns a new run of the conversation, which continues with the decisions.

        `decisions`: as for `resume=` of `AsyncSwarm.run`. A second call with the same decisions returns the same run, unless that
        run has ended before it did anything, for example because its agent was invalid: then a new run starts. With the same
        `key`, it always returns the same run.

        Raises AnswersRefused if the decisions do not fit, the calls are closed, or the conversation already has a later run. Raises
        RunActive while this run is running.
        """
        answers, policy = answers_of(decisions, self.id), self.record.on_disconnect
        new = NewRun(self.record.user, self.conversation, answers=answers, key=key, on_disconnect=policy)
        try:
            return await self._runs.start(new)
        except RunActive as active:
            if active.run_id == self.id:
                raise
            text = f"the run {self.id!r} does not wait for an answer; the later run {active.run_id!r} is active"
            raise AnswersRefused(text, code="call_not_open") from active

    async def send(
        self,
        messages: Messages,
        *,
        run_id: str | None = None,
        key: str | None = None,
        while_running: WhileRunning = "refuse",
    ) -> Run:
        """Start the next run of the conversation with new messages, and return it. Open calls are closed.

        `run_id`, `key`, `while_running`: see `NewRun`. Raises the errors of `Runs.start`; ConfigurationError if this run has no
        conversation.
        """
        if self.conversation is None:
            raise ConfigurationError(f"the run {self.id!r} has no conversation to which a message can be sent")
        new = NewRun(
            self.record.user, self.conversation, normalize(messages), run_id=run_id, key=key,
            on_disconnect=self.record.on_disconnect, while_running=while_running,
        )  # fmt: skip
        return await self._runs.start(new)

    def _note_end(self, last: Entry) -> None:
        ending = ending_of(last)
        self.record = replace(
            self.record, status=ending.shown, reason=ending.reason, ended_ms=last.at_ms, last=last.seq, is_queued=False
        )

    def _response(self, last: Entry) -> Response:
        agents, response = self._registry.setup.known, last.response
        if not response:
            agent = agents.get(self.record.agent or "") or next(iter(self._runs.agents.values()))
            return Response(agent=agent, stop="cancelled", run_id=self.id)
        name = response["agent"]
        if name not in agents and last.type == "RunFinished":
            raise ConfigurationError(
                f"the run ended with the agent {name!r}, which this process does not have; add it to agents="
            )
        fields = copy.deepcopy(response)  # several callers may wait for the run, and each may change its response
        return recorded_response(fields, agents.get(name) or Agent(name=name), fields["context_variables"])
