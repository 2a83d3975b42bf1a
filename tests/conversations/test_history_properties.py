"""Drawn conversations with every history function: valid requests that start alike, and records that stay whole."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, CompletionError, Response
from aswarm.conversations import HistoryFunction, MessageBlock, last, own_turns, since_handoff, without_tool_results
from aswarm.sources import CompletionRequest
from aswarm.testing import ScriptedModel, check_history
from tests.support.values.histories import answer, asking, made_call
from tests.support.wire.response_bodies import check_body

pytestmark = pytest.mark.slow

Json = dict[str, Any]
INSTRUCTIONS = ("system", "developer")
LONG = "a long result " * 5


@dataclass(frozen=True)
class Turn:
    """One completion: how many calls, whether their results are long, and the agent that takes over, if any."""

    calls: int
    is_long: bool
    target: int | None


TURNS = st.builds(Turn, st.integers(1, 3), st.booleans(), st.none() | st.integers(0, 2))
# Each run: the first agent, its turns with calls, whether it ends with an answer or is left before, and the roles
# of its first messages.
ASKED = st.sampled_from([["user"], ["user"], ["user", "system"], ["user", "user"], ["system"], []])
RUNS = st.lists(st.tuples(st.integers(0, 2), st.lists(TURNS, max_size=6), st.booleans(), ASKED), min_size=1, max_size=6)
BEGINNINGS: list[list[Json]] = [
    [],
    [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}],
    [{"role": "assistant", "content": "Hello!"}],
    [
        answer("lost"),
        asking(made_call("open"), made_call("told")),
        answer("told"),
        {"role": "user", "content": "Well?"},
    ],
    [{"role": "assistant", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "Before"}]}],
]


@dataclass
class Talk:
    """A conversation of three agents with this function. `seen`: for each request, its agent, run, messages and blocks."""

    function: HistoryFunction | None
    history: list[Json]
    agents: dict[str, Agent] = field(init=False)
    seen: list[tuple[str, int, list[Json], list[MessageBlock]]] = field(default_factory=list)
    blocks: list[MessageBlock] = field(default_factory=list)
    steps: list[list[Json] | None] = field(default_factory=list)
    run: int = 0

    def __post_init__(self) -> None:
        async def work(is_long: bool) -> str:
            return LONG if is_long else "ok"

        async def hand_over(name: str) -> Agent:
            return self.agents[name]

        self.agents = {
            name: Agent(name=name, instructions="Instructions.", history=self._spied, functions=[work, hand_over])
            for name in "ABC"
        }

    def _spied(self, blocks: list[MessageBlock], agent: Agent) -> Sequence[MessageBlock]:
        self.blocks = blocks.copy()
        return blocks if self.function is None else self.function(blocks, agent)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Json, None]:
        """Check a request, which must be valid for both APIs, and answer it; a step of None is a failure."""
        messages = request.body["messages"]
        check_history(messages)
        assert messages[0] == {"role": "system", "content": "Instructions."}
        users = [message["content"] for message in messages if message["role"] == "user"]
        assert users[-1:] == [block.message["content"] for block in self.blocks if block.role == "user"][-1:]
        assert request.chat_body() == request.copy().chat_body()
        made = request.responses_body()
        if len(self.steps) == 1:
            assert made == request.copy().responses_body()  # with what is known, and without it
            check_body(made)
        self.seen.append((request.agent.name, self.run, copy.deepcopy(messages), self.blocks))
        if (calls := self.steps.pop(0)) is None:
            raise CompletionError("left")
        message = {"content": None, "tool_calls": calls} if calls else {"content": "An answer."}
        yield {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}

    async def say(self, first: int, turns: list[Turn], is_answered: bool, asked: list[str]) -> None:
        """One run, from messages of these roles."""
        self.run += 1
        before = [*self.history, *({"role": role, "content": f"{role} {self.run}"} for role in asked)]
        given_messages = copy.deepcopy(before)
        self.steps = [*(self._calls(number, turn) for number, turn in enumerate(turns)), [] if is_answered else None]
        response = await self._response("ABC"[first], before, is_answered=is_answered)
        assert before == given_messages  # the caller's messages stay as they were
        self.history = before + response.messages
        check_history([message for message in response.messages if message["role"] != "user"])
        self.steps, last = [None], self.seen[-1]  # a run that starts at the last request is sent the same
        await self._response(last[0], before + response.messages[: -1 if is_answered else None])
        assert self.seen.pop()[2] == last[2]

    async def _response(self, name: str, messages: list[Json], *, is_answered: bool = False) -> Response:
        with nullcontext() if is_answered else pytest.raises(CompletionError) as caught:
            return await AsyncSwarm(self).run(self.agents[name], messages)
        return caught.value.response

    def _calls(self, number: int, turn: Turn) -> list[Json]:
        calls = [("work", {"is_long": turn.is_long}) for _ in range(turn.calls)]
        if turn.target is not None:
            calls[-1] = ("hand_over", {"name": "ABC"[turn.target]})
        return [
            {
                "id": f"c{self.run}.{number}.{at}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(made)},
            }
            for at, (name, made) in enumerate(calls)
        ]

    def cuts(self, name: str) -> list[tuple[int, int, list[MessageBlock]]]:
        """The requests of this agent that do not start with the messages of the one before: both runs, and the blocks."""
        own = [entry for entry in self.seen if entry[0] == name]
        return [
            (before[1], after[1], after[3])
            for before, after in itertools.pairwise(own)
            if after[2][: len(before[2])] != before[2]
        ]


def talk(function: HistoryFunction | None, runs: Any, beginning: list[Json]) -> Talk:
    """The conversation with this function, which has the same record as without a function."""
    made, plain = Talk(function, beginning), Talk(None, beginning)

    async def speak() -> None:
        for each in runs:
            await made.say(*each)
            await plain.say(*each)

    asyncio.run(speak())
    assert made.history == plain.history
    return made


def _calls(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    return [call["id"] for message in messages for call in message.get("tool_calls") or ()]


@given(RUNS, st.sampled_from(BEGINNINGS))
def test_a_function_that_returns_all_blocks_changes_nothing(runs: Any, beginning: list[Json]) -> None:
    """An agent without a function is sent the same messages."""
    for _, _, messages, blocks in talk(None, runs, beginning).seen:
        recorded = [dict(each) for block in blocks for each in (block.message, *block.answers)]
        plain = ScriptedModel(["Done."])
        asyncio.run(AsyncSwarm(plain.client()).run(Agent(instructions="Instructions."), recorded))
        assert plain.requests[0].messages == messages


@given(RUNS, st.sampled_from(BEGINNINGS), st.integers(1, 12), st.data())
def test_last_cuts_once_in_a_step(runs: Any, beginning: list[Json], n: int, data: st.DataObject) -> None:
    """A request has n blocks, the message of the user and the instructions, and each step has one cut at most."""
    step = data.draw(st.integers(1, n))
    made = talk(last(n, step=step), runs, beginning)
    for name in "ABC":
        cuts = made.cuts(name)
        if cuts:
            assert len(cuts) <= -(-(len(cuts[-1][2]) - n) // step)
    for _, _, messages, blocks in made.seen:
        leading = sum(block.role in INSTRUCTIONS for block in blocks)
        heads = [message for message in messages[1:] if message["role"] != "tool"]
        assert len(heads) <= n + 1 + leading
        first = next((block.role for block in blocks if block.role not in INSTRUCTIONS), None)
        if first == "user":  # then the request starts with a message of the user too
            assert next(head["role"] for head in heads if head["role"] not in INSTRUCTIONS) == "user"


@given(RUNS, st.sampled_from(BEGINNINGS))
def test_since_handoff_cuts_only_where_another_agent_has_written(runs: Any, beginning: list[Json]) -> None:
    """Between two requests of an agent, a cut follows only a message of another agent."""
    made = talk(since_handoff, runs, beginning)
    for name in "ABC":
        for _, _, blocks in made.cuts(name):
            assert any(block.sender not in (None, name) for block in blocks)
    for name, _, messages, blocks in made.seen:
        since = max((at for at, block in enumerate(blocks, start=1) if block.sender not in (None, name)), default=0)
        assert _calls(messages) == _calls(block.message for block in blocks[since:])


@given(RUNS, st.sampled_from(BEGINNINGS))
def test_own_turns_cuts_nothing_in_a_run(runs: Any, beginning: list[Json]) -> None:
    """In one run, each request of an agent extends the request before, without messages of others."""
    made = talk(own_turns, runs, beginning)
    for name in "ABC":
        assert [cut for cut in made.cuts(name) if cut[0] == cut[1]] == []
    for name, _, messages, blocks in made.seen:
        assert _calls(messages) == _calls(block.message for block in blocks if block.sender in (None, name))


@given(RUNS, st.sampled_from(BEGINNINGS), st.integers(1, 4), st.integers(1, 6))
def test_without_tool_results_keeps_the_newest(runs: Any, beginning: list[Json], keep: int, step: int) -> None:
    """The newest results are there, all messages stay, and results are removed in whole steps."""
    made = talk(without_tool_results(keep, step=step), runs, beginning)
    for name in "ABC":
        cuts = made.cuts(name)
        if cuts:
            with_results = [block for block in cuts[-1][2] if block.answers]
            assert len(cuts) <= (len(with_results) - keep) // step
    for _, _, messages, blocks in made.seen:
        answers = [message for message in messages if message["role"] == "tool"]
        newest = [each for block in [block for block in blocks if block.answers][-keep:] for each in block.answers]
        assert [each["content"] for each in answers[len(answers) - len(newest) :]] == [
            each["content"] for each in newest
        ]


@given(RUNS, st.sampled_from(BEGINNINGS), st.integers())
def test_any_choice_of_blocks_is_sent_as_a_valid_request(runs: Any, beginning: list[Json], seed: int) -> None:
    """Whichever blocks are left out, no call is separated from its answer."""

    def choose(blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:
        changes: list[Callable[[MessageBlock], MessageBlock]] = [
            lambda block: block,
            lambda block: block.without_results,
            lambda block: replace(block, answers=[]),
            lambda block: replace(block, answers=block.answers[1:]),
        ]
        chance = random.Random(seed + len(blocks) + ord(agent.name))  # a pure function: equal for equal blocks
        asked = max((at for at, block in enumerate(blocks) if block.role == "user"), default=None)
        return [
            chance.choice(changes)(block) for at, block in enumerate(blocks) if at == asked or chance.random() < 0.5
        ]

    talk(choose, runs, beginning)
