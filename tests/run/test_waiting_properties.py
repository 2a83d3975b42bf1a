"""Drawn runs that wait: turns of every kind of call, decisions in any order, histories through JSON, failures between."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aswarm import (
    Agent,
    Answer,
    Approve,
    AsyncSwarm,
    Deny,
    Hold,
    OpenCall,
    Response,
    Result,
    RunError,
    current_call,
    external_tool,
    tool,
    waiting,
)
from aswarm._messages import WAITING, match_answers, message_blocks, normalize, to_wire
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome
from aswarm.testing import Failure, ScriptedCall, ScriptedModel, call, check_history

pytestmark = pytest.mark.slow

USER = {"role": "user", "content": "Go"}
ASKING = ("approve", "plain_approve", "check", "hold", "ask", "guarded", "browser")  # calls of these can wait
OTHERS = ("look", "note", "write", "missing", "transfer_to_a", "transfer_to_b")
REFUSALS: tuple[Any, ...] = (False, Deny("no"), "told instead", {"deny": ""})
LEAVING = "leave"  # a function that hands off: its effect cannot be taken back
Json = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """One call of the model. `key` is its own, in all turns. `decision`: what the user says where the call is open."""

    key: int
    name: str
    call_id: str
    is_bad: bool
    decision: Any

    @property
    def scripted(self) -> ScriptedCall:
        return call(self.name, call_id=self.call_id, n="x" if self.is_bad else self.key)


@dataclass
class World:
    """Agents with functions of every kind. `ran`: the calls that ran. `cancel_at`: the number of the call that cancels its run."""

    ran: list[int] = field(default_factory=list)
    cancel_at: int | None = None
    scope: Any = None
    had_own_data: bool = True

    def run(self, key: int) -> None:
        self.ran.append(key)
        if len(self.ran) - 1 == self.cancel_at:
            self.scope.cancel()

    def agents(self) -> dict[str, Agent]:
        a, b = Agent(name="A"), Agent(name="B")
        a.functions = [*self.functions(b), b]
        b.functions = [*self.functions(a), a]
        return {"A": a, "B": b}

    def functions(self, other: Agent) -> list[Any]:
        """Each function has run once it says so here, and awaits after that."""

        async def look(n: int, extra: str = "") -> str:
            self.run(n)
            await anyio.lowlevel.checkpoint()
            return f"{n}{extra}"

        def note(n: int) -> str:
            self.ran.append(n)  # a thread cannot cancel the scope
            return f"{n}"

        async def write(n: int) -> Result:
            self.run(n)
            return Result(value=f"{n}", context_variables={f"k{n}": n})

        def leave(n: int) -> Result:
            self.ran.append(n)
            return Result(value=f"{n}", agent=other)

        async def hold(n: int, extra: str = "") -> str:
            if not current_call().is_approved:
                raise Hold("Really?")
            return await look(n, extra)

        async def ask(n: int) -> str:
            if current_call().answer is None:
                raise Hold("Which?", data={"n": [n]})
            self.had_own_data &= current_call().data in ({"n": [n]}, None)  # None: answered before it had asked
            return await look(n, str(current_call().answer))

        async def guarded(n: int, extra: str = "") -> str:
            return await look(n, extra)

        async def is_odd(arguments: Mapping[str, Any], _context: Mapping[str, Any]) -> str | bool:
            return "It is odd." if arguments["n"] % 2 else False

        return [
            look, note, write, leave, hold, ask, guarded,
            tool(look, name="approve", approve=True),
            tool(note, name="plain_approve", approve=True),
            tool(look, name="check", approve=is_odd),
            external_tool("browser", "Opens a page.", {"type": "object", "properties": {"n": {"type": "integer"}}}),
        ]  # fmt: skip


def guard(handlers: Handlers) -> Handlers:
    """A middleware that asks a user before `guarded`."""

    def call_tool(made: ToolCall, context: Json, started: Started) -> Awaitable[ToolOutcome]:
        if made.name == "guarded" and not current_call().is_approved:
            raise Hold("The guard asks.")
        return handlers.call_tool(made, context, started)

    return Handlers(handlers.complete, call_tool, handlers.run)


# --- what is drawn ----------------------------------------------------------------------------------------------------


@st.composite
def turns(draw: st.DrawFn, *, leaves: bool) -> list[list[Asked]]:
    """The calls of one to three turns."""
    names = st.sampled_from([*ASKING, *ASKING, *OTHERS, *([LEAVING] if leaves else [])])
    keys = iter(range(100))
    return [
        [asked(draw, next(keys), draw(names)) for _ in range(draw(st.integers(1, 5)))]
        for _ in range(draw(st.integers(1, 3)))
    ]


def asked(draw: st.DrawFn, key: int, name: str) -> Asked:
    """One call. The ids of some are equal."""
    is_bad = draw(st.integers(0, 9)) == 0
    call_id = draw(st.sampled_from([f"c{key}"] * 4 + ["x"]))
    if name == "browser":
        decisions = [False, "opened", Answer({"title": "Ø"}), {"answer": 3}]
    elif name == "ask":
        decisions = [*REFUSALS, Answer("this"), {"answer": "this"}]
    elif name in ASKING:
        changed = [] if is_bad or name == "plain_approve" else [Approve({"n": key, "extra": "!"})]
        decisions = [*REFUSALS, True, True, {"approve": True}, *changed]
    else:
        decisions = [None, None, None, False, True]
    return Asked(key, name, call_id, is_bad, draw(st.sampled_from(decisions)))


# --- a conversation with a user who decides ---------------------------------------------------------------------------


class Conversation:
    """Runs until the model has answered. Every history passes through JSON."""

    def __init__(
        self, asked_turns: list[list[Asked]], failures: Collection[int] = (), cancel_at: int | None = None
    ) -> None:
        self.turns = asked_turns
        self.world = World(cancel_at=cancel_at)
        self.agents = self.world.agents()
        steps: list[Any] = []
        for number, turn in enumerate([*([each.scripted for each in turn] for turn in asked_turns), "Done."]):
            steps += [Failure(400)] * (number in failures) + [turn]
        self.model = ScriptedModel(steps)
        self.swarm = AsyncSwarm(self.model.client(), middleware=[guard])
        self.history: list[Json] = [USER]
        self.context: Json = {}
        self.agent = "A"
        self.stop = ""
        self.refused: set[int] = set()
        self.rounds = 0

    async def step(self, decisions: Any) -> None:
        """One run, however it ends."""
        before = json.dumps(self.history)
        self.world.scope = anyio.CancelScope()
        stream = self.swarm.stream(self.agents[self.agent], self.history, self.context, resume=decisions)
        with self.world.scope, suppress(RunError):
            async with stream as run:
                async for _ in run:
                    pass
        self.take(stream.response)
        assert json.loads(before) == self.history[: len(json.loads(before))]

    def take(self, response: Response) -> None:
        """Keep what the run has left, and check that it is valid."""
        self.history = json.loads(json.dumps([*self.history, *response.messages]))
        self.context, self.agent, self.stop = response.context_variables, response.agent.name, response.stop
        check_history(self.history, allow_open=True, ordered=False)
        check_wire(to_wire(normalize(self.history)))
        assert response.waiting == self.open
        if response.stop == "waiting":
            assert any(each.reason is not None for each in response.waiting)
        assert self.world.had_own_data
        assert len(set(self.world.ran)) == len(self.world.ran)
        assert not self.refused & set(self.world.ran)
        ids = [made.call_id for made in self.turn] if self.open else []
        for each in self.open:  # a refusal is an answer; only among equal ids it has to wait for an earlier call
            assert self.turn[each.index].key not in self.refused or ids.count(each.id) > 1

    @property
    def open(self) -> list[OpenCall]:
        return waiting(self.history)

    @property
    def turn(self) -> list[Asked]:
        """The calls of the last assistant message."""
        made = [each for each in self.history if each["role"] == "assistant" and each["tool_calls"]]
        return self.turns[len(made) - 1]

    async def run(self, data: st.DataObject | None) -> None:
        """Decide, in any order if there are data to draw from, until the model has answered."""
        decisions: Any = False
        for _ in range(100):
            await self.step(decisions)
            if self.stop == "answer":
                return
            decisions = self.decide(data) if self.open else True
        raise AssertionError("the conversation does not end")

    def decide(self, data: st.DataObject | None) -> Json:
        """Decisions about some of the calls that ask, and about all others for which there is one."""
        known = [(each.index, each.reason, self.turn[each.index]) for each in self.open]
        asking = [index for index, reason, _ in known if reason is not None]
        self.rounds += 1
        # At first perhaps none of them: nothing changes then.
        some = st.lists(st.sampled_from(asking), unique=True, min_size=int(self.rounds > 2)) if asking else st.just([])
        chosen = set(data.draw(some) if data else asking)
        decisions: Json = {}
        for index, reason, made in known:
            if index in chosen or reason is None:
                decision = made.decision
                if decision is None and reason is not None:
                    decision = True  # the user is asked about a call that only the run's end has left open
                if decision is not None:
                    decisions[index] = decision
                    if made.decision in REFUSALS:
                        self.refused.add(made.key)
        return decisions

    @property
    def settled(self) -> tuple[Any, ...]:
        """What is left, with the answers of each message in call order, and without what calls wait for."""
        found: list[Any] = []
        for head, answers in message_blocks(self.history):
            found.append({key: value for key, value in head.items() if key != WAITING})
            found += match_answers(head.get("tool_calls") or [], answers)
        return found, self.agent, self.context, sorted(self.world.ran)


def check_wire(sent: list[Json]) -> None:
    """What goes on the wire is what a strict server takes."""
    check_history(sent)
    for message in sent:
        assert not {"sender", "tool_name", WAITING} & message.keys()


def run(work: Any, backend: str) -> None:
    anyio.run(work, backend=backend)


# --- the properties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(turns(leaves=False), st.sets(st.integers(0, 3), max_size=2), st.data())
@settings(max_examples=40, deadline=None)
def test_the_end_is_that_of_all_decisions_at_once(
    backend: str, drawn: list[list[Asked]], failures: set[int], data: st.DataObject
) -> None:
    """In any order, with a provider that fails between, and through JSON: each call runs at most once, and the end is equal."""
    in_order, at_once = Conversation(drawn, failures), Conversation(drawn)
    run(partial(in_order.run, data), backend)
    run(partial(at_once.run, None), backend)
    assert in_order.settled == at_once.settled
    for request in [*in_order.model.requests, *at_once.model.requests]:
        check_wire(request.messages)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(turns(leaves=True), st.sets(st.integers(0, 3), max_size=1), st.integers(0, 8), st.data())
@settings(max_examples=40, deadline=None)
def test_a_run_that_is_cancelled_runs_no_call_twice(
    backend: str, drawn: list[list[Asked]], failures: set[int], cancel_at: int, data: st.DataObject
) -> None:
    """Cancelled in the middle of a call, and with functions that hand off: the history is valid, and can be resumed."""
    conversation = Conversation(drawn, failures, cancel_at)
    run(partial(conversation.run, data), backend)
    for request in conversation.model.requests:
        check_wire(request.messages)
