"""Request n+1 of an agent extends request n, in the order in which a server renders tools, instructions and messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from aswarm import Agent, Approve, AsyncSwarm, Budget, Image, Output, OutputError, agent_tool, tool
from aswarm.code import code_tool
from aswarm.conversations import last, without_tool_results
from aswarm.guards import Block, Replace, guard_answer, guard_input, guard_tool
from aswarm.middleware import clip_results, redact
from aswarm.testing import ScriptedAnswer, ScriptedCall, ScriptedModel, call
from tests.support.openai_rules import KNOWS_CACHING, OpenAIRules
from tests.support.run.prefixes import breaks

LONG = "You help the guests of a hotel. " * 140
MODEL = "gpt-6-luna"
PIXEL = b"\x89PNG\r\n\x1a\n" + b"0" * 20


class Trip(BaseModel):
    city: str


async def look(city: str = "") -> str:
    """Look a city up."""
    return f"sunny in {city}, mail me@example.com" * 5


async def photo() -> Image:
    """Take a photo."""
    return Image(PIXEL)


@tool(approve=True)
async def pay(amount: int = 1) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(repeatable=True)
async def fails() -> str:
    """Fail."""
    raise ValueError("broken")


@tool(defer=True, approve=True)
async def book(city: str = "") -> str:
    """Book a hotel."""
    return f"booked in {city}"


inner = agent_tool(Agent(name="inner", model=MODEL, instructions="inner", functions=[look]), name="ask_inner")
NAMES = ["look", "photo", "pay", "fails", "ask_inner", "nothing"]
CODE = ["await look()", "await pay(amount=2)", "[await look(city='Rome'), await pay()]", "1 +"]
ARGUMENTS = st.sampled_from(["{}", "{", '{"city": "Rome"}'])
CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), ARGUMENTS)
    | st.sampled_from(
        [
            ("final_answer", '{"city": "Rome"}'),
            ("search_tools", '{"query": "book a hotel"}'),
            ("call_tool", '{"name":"book","arguments":{"city":"Rome"}}'),
            ("call_tool", '{"name": "book", "argum'),
            ("book", "{}"),
        ]
    )
    | st.sampled_from(CODE).map(lambda code: ("run_code", json.dumps({"code": code}))),
    min_size=1,
    max_size=3,
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["", "Hm", '{"city": "Rome"}', "stop"]), st.just([]) | CALLS, st.booleans()), max_size=8
)
OUTPUTS = st.sampled_from(
    [None, Trip, Trip | str, Output(Trip, retries=2), Output(Trip, mode="prompt"), Output(Trip, mode="schema")]
)
MIDDLEWARE = {
    "guard_input": guard_input(lambda asked: Replace("Replaced") if "And?" in str(asked.messages[-1]) else None),
    "guard_tool": guard_tool(lambda made: Block("no") if made.arguments else None),
    "guard_answer": guard_answer(lambda answer: Replace("Hmm") if answer.text == "Hm" else None),
    "clip_results": clip_results(100),
    "redact": redact(r"\S+@\S+"),
}


@dataclass
class Chat:
    """A chat of an agent with two users' messages in each run, which goes on after approvals, and from storage."""

    model: ScriptedModel
    swarm: AsyncSwarm
    agent: Agent
    options: dict[str, Any]
    messages: list[Any]

    async def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        resume: Any = False
        while True:
            try:
                response = await self.swarm.run(self.agent, self.messages, resume=resume, **self.options)
            except OutputError as error:
                response = error.response
            self.messages = json.loads(json.dumps([*self.messages, *response.messages]))
            if response.stop != "waiting":
                return
            resume = Approve.all()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.model.requests if "inner" not in json.dumps(request.messages[:1])]


def model_of(drawn: list[Any], is_openai: bool, reasons: bool) -> ScriptedModel:
    """Return a model with these steps, which then answers with the right type."""
    steps = iter(enumerate(drawn))

    def answer(request: Any) -> ScriptedAnswer:
        if "inner" in json.dumps(request.messages[:1]):
            return ScriptedAnswer("inner answer")
        number, (text, calls, thinks) = next(steps, (0, ('{"city": "Rome"}', [], False)))
        if request.body.get("tool_choice") not in (None, "auto", "none"):
            text, calls = "", [("final_answer", '{"city": "Oslo"}')]
        made = [ScriptedCall(name, text, f"c{number}_{at}") for at, (name, text) in enumerate(calls)]
        extra = {"reasoning_content": f"thought {number}"} if thinks and reasons else {}
        return ScriptedAnswer(text or None if made else text or "Hm", calls=made, extra=extra)

    return OpenAIRules(answer) if is_openai else ScriptedModel(answer)


