"""Rows of `wire-cases.md`, end to end: values that servers refuse are not sent."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.testing import RawAnswer, ScriptedAnswer, ScriptedModel, Step, call, check_history
from tests.support.wire.wire_cases import LAST, PARIS, Json, asks, chunk, end, fragment, functions, sse, watch, ways

pytestmark = pytest.mark.asyncio


@ways
async def test_rows_40_and_41_no_tools(way: str) -> None:
    """40, 41: an agent without functions sends no tools, no parallel_tool_calls and no tool_choice."""
    seen = await watch(way, ["Hello"], agent=Agent(tool_choice="required"))
    expected = {"model", "messages", "stream", *(("stream_options",) if way != "run" else ())}
    assert set(seen.model.requests[0].body) == expected


@ways
async def test_row_42_only_fields_of_the_api_are_sent(way: str) -> None:
    """42: `sender`, `tool_name` and nulls are never sent to the API; the recorded messages keep them."""
    seen = await watch(way, [call("get_weather", city="Paris"), LAST])
    history = [{"role": "user", "content": "Hi"}, *seen.response.messages, {"role": "user", "content": "And?"}]
    again = await watch(way, ["Yes."], history)
    assert [message.get("tool_name") for message in history] == [None, None, "get_weather", None, None]
    for request in (*seen.model.requests, *again.model.requests):
        for message in request.messages:
            assert not {"sender", "tool_name"} & message.keys()
            assert [key for key, value in message.items() if value is None] == ["content"] * ("tool_calls" in message)


@ways
async def test_row_43_reasoning_is_echoed(way: str) -> None:
    """43: DeepSeek's reasoning_content is sent back in the same message, in this run and in the next."""
    answer = ScriptedAnswer(calls=[call("get_weather")], extra={"reasoning_content": "Hm."})
    seen = await watch(way, [answer, LAST])
    assert seen.model.requests[1].messages[-2]["reasoning_content"] == "Hm."
    again = await watch(way, ["Yes."], [{"role": "user", "content": "Hi"}, *seen.response.messages])
    assert [
        message.get("reasoning_content")
        for message in again.model.requests[0].messages
        if message["role"] == "assistant"
    ] == ["Hm.", None]


@ways
async def test_keys_that_only_an_answer_has(way: str) -> None:
    """Of an answer, the fields of the API go back, with thoughts and signatures; the recorded message keeps the other
    keys."""
    beside = {
        "channel": "analysis",
        "padding": "abc",
        "token_id": 7,
        "parsed": {"a": 1},
        "provider_metadata": {"cost": 1},
        "executed_tools": [{"index": 0}],
        "name": "assistant",
        "x_vendor": "y",
        "annotations": [{"url": "u"}],
    }
    thought = {
        "reasoning": "Hm.",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "A"}],
        "reasoning_opaque": "B",
        "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "C"}],
        "thought_signature": "D",
        "extra_content": {"google": {"thought_signature": "E"}},
    }
    part = {**fragment("get_weather", PARIS, id="1", index=0), "extra_content": {"google": {}}, "x_call": 1}
    part["function"] |= {"parsed_arguments": {"city": "Paris"}, "thought_signature": "F"}
    chunks = [chunk({**beside, **thought}), *asks(part), *end("tool_calls")]
    seen = await watch(way, [RawAnswer(sse(*chunks)), LAST])
    sent = seen.model.requests[1].messages[-2]
    function = {"name": "get_weather", "arguments": PARIS, "thought_signature": "F"}
    calls = [{"id": "1", "type": "function", "function": function, "extra_content": {"google": {}}}]
    assert sent == {"role": "assistant", "content": None, "tool_calls": calls, **thought}
    assert beside.items() <= seen.response.messages[0].items()


@ways
async def test_keys_of_the_caller_are_sent(way: str) -> None:
    """A message without `sender` is the caller's: its keys are sent, for example Mistral's `prefix`, but not the keys of an
    SDK's answer."""
    user = {"role": "user", "content": "Hi"}
    own = {"role": "assistant", "content": "Well", "name": "bot", "prefix": True}
    seen = await watch(way, ["Hello"], [user, {**own, "parsed": {"a": 1}, "annotations": [{}]}, user])
    assert seen.model.requests[0].messages[1:] == [user, own, user]


