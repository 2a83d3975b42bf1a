"""Claude's thinking beside features that change the request: no request is refused, and valid thinking is sent back.

The scripted Claude refuses each block behind a changed prefix. Behind the address of a proxy, no request asks the server to drop
blocks, so that aswarm alone decides which blocks are valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, Output, Reply, agent_tool, tool
from aswarm.code import code_tool
from aswarm.conversations import last
from aswarm.middleware import MiddlewareWithTools, fallback, keep_prefix, redact, summarize
from aswarm.testing import ScriptedModel, call
from aswarm.tools import tool_search
from tests.support.anthropic_rules import AnthropicRules, Failure, text, thinking, use

MODEL = "claude-opus-5-5"
PROXY = "https://claude.example"


def look(x: int = 1) -> str:
    """Look."""
    return f"seen {x}: key-12345"


def to_second() -> Agent:
    """Hand over."""
    return second


first = Agent(name="First", model=MODEL, instructions="You are the first.", functions=[look, to_second])
second = Agent(name="Second", model=MODEL, instructions="You are the second.", functions=[look])
plain = Agent(name="Plain", model=MODEL, instructions="Be kind.", functions=[look])


def thought(body: Mapping[str, Any]) -> list[str]:
    """The texts of the thinking that a request sends back."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [block["thinking"] for block in blocks if block["type"] == "thinking"]


def swarm_of(rules: AnthropicRules, **options: Any) -> AsyncSwarm:
    return AsyncSwarm(rules.client(base_url=PROXY), **options)


def looking(*numbers: int) -> list[Any]:
    return [[thinking(f"Look {number}."), use("look", number, x=number)] for number in numbers]


@pytest.mark.parametrize("stream", [False, True])
async def test_all_thinking_of_a_loop_is_sent_back(stream: bool) -> None:
    """Also in the next run, after the history went through JSON."""
    rules = AnthropicRules([*looking(1, 2), [thinking("Done."), text("Yes.")], "Again."])
    swarm = swarm_of(rules)
    if stream:
        async with swarm.stream(plain, "Hi") as run:
            async for _ in run:
                pass
        response = run.response
    else:
        response = await swarm.run(plain, "Hi")
    history = json.loads(json.dumps([{"role": "user", "content": "Hi"}, *response.messages]))
    await swarm.run(plain, [*history, {"role": "user", "content": "More"}])
    assert thought(rules.requests[-1]) == ["Look 1.", "Look 2.", "Done."]
    assert not rules.refused


async def test_a_handoff_drops_the_thinking_of_the_other_agent() -> None:
    """Its instructions and tools are different. The thinking of the new agent stays."""
    rules = AnthropicRules([[thinking("Other."), use("to_second")], *looking(1, 2), "Done."])
    response = await swarm_of(rules).run(first, "Hi")
    assert response.agent is second
    assert [*map(thought, rules.requests)] == [[], [], ["Look 1."], ["Look 1.", "Look 2."]]
    assert not rules.refused


@pytest.mark.parametrize("role", ["auto", "developer"])
async def test_a_handoff_that_keeps_the_prefix_keeps_the_thinking(role: Any) -> None:
    """The second agent reads what the first one has thought."""
    rules = AnthropicRules([[thinking("Other."), use("to_second")], *looking(1), "Done."])
    await swarm_of(rules, middleware=[keep_prefix(first, second, role=role)]).run(first, "Hi")
    assert [*map(thought, rules.requests)] == [[], ["Other."], ["Other.", "Look 1."]]
    assert not rules.refused


async def test_a_trimmed_history_drops_the_thinking_behind_the_gap() -> None:
    """`last(n)` leaves out the oldest messages, and thinking after that is valid again."""
    agent = plain.model_copy(update={"history": last(4, step=2)})
    rules = AnthropicRules([*looking(*range(1, 8)), "Done."])
    await swarm_of(rules).run(agent, "Hi", max_turns=10)
    sent = [*map(thought, rules.requests)]
    assert any(len(now) < len(before) for before, now in pairwise(sent))
    assert len(sent[-1]) >= 1
    assert not rules.refused


