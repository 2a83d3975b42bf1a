"""`Run`: one run of any `Runs`. It reads the log and the response of the run, cancels it, and answers its calls."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Self

from aswarm._record.entries import Entry
from aswarm._record.outcomes import recorded_response
from aswarm._values.agent import Agent, Response
from aswarm._values.decisions import Decisions
from aswarm._values.errors import ConfigurationError, RunError

from ._live import LiveRun
from ._notifier import Notifier
from ._requests import answers_of
from ._runs import NewRun, RunNotFound, RunRecord, Runs, status_of
from ._starting import ending_of


class Run:
    """One run. `record`: its last known record. After the end of the run, each method that waits for the end updates it."""

    def __init__(self, runs: Runs, record: RunRecord) -> None:
        self._runs = runs
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

    @property
    def _notifier(self) -> Notifier:
        return self._runs._notifier

    def _reading(self) -> AbstractContextManager[LiveRun | None]:
        return self._runs._reading(self.record)

    async def _next(self, after: int, seconds: float) -> Sequence[Entry] | None:
        return await self._runs._next(self.id, after, self.record.user, seconds)

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

    async def last_entry(self) -> Entry:
        """Wait for the end of the run. Returns the last entry of its log: RunFinished, RunFailed or RunStopped.

        Raises RunNotFound if the log was deleted.
        """
        expected = (await self._runs.get(self.id, user=self.record.user)).last
        while True:
            after = max(-1, expected - 1)
            while batch := await self.read(after):
                if batch[-1].is_last:
                    return batch[-1]
                after = batch[-1].seq
            # The entry `expected` may be lost: another attempt took over the run before the first attempt wrote it.
            last = (await self._runs.get(self.id, user=self.record.user)).last
            if last == expected:
                raise RunNotFound(self.id)
            expected = last

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

    async def answer(self, decisions: Decisions, *, key: str | None = None) -> Self:
        """Decide on all waiting calls of this run. Returns a new run of the conversation, which continues with the decisions.

        `decisions`: as for `resume=` of `AsyncSwarm.run`. A second call with the same decisions returns the same run. Raises
        AnswersRefused if the decisions do not fit or the calls are closed, and RunActive while another run of the conversation
        is running.
        """
        answers, policy = answers_of(decisions, self.id), self.record.on_disconnect
        new = NewRun(self.record.user, self.conversation, answers=answers, key=key, on_disconnect=policy)
        return type(self)(self._runs, await self._runs.start(new))

    def _note_end(self, last: Entry) -> None:
        ending = ending_of(last)
        self.record = replace(
            self.record, status=status_of(ending.status, ending.reason), reason=ending.reason, ended_ms=last.at_ms,
            last=last.seq, is_queued=False,
        )  # fmt: skip

    def _response(self, last: Entry) -> Response:
        agents = self._runs._known_agents
        if not last.response:
            agent = agents.get(self.record.agent or "") or next(iter(self._runs.agents.values()))
            return Response(agent=agent, stop="cancelled", run_id=self.id)
        name = last.response["agent"]
        if name not in agents and last.type == "RunFinished":
            raise ConfigurationError(
                f"the run ended with the agent {name!r}, which this process does not have; add it to agents="
            )
        fields = copy.deepcopy(last.response)  # several callers may wait for the run, and each may change its response
        return recorded_response(fields, agents.get(name) or Agent(name=name), fields["context_variables"])