@ways
async def test_row_45_content_beside_calls(way: str) -> None:
    """45: an empty content of a message with calls is null by default, and "" with `empty_content=""`; a text is sent
    unchanged."""
    steps: list[Step] = [
        ScriptedAnswer(calls=[call("get_weather")]),
        ScriptedAnswer("Looking.", [call("get_time")]),
        LAST,
    ]
    for options, empty in ((dict[str, Any](), None), ({"empty_content": ""}, "")):
        seen = await watch(way, steps, **options)
        asking = [message["content"] for message in seen.model.requests[2].messages if message.get("tool_calls")]
        assert asking == [empty, "Looking."]


@ways
@pytest.mark.parametrize("empty", [{"content": None}, {"content": ""}, {"content": "", "tool_calls": []}, {}])
async def test_row_46_an_assistant_message_with_nothing(empty: Json, way: str) -> None:
    """46: an assistant message with neither text nor calls is not sent."""
    user = {"role": "user", "content": "Hi"}
    seen = await watch(way, ["Hello"], [user, {"role": "assistant", "sender": "A", **empty}, user])
    assert seen.model.requests[0].messages[1:] == [user, user]


@ways
async def test_row_49_every_call_is_answered_once(way: str) -> None:
    """49: if a turn has several handoffs, each call is answered once, and the last handoff is applied."""
    b, c = Agent(name="B", model="b"), Agent(name="C", model="c")
    agent = Agent(name="A", functions=[b, c])
    seen = await watch(way, [[call("transfer_to_b"), call("transfer_to_c"), call("missing")], LAST], agent=agent)
    check_history(seen.model.requests[1].messages)
    assert seen.told[0] == '{"assistant": "B"}'
    assert seen.told[1].startswith('{"assistant": "C"}')
    assert "B" in seen.told[1]
    assert seen.told[2] == "Error: Tool missing not found. Tools: transfer_to_b, transfer_to_c."
    assert (seen.model.requests[1].body["model"], seen.response.agent) == ("c", c)


@ways
async def test_row_49_open_calls_in_the_middle(way: str) -> None:
    """49: if other messages follow open calls, the request contains the answer "interrupted" for these calls."""
    asking = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}],
    }
    seen = await watch(way, ["Hello"], [asking, {"role": "user", "content": "Hi"}])
    sent = seen.model.requests[0].messages[1:]
    assert sent[1] == {"role": "tool", "tool_call_id": "1", "content": "not run: interrupted"}
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == "{}"


@ways
async def test_row_50_a_tool_message_without_its_call(way: str) -> None:
    """50: if the call of a tool message was trimmed, the tool message is not sent, at the start and in the middle of a
    history."""
    user, orphan = {"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "1", "content": "x"}
    seen = await watch(way, ["Hello"], [orphan, user, orphan, {"role": "assistant", "content": "Yes"}, orphan, user])
    assert [message["content"] for message in seen.model.requests[0].messages[1:]] == ["Hi", "Yes", "Hi"]


@ways
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("where", ["agent", "settings"])
async def test_row_51_a_forced_choice_never_loops(choice: Any, where: str, way: str) -> None:
    """51: a forced choice becomes "auto" after a result, so a run ends even if the server always makes a forced call."""

    def obedient(request: Any) -> Step:
        forced = request.body.get("tool_choice") not in (None, "auto")
        return call("get_weather") if forced and len(model.requests) < 5 else LAST

    model = ScriptedModel(obedient)
    given: Json = {"tool_choice": choice} if where == "agent" else {"model_settings": {"tool_choice": choice}}
    swarm, agent = AsyncSwarm(client=model.client()), Agent(functions=functions([]), **given)
    if way == "run":
        await swarm.run(agent, "Hi")
    elif way == "stream()":
        async with swarm.stream(agent, "Hi") as run:
            _ = [event async for event in run]
    else:
        _ = [event async for event in swarm.run(agent, "Hi", stream=True)]
    assert [request.body["tool_choice"] for request in model.requests] == [choice, "auto"]


async def test_usage_is_asked_for_in_streams_only() -> None:
    """Streamed requests ask for usage, unless this is switched off; other requests do not ask."""
    for way, options, expected in (
        ("run", dict[str, Any](), None),
        ("stream()", dict[str, Any](), {"include_usage": True}),
        ("stream()", {"include_usage": False}, None),
    ):
        seen = await watch(way, ["Hello"], **options)
        assert seen.model.requests[0].body.get("stream_options") == expected


async def test_a_text_may_contain_these_words() -> None:
    """The words NaN and Infinity in a text are sent unchanged."""
    model = ScriptedModel(["No."])
    await AsyncSwarm(model.client()).run(Agent(), "Is NaN more than Infinity?")
    assert model.requests[0].messages[-1]["content"] == "Is NaN more than Infinity?"