async def test_a_summary_drops_the_thinking_behind_it() -> None:
    """The summarizer gets no thinking either, because it has other instructions."""
    replies = iter([*looking(*range(1, 12)), "Done."])
    rules = AnthropicRules(lambda body: "They look." if "tools" not in body else next(replies))
    middleware = summarize(Agent(name="Summarizer"), above_tokens=400)
    await swarm_of(rules, middleware=[middleware]).run(plain, "Hi " * 40, max_turns=20)
    assert any("tools" not in body for body in rules.requests)
    assert all(not thought(body) for body in rules.requests if "tools" not in body)
    assert thought(rules.requests[-1])
    assert not rules.refused


async def test_a_redaction_of_an_answer_drops_its_blocks_and_keeps_the_prefix() -> None:
    """A result is redacted in each request in the same way, so the thinking behind it stays valid."""
    told = [thinking("key-12345 it is."), text("It is key-12345.")]
    rules = AnthropicRules([*looking(1), told, [thinking("Hm."), text("Yes.")], "Bye."])
    swarm = swarm_of(rules, middleware=[redact(r"key-\d+")])
    messages: list[Any] = []
    for words in ("Hi", "And?", "Bye"):
        messages += [{"role": "user", "content": words}]
        messages += (await swarm.run(plain, messages)).messages
    assert [*map(thought, rules.requests)] == [[], ["Look 1."], ["Look 1."], ["Look 1.", "Hm."]]
    assert "12345" not in json.dumps([body["messages"] for body in rules.requests])
    assert not rules.refused


async def test_tools_that_a_run_gets_later_drop_the_thinking() -> None:
    """A middleware gives more tools to the next run of the conversation."""
    rules = AnthropicRules([*looking(1), "One.", *looking(2), "Two."])

    def note() -> str:
        """Note."""
        return "noted"

    response = await swarm_of(rules).run(plain, "Hi")
    history = [{"role": "user", "content": "Hi"}, *response.messages, {"role": "user", "content": "More"}]
    more = MiddlewareWithTools(lambda handlers: handlers, [note])
    await swarm_of(rules, middleware=[more]).run(plain, history)
    assert [*map(thought, rules.requests)] == [[], ["Look 1."], [], ["Look 2."]]
    assert not rules.refused


async def test_a_run_that_waits_keeps_the_thinking_in_another_process() -> None:
    """The history is stored as JSON with sorted keys, and the approved call gets its result behind the thinking."""

    @tool(approve=True)
    def send(x: int) -> str:
        """Send."""
        return f"sent {x}"

    agent = plain.model_copy(update={"functions": [send]})
    asked = [thinking("Send it."), use("send", 1, x=1), use("send", 2, x=2)]
    rules = AnthropicRules([asked, "Sent."])
    response = await swarm_of(rules).run(agent, "Hi")
    stored = json.dumps([{"role": "user", "content": "Hi"}, *response.messages], sort_keys=True)
    decisions = {waiting.id: waiting.id.endswith("1") for waiting in response.waiting}
    await swarm_of(rules).run(agent, json.loads(stored), resume=decisions)
    assert thought(rules.requests[-1]) == ["Send it."]
    assert not rules.refused


class Answer(BaseModel):
    number: int


@pytest.mark.parametrize("mode", ["auto", "schema", "tool", "prompt"])
async def test_a_typed_answer_with_thinking(mode: Any) -> None:
    """The model refuses a forced call, so a sentence asks for it; it is not part of later requests."""
    agent = plain.model_copy(update={"output": Output(Answer, mode=mode)})
    final = [thinking("3."), use("final_answer", number=3)] if mode in ("auto", "tool") else '{"number": 3}'
    rules = AnthropicRules([*looking(1), [thinking("Text."), text("three")], final])
    response = await swarm_of(rules).run(agent, "Hi")
    assert response.output == Answer(number=3)
    assert thought(rules.requests[-1]) == ["Look 1.", "Text."]
    assert not rules.refused


async def test_a_fallback_to_gpt_and_back_in_a_loop_of_calls() -> None:
    """Claude's blocks go only to Claude, and the encrypted reasoning of GPT only to GPT."""
    claude = AnthropicRules([*looking(1), Failure(529), "Done."])
    gpt = ScriptedModel([call("look", x=2)], api="responses")
    swarm = swarm_of(claude, middleware=[fallback((gpt.client(), "gpt-6-sol"))])
    response = await swarm.run(plain, "Hi")
    assert response.text == "Done."
    assert "anthropic" not in json.dumps(gpt.requests[0].body)
    assert thought(claude.requests[-1]) == ["Look 1."]
    assert not claude.refused


