"""Compaction by the server (`context_management`): after a compaction item, a request has only this item and the later ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.conversations import MemoryStore, last
from aswarm.decisions import Approve
from aswarm.middleware import fallback, keep_prefix, summarize
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, call, check_history
from aswarm.tools import tool
from tests.support.openai_rules import AZURE, OPENAI, OpenAIRules

Json = dict[str, Any]
SETTINGS: Json = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}


def compaction(number: int = 1) -> Json:
    """Return a compaction item."""
    return {"type": "compaction", "id": f"cmp_{number}", "encrypted_content": f"secret {number}"}


def compacted(text: str | None, *calls: Any, number: int = 1, before: tuple[Json, ...] = ()) -> ScriptedAnswer:
    """Return an answer that starts with a compaction item; `before`: items before it."""
    return ScriptedAnswer(text, calls, {"responses_output": [*before, compaction(number)]})


def kinds(body: Json) -> list[str]:
    """Return the types or roles of the input items."""
    return [item["role"] if item.get("type", "message") == "message" else item["type"] for item in body["input"]]


def look() -> str:
    """Look."""
    return "seen"


@tool(approve=True)
def pay() -> str:
    """Pay."""
    return "paid"


def agent(**fields: Any) -> Agent:
    return Agent(name="A", instructions="Be brief.", functions=[look, pay], model_settings=SETTINGS, **fields)


@pytest.mark.parametrize("stream", [False, True])
async def test_later_requests_start_with_the_newest_compaction_item(stream: bool) -> None:
    """Two items: the newer one counts. The instructions and the answers to the calls of the response stay."""
    model = OpenAIRules(["one", compacted(None, call("look")), "two", compacted("three", number=2), "four"])
    swarm = AsyncSwarm(model.client(), api="responses")
    messages: list[Any] = []
    for question in ("a", "b", "c", "d"):
        messages.append({"role": "user", "content": question})
        if stream:
            async with swarm.stream(agent(), messages) as events:
                async for _ in events:
                    pass
            messages += events.response.messages
        else:
            messages += (await swarm.run(agent(), messages)).messages
    check_history(messages)
    assert not model.refused
    assert all(body["instructions"] == "Be brief." for body in model.bodies)
    assert [kinds(body) for body in model.bodies] == [
        ["user"],
        ["user", "assistant", "user"],
        ["compaction", "function_call", "function_call_output"],
        ["compaction", "function_call", "function_call_output", "assistant", "user"],
        ["compaction", "assistant", "user"],
    ]
    assert model.bodies[-1]["input"][0]["encrypted_content"] == "secret 2"


async def test_another_provider_gets_the_whole_history() -> None:
    """The history keeps all messages: a fork, a store and Chat Completions have them."""
    model = OpenAIRules(["one", compacted("two")])
    messages: list[Any] = []
    for question in ("a", "b"):
        messages.append({"role": "user", "content": question})
        messages += (await AsyncSwarm(model.client(), api="responses").run(agent(), messages)).messages
    other = ScriptedModel(["three"])
    await AsyncSwarm(other).run(Agent(), [*messages, {"role": "user", "content": "c"}])
    texts = [message.get("content") for message in other.requests[0].messages]
    assert texts[1:] == ["a", "one", "b", "two", "c"]
    assert "compaction" not in str(other.requests[0].body)


async def test_a_message_that_the_caller_has_changed_is_no_end_of_the_history() -> None:
    """Its items do not match, so they are not sent, and the earlier messages are."""
    model = OpenAIRules(["one", compacted("two"), "three"])
    swarm = AsyncSwarm(model.client(), api="responses")
    first = await swarm.run(agent(), "a")
    history: list[Any] = [{"role": "user", "content": "a"}, *first.messages, {"role": "user", "content": "b"}]
    second = await swarm.run(agent(), history)
    edited = {**second.messages[-1], "content": "changed"}
    await swarm.run(agent(), [*history, edited, {"role": "user", "content": "c"}])
    assert kinds(model.bodies[-1]) == ["user", "assistant", "user", "assistant", "user"]


async def test_a_call_before_the_compaction_item_keeps_its_place() -> None:
    """The API rejects an answer without its call."""
    early = {"type": "function_call", "id": "fc_0", "call_id": "early", "name": "look", "arguments": "{}"}
    model = OpenAIRules([compacted(None, call("look"), before=(early,)), "two"])
    await AsyncSwarm(model.client(), api="responses").run(agent(), "a")
    expected = ["function_call", "compaction", "function_call", "function_call_output", "function_call_output"]
    assert kinds(model.bodies[-1]) == expected
    assert not model.refused


async def test_a_waiting_call_beside_a_compaction_item_resumes() -> None:
    """The call waits in one run, and is answered in the next."""
    model = OpenAIRules(["one", compacted(None, call("pay"), call("look")), "paid"])
    swarm = AsyncSwarm(model.client(), api="responses")
    async with MemoryStore() as store:
        chat = store.conversation("ann/1", swarm, agent=agent())
        await chat.run("a")
        waiting = await chat.run("b")
        await chat.resume({waiting.waiting[0].id: Approve()})
    expected = ["compaction", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert kinds(model.bodies[-1]) == expected
    assert not model.refused


@pytest.mark.parametrize("keep", [False, True])
async def test_the_active_agent_has_its_instructions_after_a_handoff(keep: bool) -> None:
    """Also with `keep_prefix`, whose instructions are messages of the history before the compaction item."""
    second = Agent(name="B", instructions="Rules of B.", model_settings=SETTINGS)
    first = Agent(name="A", instructions="Rules of A.", functions=[second], model_settings=SETTINGS)
    model = OpenAIRules([call("transfer_to_b"), compacted("one"), "two"])
    swarm = AsyncSwarm(model.client(), api="responses", middleware=[keep_prefix(first)] if keep else [])
    response = await swarm.run(first, "a")
    await swarm.run(second, [{"role": "user", "content": "a"}, *response.messages, {"role": "user", "content": "b"}])
    body = model.bodies[-1]
    assert not model.refused
    if keep:
        assert kinds(body) == ["developer", "developer", "developer", "compaction", "assistant", "user"]
        assert "Rules of B." in str(body["input"][2])
    else:
        assert (body["instructions"], kinds(body)) == ("Rules of B.", ["compaction", "assistant", "user"])


@pytest.mark.parametrize("url", [OPENAI, AZURE, "https://other.example/v1"])
@pytest.mark.parametrize("role", ["auto", "user", "tool"])
async def test_instructions_of_keep_prefix_outlive_the_compaction(url: str, role: Any) -> None:
    """At each server and with each role: a message of the user, and the result of a call, would be gone."""
    second = Agent(name="B", instructions="Rules of B.", model_settings=SETTINGS)
    first = Agent(name="A", instructions="Rules of A.", functions=[second], model_settings=SETTINGS)
    model = ScriptedModel([call("transfer_to_b"), compacted("one"), "two"])
    swarm = AsyncSwarm(model.client(base_url=url), api="responses", middleware=[keep_prefix(first, role=role)])
    response = await swarm.run(first, "a")
    await swarm.run(second, [{"role": "user", "content": "a"}, *response.messages, {"role": "user", "content": "b"}])
    body = model.requests[-1].body
    assert kinds(body)[-3:] == ["compaction", "assistant", "user"]
    assert "Rules of B." in str(body["input"])


async def test_an_alternative_of_fallback_at_another_server_gets_no_compaction() -> None:
    """It gets the whole history, and could refuse `context_management`."""
    first, other = ScriptedModel([Failure(503)]), OpenAIRules(["one"])
    alternative = fallback((other.client(base_url="https://other.example/v1"), "qwen"))
    swarm = AsyncSwarm(first.client(base_url=OPENAI), api="responses", middleware=[alternative])
    assert (await swarm.run(agent(), "a")).text == "one"
    assert other.refused == []


async def test_definitions_of_loaded_tools_stay() -> None:
    """The items of a tool search, and the list of a hosted MCP server."""
    search: Json = {
        "type": "tool_search_call",
        "id": "ts_1",
        "execution": "server",
        "arguments": {},
        "status": "completed",
    }
    found: Json = {
        "type": "tool_search_output",
        "id": "to_1",
        "execution": "server",
        "tools": [],
        "status": "completed",
    }
    model = ScriptedModel(
        [ScriptedAnswer("one", extra={"responses_output": [search, found]}), compacted("two"), "three"], api="responses"
    )
    swarm = AsyncSwarm(model.client())
    messages: list[Any] = []
    for question in ("a", "b", "c"):
        messages.append({"role": "user", "content": question})
        messages += (await swarm.run(agent(), messages)).messages
    assert kinds(model.requests[-1].body) == [
        "tool_search_call",
        "tool_search_output",
        "compaction",
        "assistant",
        "user",
    ]


@given(kept=st.integers(1, 6), at=st.integers(0, 4))
async def test_a_trimmed_history_stays_valid(kept: int, at: int) -> None:
    """`last(n)` may leave out the compaction item: then the messages that it keeps are sent."""
    model = OpenAIRules([compacted(f"{n}") if n == at else f"{n}" for n in range(6)])
    swarm = AsyncSwarm(model.client(), api="responses")
    messages: list[Any] = []
    for n in range(6):
        messages.append({"role": "user", "content": f"question {n}"})
        messages += (await swarm.run(agent(history=last(kept)), messages)).messages
    assert not model.refused
    assert all(body["input"][-1]["content"] == f"question {n}" for n, body in enumerate(model.bodies))
    assert all(kinds(body).count("compaction") <= 1 for body in model.bodies)


async def test_summarize_is_refused_beside_it() -> None:
    """Both would shorten the conversation."""
    swarm = AsyncSwarm(ScriptedModel(["one"]), middleware=[summarize(Agent(name="S"), above_tokens=1000)])
    with pytest.raises(ConfigurationError, match="context_management"):
        await swarm.run(agent(), "a")