@pytest.mark.slow
@pytest.mark.skipif(not KNOWS_CACHING, reason="the types of this openai have no prompt caching")
@given(
    drawn=STEPS,
    server=st.sampled_from([("chat", True), ("responses", True), ("chat", False)]),
    output=OUTPUTS,
    middleware=st.sets(st.sampled_from(sorted(MIDDLEWARE)), max_size=2),
    instructions=st.sampled_from([LONG, "Be kind.", lambda: LONG]),
    budget=st.sampled_from([None, Budget(turns=2, then="answer")]),
    searches=st.booleans(),
)
def test_each_request_extends_the_request_before_it(
    drawn: Any, server: Any, output: Any, middleware: Any, instructions: Any, budget: Any, searches: bool
) -> None:
    """Holds for calls, images, reasoning, typed output, guards, approvals, inner agents, code, deferred tools, and stored chats."""
    api, is_openai = server
    if isinstance(output, Output) and output.mode == "schema" and server != ("responses", True):
        output = Trip
    model = model_of(drawn, is_openai, reasons=api == "responses")
    swarm = AsyncSwarm(model.client(), api=api, middleware=[MIDDLEWARE[name] for name in sorted(middleware)])
    functions = [look, photo, pay, fails, inner, code_tool(look, pay), *([book] if searches else [])]
    agent = Agent(name="A", model=MODEL, instructions=instructions, functions=functions)
    chat = Chat(model, swarm, agent, {"output": output, "budget": budget, "max_turns": 12}, [])

    async def talk() -> None:
        for text in ("Hi!", "And?", "Good."):
            await chat.ask(text)

    anyio.run(talk)
    found = breaks(chat.bodies)
    if not is_openai and output is not None:  # another server gets only the forced function
        forced = [at for at, body in enumerate(chat.bodies) if body.get("tool_choice") == "required"]
        found = [(at, what) for at, what in found if at not in forced and at - 1 not in forced]
    assert found == []
    if is_openai:
        assert model.refused == []  # type: ignore[attr-defined]


def steps_with_calls(turns: int) -> list[Any]:
    return [step for at in range(turns) for step in (call("look", city=f"C{at}" * 60), f"Answer {at}.")]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    ("history", "most"),
    [(last(8, step=4), 13), (without_tool_results(2, step=4), 4), (None, 0)],
    ids=["last", "results", "all"],
)
def test_a_trim_changes_the_prefix_only_once_in_its_step(api: Any, history: Any, most: int) -> None:
    """Between two trims, each request extends the request before it: 20 questions with one call each are 60 blocks."""
    model = OpenAIRules(steps_with_calls(20))
    agent = Agent(name="A", model=MODEL, instructions=LONG, functions=[look], history=history)
    chat = Chat(model, AsyncSwarm(model.client(), api=api), agent, {}, [])

    async def talk() -> None:
        for at in range(20):
            await chat.ask(f"Question {at}?")

    anyio.run(talk)
    assert (most == 0) == (breaks(chat.bodies) == [])
    assert len(breaks(chat.bodies)) <= most


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_only_the_first_request_after_a_handoff_has_another_prefix(api: Any) -> None:
    """A return to an agent extends the last request of this agent, and a fork extends the request that it starts from."""
    model = OpenAIRules([call("to_b"), call("look"), "B", call("to_a"), call("look"), "A", "fork", "again"])
    agent = Agent(name="A", model=MODEL, instructions=LONG, functions=[look])
    other = Agent(name="B", model=MODEL, instructions=LONG.upper(), functions=[look])
    agent.functions.append(tool(name="to_b")(lambda: other))
    other.functions.append(tool(name="to_a")(lambda: agent))
    chat = Chat(model, AsyncSwarm(model.client(), api=api), agent, {}, [])

    async def talk() -> None:
        await chat.ask("To B!")
        chat.agent = other
        await chat.ask("To A!")
        chat.agent, fork = agent, [*chat.messages]
        await chat.ask("One.")
        chat.messages = fork
        await chat.ask("Two.")

    anyio.run(talk)
    assert [at for at, _ in breaks(model.bodies)] == [1, 4, 7]
    of_a = [body for body in model.bodies if LONG in json.dumps(body)]
    assert [at for at, _ in breaks(of_a)] == [len(of_a) - 1]  # the fork, beside the other question
    assert breaks([*of_a[:-2], of_a[-1]]) == []