async def test_a_fork_with_another_question_keeps_the_thinking_before_it() -> None:
    """The prefix of the earlier turns is the same."""
    rules = AnthropicRules([[thinking("One."), text("1.")], [thinking("Two."), text("2.")], "3."])
    swarm = swarm_of(rules)
    start: Sequence[Any] = [{"role": "user", "content": "Hi"}]
    start = [*start, *(await swarm.run(plain, list(start))).messages]
    await swarm.run(plain, [*start, {"role": "user", "content": "A"}])
    await swarm.run(plain, [*start, {"role": "user", "content": "B"}])
    assert [*map(thought, rules.requests)] == [[], ["One."], ["One."]]
    assert not rules.refused


@pytest.mark.parametrize("url", [PROXY, "https://api.anthropic.com"])
async def test_a_history_of_another_program_is_valid(url: str) -> None:
    """It has no digests. Anthropic's server drops the blocks; a proxy refuses them once, and gets none again."""
    signed = AnthropicRules([[thinking("Hm."), text("One.")]])
    response = await swarm_of(signed).run(plain, "Hi")
    old = {key: value for key, value in response.messages[0].items() if key != "anthropic_origin"}
    history: list[Any] = [{"role": "user", "content": "Changed"}, old, {"role": "user", "content": "More"}]
    rules = AnthropicRules([[thinking("New."), text("Two.")], "Three."])
    swarm = AsyncSwarm(rules.client(base_url=url))
    history += (await swarm.run(plain, history)).messages
    await swarm.run(plain, [*history, {"role": "user", "content": "Last"}])
    assert len(rules.refused) == (1 if url == PROXY else 0)
    assert thought(rules.requests[-1])[-1] == "New."


async def test_code_that_waits_for_an_approval_keeps_the_thinking() -> None:
    """The code continues in another process, and its call is behind the thinking that has made it."""
    sent: list[int] = []

    @tool(approve=True)
    async def send(x: int) -> str:
        """Send."""
        sent.append(x)
        return "sent"

    agent = plain.model_copy(update={"functions": [code_tool(look, send)]})
    code = "a = await look(x=1)\nb = await send(x=2)\na + b"
    rules = AnthropicRules([[thinking("Code."), use("run_code", 1, code=code)], "Sent."])
    response = await swarm_of(rules).run(agent, "Hi")
    (waiting,) = response.waiting
    (inside,) = waiting.data["waiting"]
    stored = json.dumps([{"role": "user", "content": "Hi"}, *response.messages], sort_keys=True)
    await swarm_of(rules).run(agent, json.loads(stored), resume={waiting.id: Reply({inside["id"]: True})})
    assert sent == [2]
    assert thought(rules.requests[-1]) == ["Code."]
    assert not rules.refused


async def test_an_agent_as_a_tool_has_its_own_thinking() -> None:
    """The thinking of the inner conversation is not in the outer one, and the other way round."""
    inner = Agent(name="Inner", model=MODEL, functions=[look])
    outer = plain.model_copy(update={"functions": [agent_tool(inner, name="ask")]})
    asked = [thinking("Ask."), use("ask", 1, request="Look.")]
    rules = AnthropicRules([asked, *looking(1), "Seen.", "Done."])
    await swarm_of(rules).run(outer, "Hi")
    assert [*map(thought, rules.requests)] == [[], [], ["Look 1."], ["Ask."]]
    assert not rules.refused


@pytest.mark.parametrize(("mode", "kept"), [("auto", ["Find.", "Call."]), ("append", ["Call."])])
async def test_a_found_tool_keeps_the_thinking_if_the_tools_stay_the_same(mode: Any, kept: list[str]) -> None:
    """A tool at the end of the list changes the prefix once. By default, the list does not change."""
    late = tool(defer=True)(look)
    agent = plain.model_copy(update={"functions": [tool_search(mode), late]})
    called = use("call_tool", 1, name="look", arguments={"x": 1}) if mode == "auto" else use("look", 1, x=1)
    rules = AnthropicRules(
        [[thinking("Find."), use("search_tools", 1, query="look")], [thinking("Call."), called], "Done."]
    )
    response = await swarm_of(rules).run(agent, "Hi")
    assert response.text == "Done."
    assert "seen 1" in json.dumps(response.messages)
    assert thought(rules.requests[-1]) == kept
    assert not rules.refused
