"""`DurableRun`: one run of `DurableRuns`."""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from aswarm._record.entries import Entry
from aswarm._record.fold import whole_end
from aswarm._values.agent import Agent, Response, UnknownCall
from aswarm._values.decisions import Answer, Approve, Decision, Deny, OpenCall
from aswarm._values.errors import ConfigurationError, RunError
from aswarm._values.json import from_fields, shown
from aswarm._values.usage import Usage
from aswarm.runs._requests import CallAnswer
from aswarm.runs._runs import AnswersRefused, NewRun, Run, RunActive, RunNotFound, RunRecord

if TYPE_CHECKING:
    from ._durable_runs import DurableRuns

Answers: TypeAlias = Mapping[str, Decision]


class DurableRun:
    """One run. Any process that shares the database can get it: `await runs.run(run_id)`. `record`: its last known record."""

    def __init__(self, runs: DurableRuns, record: RunRecord) -> None:
        self.record = record
        self._runs = runs

    def __repr__(self) -> str:
        return f"<DurableRun {self.id!r}: {self.record.state}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.record.id

    @property
    def conversation(self) -> str | None:
        """The id of its conversation."""
        return self.record.conversation

    def entries(self, after: int = -1) -> AsyncGenerator[Entry, None]:
        """Yield the entries with numbers above `after`: first the existing entries, then live entries until the run ends.

        The process that executes the run gets a live entry at once. Other processes get it about 0.1 s later.
        """
        return Run(self._runs, self.record).entries(after)

    async def wait(self) -> RunRecord:
        """Wait for the end of the run, and return its record. A run that waits for an answer has ended too.

        Raises RuntimeError if the `DurableRuns` object is closed before the end.
        """
        await self._runs.wait_for(self.record)
        self.record = await self._runs.get(self.id, user=self.record.user)
        return self.record

    async def last_entry(self) -> Entry:
        """Wait for the end of the run. Returns the last entry of its log: RunFinished, RunFailed or RunStopped.

        Raises RunNotFound if the log was deleted.
        """
        if (last := await self._runs.wait_for(self.record)) is not None:
            return last
        entries = await self._runs.recorded(self.id)
        if not entries:
            raise RunNotFound(self.id)
        return whole_end(entries)

    async def result(self) -> Response:
        """Wait for the end of the run. Returns its response.

        The `stop` of the response is "cancelled" for a stopped run, and "waiting" if calls wait for an answer. Raises RunError
        for a failed run. The error has the text of the original error and, if there is one, the `response` of the run.
        """
        last = await self.last_entry()
        response = self._response(last)
        if last.type == "RunFailed":
            error = RunError(f"{last.fields['error']['type']}: {last.fields['error']['message']}")
            error.response = response
            raise error
        return response

    def _response(self, last: Entry) -> Response:
        agents = self._runs.factory.known
        if not last.response:
            agent = agents.get(self.record.agent or "") or self._runs.factory.agent(None)
            return Response(agent=agent, stop="cancelled", run_id=self.id)
        name = last.response["agent"]
        if name not in agents and last.type == "RunFinished":
            raise ConfigurationError(
                f"the run ended with the agent {name!r}, which this process does not have; add it to agents="
            )
        fields = copy.deepcopy(last.response)  # several callers may wait for the run, and each may change its response
        return response_of(fields, agents.get(name) or Agent(name=name))

    async def cancel(self, reason: str = "cancelled") -> Response:
        """Stop the run, in whichever process it is, and wait until its functions have finished.

        If the run waits for an answer, its open calls are closed as "not run".
        """
        await self._runs.cancel(self.id, user=self.record.user, reason=reason)
        return await self.result()

    async def answer(self, answers: Answers, *, key: str | None = None) -> DurableRun:
        """Answer all waiting calls of this run. Returns a new run, which continues the conversation.

        `answers`: True, False, `Approve`, `Deny` or `Answer` for each call id, as for `resume=` of `AsyncSwarm.run`. A second
        call with the same answers returns the same run. Raises RunActive while this run is running. Raises AnswersRefused if
        the answers do not fit, or if the conversation already has a later run.
        """
        if (record := await self._runs.get(self.id, user=self.record.user)).status == "stopped":
            raise AnswersRefused(
                f"the run {self.id!r} was stopped ({record.reason}), and its calls are closed. Start a run with a new message in its "
                "conversation",
                "run_stopped",
                409,
            )
        named = [replace(_call_answer(call, decision), run=self.id) for call, decision in answers.items()]
        new = NewRun(self.record.user, self.conversation, answers=named, key=key, run_id=os.urandom(16).hex())
        try:
            return DurableRun(self._runs, await self._runs.start(new))
        except RunActive as active:
            if active.run_id == self.id:
                raise
            text = f"the run {self.id!r} does not wait for an answer; the later run {active.run_id!r} is active"
            raise AnswersRefused(text, "call_not_open", 409) from active


def _call_answer(call: str, decision: Decision) -> CallAnswer:
    match decision:
        case bool():
            return CallAnswer(call, approve=decision)
        case Approve():
            return CallAnswer(call, approve=True, arguments=decision.arguments)
        case Deny():
            return CallAnswer(call, approve=False, reason=decision.reason or "")
        case Answer():
            return CallAnswer(call, content=decision.data)
        case _:
            raise ConfigurationError(
                f"the answer to {call!r} must be True, False, Approve, Deny or Answer, not {shown(decision, 80)}"
            )


def response_of(fields: Mapping[str, Any], agent: Agent) -> Response:
    """Return the `Response` from the fields of the last entry of a log."""
    return Response(
        messages=fields["messages"],
        agent=agent,
        context_variables=fields["context_variables"],
        usage=from_fields(Usage, fields["usage"]),
        stop=fields["stop"],
        run_id=fields["run_id"],
        unknown_calls=[from_fields(UnknownCall, call) for call in fields["unknown_calls"]],
        waiting=[from_fields(OpenCall, call) for call in fields["waiting"]],
        spent=fields.get("spent"),
    )
