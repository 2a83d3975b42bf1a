"""Drawn runs that wait: turns of every kind of call, agents inside calls, decisions in any order, JSON, failures between."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    ConfigurationError,
    Deny,
    Hold,
    OpenCall,
    Reply,
    Response,
    Result,
    RunError,
    agent_tool,
    current_call,
    external_tool,
    open_calls,
    tool,
)
from aswarm.middleware import CompletionRequest, Handlers, Started, ToolCall, ToolOutcome
from aswarm.testing import Failure, Request, ScriptedCall, ScriptedModel, Step, call, check_history

pytestmark = pytest.mark.slow

USER = {"role": "user", "content": "Go"}
# Functions whose calls can wait; the second line waits for an approval and for an answer.
ASKING = ("approve", "plain_approve", "check", "hold", "ask", "guarded", "browser")
TWICE = ("approve_ask", "guarded_approve")
SUBS = ("sub", "approved_sub")  # an agent as a tool
APPROVALS = ("needs approval", "It is odd.")
OTHERS = ("look", "note", "write", "missing", "transfer_to_a", "transfer_to_b")
REFUSALS: tuple[Any, ...] = (False, Deny("no"), "told instead", {"deny": ""})
LEAVING = "leave"  # a function that hands off: its effect cannot be taken back
Json = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """One call of the model. `key` is unique in all turns. `inside`: the turns of an agent tool. `decision`: if it is open."""

    key: int
    name: str
    call_id: str
    is_bad: bool
    decision: Any
    inside: tuple[tuple[Asked, ...], ...] = ()

    @property
    def scripted(self) -> ScriptedCall:
        if self.name in SUBS:
            return call(self.name, call_id=self.call_id, request=str(self.key))
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
        a, b, lowest, inner = (Agent(name=name) for name in ("A", "B", "Lowest", "Inner"))
        lowest.functions = self.functions(lowest)
        inner.functions = [*self.functions(inner), *subs_of(lowest)]
        a.functions = [*self.functions(b), *subs_of(inner), b]
        b.functions = [*self.functions(a), *subs_of(inner), a]
        return {"A": a, "B": b}

    def functions(self, other: Agent) -> list[Any]:
        """Return functions that record their call first, and then await."""

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

        @tool(may_wait=True)
        async def hold(n: int, extra: str = "") -> str:
            if not current_call().is_approved:
                raise Hold("Really?")
            return await look(n, extra)

        @tool(may_wait=True)
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
            tool(ask, name="approve_ask", approve=True),
            tool(look, name="guarded_approve", approve=True),
            external_tool(name="browser", description="Opens a page.", parameters={"type": "object", "properties": {"n": {"type": "integer"}}}),
        ]  # fmt: skip


def subs_of(agent: Agent) -> list[Any]:
    return [agent_tool(agent, name="sub"), tool(approve=True)(agent_tool(agent, name="approved_sub"))]


def guard(handlers: Handlers) -> Handlers:
    """A middleware that asks a user before `guarded` and `guarded_approve`."""

    def call_tool(made: ToolCall, context: Json, started: Started) -> Awaitable[ToolOutcome]:
        if made.name.startswith("guarded") and not current_call().is_approved:
            raise Hold("The guard asks.")
        return handlers.call_tool(made, context, started)

    return Handlers(handlers.complete, call_tool, handlers.run, may_hold=True)


# --- what is drawn ----------------------------------------------------------------------------------------------------


@st.composite
def turns(draw: st.DrawFn, *, leaves: bool) -> list[list[Asked]]:
    names = [*ASKING, *ASKING, *TWICE, *SUBS, *OTHERS, *([LEAVING] if leaves else [])]
    return drawn_turns(draw, names, iter(range(1000)), levels=2, most=(3, 5))


def drawn_turns(
    draw: st.DrawFn, names: list[str], keys: Iterator[int], *, levels: int, most: tuple[int, int]
) -> list[list[Asked]]:
    """`most`: turns, and calls of a turn. `levels`: how many agents may stand below in calls."""
    return [
        [asked(draw, keys, draw(st.sampled_from(names)), levels) for _ in range(draw(st.integers(1, most[1])))]
        for _ in range(draw(st.integers(1, most[0])))
    ]


def drawn_inside(draw: st.DrawFn, keys: Iterator[int], levels: int) -> tuple[tuple[Asked, ...], ...]:
    names = [*ASKING, *TWICE, "look", "note", "missing", *(SUBS if levels else ())]
    return tuple(map(tuple, drawn_turns(draw, names, keys, levels=levels, most=(2, 2))))


def asked(draw: st.DrawFn, keys: Iterator[int], name: str, levels: int) -> Asked:
    """Return one call. Some ids are equal."""
    key = next(keys)
    if name in SUBS:
        inside = drawn_inside(draw, keys, levels - 1)
        changed = Approve({"request": str(key)})  # a change for the model, with the same request for the agent
        chosen = draw(st.sampled_from([*REFUSALS, *([True, changed] * 4)]))
        return Asked(key, name, draw(st.sampled_from([f"c{key}"] * 4 + ["x"])), False, chosen, inside)
    is_bad = draw(st.integers(0, 9)) == 0
    call_id = draw(st.sampled_from([f"c{key}"] * 4 + ["x"]))
    if name == "browser":
        decisions = [False, "opened", Reply({"title": "Ø"}), {"answer": 3}]
    elif name == "ask":
        decisions = [*REFUSALS, Reply("this"), {"answer": "this"}]
    elif name in TWICE:
        decisions = [*REFUSALS, *([True, Approve({"n": key})] * (2 - is_bad))]
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
        self.failures = set(failures)
        self.subs: dict[str, Asked] = {}
        self._find_subs(asked_turns)
        self.model = ScriptedModel(self.answer)
        self.swarm = AsyncSwarm(self.model.client(), middleware=[guard])
        self.history: list[Json] = [USER]
        self.context: Json = {}
        self.agent = "A"
        self.stop = ""
        self.refused: set[int] = set()
        self.rounds = 0
        self.settled: tuple[Any, ...] = ()

    def _find_subs(self, asked_turns: Iterable[Iterable[Asked]]) -> None:
        for turn in asked_turns:
            for made in turn:
                self.subs[str(made.key)] = made
                self._find_subs(made.inside)

    def answer(self, request: Request) -> Step:
        """Return the next turn of the agent whose first message this is."""
        first = next(each["content"] for each in request.messages if each["role"] == "user")
        number = sum(each["role"] == "assistant" for each in request.messages)
        asked_turns = self.turns if first == "Go" else self.subs[first].inside
        if first == "Go" and number in self.failures:
            self.failures.remove(number)
            return Failure(400)
        return [each.scripted for each in asked_turns[number]] if number < len(asked_turns) else f"Done: {first}."

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
        check_wire(await sent(self.history))
        assert json.loads(before) == self.history[: len(json.loads(before))]

    def take(self, response: Response) -> None:
        """Keep the messages of the run, and check that they are valid."""
        self.history = json.loads(json.dumps([*self.history, *response.messages]))
        self.context, self.agent, self.stop = response.context_variables, response.agent.name, response.stop
        check_history(self.history, allow_open=True, ordered=False)
        assert response.open_calls == self.open
        if response.stop == "waiting":
            assert any(each.reason is not None for each in response.open_calls)
        assert self.world.had_own_data
        assert len(set(self.world.ran)) == len(self.world.ran)
        assert not self.refused & set(self.world.ran)
        for each in self.open:  # a refusal is an answer
            assert self.turn[each.index].key not in self.refused

    @property
    def open(self) -> list[OpenCall]:
        return open_calls(self.history)

    @property
    def turn(self) -> list[Asked]:
        """The calls of the last assistant message."""
        made = [each for each in self.history if each["role"] == "assistant" and each["tool_calls"]]
        return self.turns[len(made) - 1]

    async def run(self, data: st.DataObject | None) -> None:
        """Decide, in any order if there are data to draw from, until the model has answered."""
        decisions: Any = False
        before = set[int]()
        for _ in range(200):
            ran = list(self.world.ran)
            try:
                await self.step(decisions)
            except ConfigurationError as error:
                if "but not on the earlier call" not in str(error) or self.world.ran != ran:
                    raise
                # A decision would be lost, and nothing has happened. So decide on all calls.
                self.refused = before
                decisions = self.decide(None)
                continue
            if self.stop == "answer":
                senders = [each.get("sender") for each in self.history if each["role"] == "assistant"]
                self.settled = (await sent(self.history), senders, self.agent, self.context, sorted(self.world.ran))
                return
            before = set(self.refused)
            decisions = self.decide(data) if self.open else True
        raise AssertionError("the conversation does not end")

    def decide(self, data: st.DataObject | None) -> Json:
        """Return decisions about some of the calls that ask, and about all other open calls."""
        self.rounds += 1
        return self.decide_on(self.history, self.turn, data)

    def decide_on(self, history: list[Any], turn: Sequence[Asked], data: st.DataObject | None) -> Json:
        """Return decisions on the open calls of one turn, at any level."""
        known, stored = open_calls(history), entries_of(history)
        asking = [each.index for each in known if each.reason is not None]
        # At first perhaps none of them: nothing changes then. In the end all: decisions may come too early for their calls.
        some = st.lists(st.sampled_from(asking), unique=True, min_size=int(self.rounds > 2)) if asking else st.just([])
        chosen = set(data.draw(some) if data and self.rounds < 20 else asking)
        decisions: Json = {}
        undecided: set[tuple[str, str]] = set()
        for each in known:
            made = turn[each.index]
            decision = None
            # Of calls with one id and name, the first one is decided first.
            if (each.index in chosen or each.reason is None) and (each.id, each.name) not in undecided:
                decision = self.decision_on(each, made, stored.get(each.index, {}).get("data"), data)
            if decision is None:
                undecided.add((each.id, each.name))
            else:
                decisions[each.index] = decision
                if made.decision in REFUSALS:
                    self.refused.add(made.key)
        return decisions

    def decision_on(self, asks: OpenCall, made: Asked, stored: Any, data: st.DataObject | None) -> Any:
        """Return the decision of the user on the present question of a call."""
        if made.decision in REFUSALS or made.name not in (*SUBS, *TWICE):
            is_left_open = made.decision is None and asks.reason is not None  # only the run's end has left it open
            return True if is_left_open else made.decision
        if asks.reason is None:
            return None if made.name == "sub" else True
        if asks.reason in APPROVALS:  # the first one may change the arguments
            return made.decision if asks.data is None and asks.answer is None else True
        if made.name in TWICE:
            return Reply("this")
        if asks.data is None:  # the question comes before the start of the call
            return True
        assert open_calls(stored["messages"]) == [OpenCall(**each) for each in asks.data["waiting"]]
        number = sum(each["role"] == "assistant" for each in stored["messages"])
        return {"answer": self.decide_on(stored["messages"], made.inside[number - 1], data)}


class Recording:
    """A source that records the messages of a request and answers."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.sent: list[Json] = request.body["messages"]
        yield {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}


