"""`DurableRun`: one run of `DurableRuns`, as a program uses it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from aswarm._agent import Agent, Response
from aswarm._decisions import Answer, Approve, Decision, Deny
from aswarm._errors import ConfigurationError, RunError
from aswarm._json import shown
from aswarm.serve._entries import Entry
from aswarm.serve._requests import CallAnswer
from aswarm.serve._runs import AnswersRefused, NewRun, Run, RunRecord

from ._work import response_of

if TYPE_CHECKING:
    from ._durable_runs import DurableRuns

Answers: TypeAlias = Mapping[str, Decision]


class DurableRun:
    """A run. `record`: what was known of it when this object was made.

    Any process that shares the database can have it: `await runs.run(run_id)`.
    """

    def __init__(self, runs: DurableRuns, record: RunRecord) -> None:
        self.record = record
        self._runs = runs
        self._run = Run(runs, record)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.record.id

    @property
    def conversation(self) -> str | None:
        """The id of its conversation."""
        return self.record.conversation

    def events(self, after: int = -1) -> AsyncGenerator[Entry, None]:
        """The entries of the log with numbers above `after`: those that are there, then the live ones, until the run has ended.

        A reader in the process that executes the run gets them as they come; in another process, about 0.1 s later.
        """
        return self._run.entries(after)

    async def wait(self) -> RunRecord:
        """Wait until the run has ended; one that waits for an answer has ended. Returns what is known of it then.

        Raises RuntimeError if the `DurableRuns` are closed before.
        """
        await self._runs.wait_for(self.record)
        self.record = await self._runs.get(self.id, user=self.record.user)
        return self.record

    async def last_entry(self) -> Entry:
        """Wait for the end of the run. Returns the last entry of its log: RunFinished, RunFailed or RunStopped."""
        await self.wait()
        return await self._run.result()

    async def result(self) -> Response:
        """Wait for the end of the run. Returns what it has left; of a run that was stopped, `stop` is "cancelled".

        `stop` is "waiting" if calls wait for an answer. Raises RunError for a run that has failed, with its text, and
        with its `response` if it has left one.
        """
        last = await self.last_entry()
        response = self._response(last)
        if last.type == "RunFailed":
            error = RunError(f"{last.fields['error']['type']}: {last.fields['error']['message']}")
            error.response = response
            raise error
        return response

    def _response(self, last: Entry) -> Response:
        agents = self._runs.drivers.known
        if not last.response:
            agent = agents.get(self.record.agent or "") or self._runs.drivers.agent(None)
            return Response(agent=agent, stop="cancelled", run_id=self.id)
        name = last.response["agent"]
        if name not in agents and last.type == "RunFinished":
            raise ConfigurationError(
                f"the run has ended with the agent {name!r}, which this process does not have; add it to agents="
            )
        return response_of(last.response, agents.get(name) or Agent(name=name))

    async def cancel(self, reason: str = "cancelled") -> Response:
        """Stop the run, wherever it is, and wait until its functions have ended.

        The calls of a run that waits for an answer are closed: the model is told that they have not run.
        """
        await self._runs.cancel(self.id, user=self.record.user, reason=reason)
        return await self.result()

    async def answer(self, answers: Answers, *, key: str | None = None) -> DurableRun:
        """Decide on all calls that this run has left open. Returns the run that continues the conversation.

        `answers`: by the id of the call, as `resume=` of `AsyncSwarm.run` takes them: True, False, `Approve`, `Deny` or
        `Answer`. The same answers again give the same run. Raises AnswersRefused, also if the conversation has another run since.
        """
        if (record := await self._runs.get(self.id, user=self.record.user)).status == "stopped":
            raise AnswersRefused(
                f"the run {self.id!r} was stopped ({record.reason}), and its calls are closed. Start a run with a new message in its "
                "conversation",
                "run_stopped",
                409,
            )
        given = [replace(_call_answer(call, decision), run=self.id) for call, decision in answers.items()]
        new = NewRun(self.record.user, self.conversation, answers=given, key=key, run_id=os.urandom(16).hex())
        return DurableRun(self._runs, await self._runs.start(new))


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