async def sent(history: list[Json]) -> list[Json]:
    """Return the messages in the request for this history and a new message."""
    source = Recording()
    await AsyncSwarm(source).run(Agent(), [*history, USER])
    return source.sent


def entries_of(history: list[Json]) -> dict[int, Json]:
    """Return the stored entries of the calls that wait, by their positions."""
    head = max(place for place, each in enumerate(history) if each["role"] == "assistant")
    return {entry["index"]: entry for each in history[head:] for entry in each.get("waiting", [])}


def check_wire(sent: list[Json]) -> None:
    """A strict server takes these messages."""
    check_history(sent)
    for message in sent:
        assert not {"sender", "tool_name", "waiting"} & message.keys()


def run(work: Any, backend: str) -> None:
    anyio.run(work, backend=backend)


# --- the properties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(turns(leaves=False), st.sets(st.integers(0, 3), max_size=2), st.data())
def test_the_end_is_the_same_as_of_all_decisions_at_once(
    backend: str, drawn: list[list[Asked]], failures: set[int], data: st.DataObject
) -> None:
    """Decisions in any order, with failures between and through JSON, have the same end as all decisions at once."""
    in_order, at_once = Conversation(drawn, failures), Conversation(drawn)
    run(partial(in_order.run, data), backend)
    run(partial(at_once.run, None), backend)
    assert in_order.settled == at_once.settled
    for request in [*in_order.model.requests, *at_once.model.requests]:
        check_wire(request.messages)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(turns(leaves=True), st.sets(st.integers(0, 3), max_size=1), st.integers(0, 8), st.data())
def test_a_run_that_is_cancelled_runs_no_call_twice(
    backend: str, drawn: list[list[Asked]], failures: set[int], cancel_at: int, data: st.DataObject
) -> None:
    """After a cancellation in a call, and with functions that hand off, the history is valid and can be resumed."""
    conversation = Conversation(drawn, failures, cancel_at)
    run(partial(conversation.run, data), backend)
    for request in conversation.model.requests:
        check_wire(request.messages)
