"""The history that is sent, and the ids of its calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm._values.messages import call_name, match_answers, normalize, unanswered_calls
from aswarm._values.wire_messages import to_wire
from aswarm.testing import RawAnswer, ScriptedAnswer, ScriptedModel, check_history
from tests.support.values.histories import USER, Message, answer, asking, made_call
from tests.support.wire.accumulated import message_of

# --- pairing, case by case --------------------------------------------------------------------------------------------


def test_resuming_runs_the_call_that_is_open_and_not_its_namesake() -> None:
    """With equal ids, a call that was answered is never open: it would be run a second time."""
    history = [USER, asking(made_call("x", "look"), made_call("x", "pay")), answer("x", "paid", tool_name="pay")]
    assert [call_name(call) for call in unanswered_calls(history)] == ["look"]


def test_one_dict_given_twice_answers_two_calls() -> None:
    """A tool message that stands in the history twice, as one object, answers two calls of its id."""
    same = answer("x")
    assert match_answers([made_call("x"), made_call("x")], [same, same]) == [same, same]


# --- the wire ---------------------------------------------------------------------------------------------------------


def test_null_fields_of_a_call_are_stripped_too() -> None:
    """`index: null`, as Gemini-compatible servers send it, is not sent back to a server that knows no such thing."""
    sent = to_wire([asking(made_call(index=None)), answer()])
    assert sent[0]["tool_calls"] == [made_call()]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        None,
        "  ",
        "\n",
        '{"city": "Par',
        '{"x": NaN}',
        '{"x": [-Infinity]}',
        "[]",
        "null",
        "5",
        '{"a": 1} and more',
        "[" * 5000,
    ],
)
def test_arguments_that_are_no_json_object_are_sent_as_an_empty_one(arguments: str | None) -> None:
    """vLLM, Ollama and llama.cpp refuse the whole history otherwise; the record keeps the original text."""
    history = [asking(made_call(arguments=arguments)), answer()]
    sent = to_wire(history)
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert history[0]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("said", [{"refusal": "No."}, {"audio": {"id": "a"}}, {"function_call": {"name": "f"}}])
def test_an_assistant_message_with_other_substance_is_sent(said: Message) -> None:
    """A refusal, audio, or a deprecated function call is something."""
    message = {"role": "assistant", "content": None, **said}
    assert to_wire([message]) == [{"role": "assistant", **said}]


def test_an_answer_is_found_only_directly_after_its_call() -> None:
    """Ids repeat across turns: the answer of the second turn is not the answer of the first."""
    turn = asking(made_call("x"))
    sent = to_wire([turn, answer("x", "one"), turn, answer("x", "two")])
    assert [m["content"] for m in sent if m["role"] == "tool"] == ["one", "two"]


# Ids of odd servers, and the recorded texts.
IDS = [(7, "7"), (0, "0"), (1.5, "1.5"), (True, "True"), ({"n": 1}, "{'n': 1}"), (["a"], "['a']")]


async def look() -> str:
    """Look."""
    return "seen"


def whole(call_id: object) -> dict[str, Any]:
    """A whole completion with one call of this id."""
    message = {"role": "assistant", "content": None, "tool_calls": [made_call("", "look") | {"id": call_id}]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def streamed(call_id: object) -> list[dict[str, Any]]:
    """The same in chunks; the id is repeated with each fragment."""
    head = {"index": 0, "id": call_id, "type": "function", "function": {"name": "look", "arguments": ""}}
    rest = {"index": 0, "id": call_id, "function": {"arguments": "{}"}}
    return [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [head]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [rest]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]


def as_objects(value: Any) -> Any:
    """Return attribute objects all the way down, with the id unchanged."""
    if isinstance(value, Mapping):
        fields = {key: item if key == "id" else as_objects(item) for key, item in value.items()}
        return SimpleNamespace(**fields)
    return [as_objects(item) for item in value] if isinstance(value, list) else value


async def chunks(items: Iterable[Any]) -> Any:
    for item in items:
        yield item


def ids_of(messages: list[Message]) -> tuple[object, object]:
    """The ids of the call and of its answer."""
    return messages[0]["tool_calls"][0]["id"], messages[1]["tool_call_id"]


async def check(client: Any, text: str, *, deltas: bool) -> None:
    """A run with a call of an odd id leaves a history that aswarm and the API accept."""
    swarm, agent = AsyncSwarm(client), Agent(functions=[look])
    async with swarm.stream(agent, "Hi", deltas=deltas) as run:
        events = [event async for event in run]
    response = run.response
    assert ids_of(response.messages) == (text, text)
    assert all(isinstance(getattr(event, "id", ""), str | None) for event in events)
    check_history(response.messages)
    again = await swarm.run(agent, [USER, *response.messages, USER])
    assert again.text == "Done"


@pytest.mark.asyncio
@pytest.mark.parametrize("deltas", [True, False])
@pytest.mark.parametrize(("call_id", "text"), IDS)
async def test_dicts_of_a_server(call_id: object, text: str, deltas: bool) -> None:
    """Over HTTP, whole and in chunks, an id that is no string becomes its text, in the call and in its answer."""
    pieces = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in streamed(call_id)]
    first = RawAnswer(pieces) if deltas else RawAnswer([json.dumps(whole(call_id)).encode()], "application/json")
    await check(ScriptedModel([first, ScriptedAnswer("Done"), ScriptedAnswer("Done")]).client(), text, deltas=deltas)


@pytest.mark.asyncio
@pytest.mark.parametrize("deltas", [True, False])
@pytest.mark.parametrize(("call_id", "text"), IDS)
async def test_objects_of_a_client(call_id: object, text: str, deltas: bool) -> None:
    """The same for the attribute objects of a client of another kind."""
    done = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Done"}, "finish_reason": "stop"}]}
    client = AsyncMock()
    first = chunks(map(as_objects, streamed(call_id))) if deltas else as_objects(whole(call_id))
    client.chat.completions.create.side_effect = [first, done, done]
    await check(client, text, deltas=deltas)


def test_equal_ids_of_two_types_are_one_call() -> None:
    """A server that sends the number first and its text later continues the same call."""
    (made,) = message_of(
        {"tool_calls": [{"id": 7, "function": {"name": "look", "arguments": '{"a"'}}]},
        {"tool_calls": [{"id": "7", "function": {"arguments": ": 1}"}}]},
    )["tool_calls"]
    assert (made["id"], made["function"]["arguments"]) == ("7", '{"a": 1}')


@pytest.mark.parametrize(("call_id", "text"), [(7, "7"), (0, "0"), (1.5, "1.5"), (True, "True")])
def test_a_history_with_numbers_for_ids_is_accepted(call_id: Any, text: str) -> None:
    """A history that other code stored may have numbers: they are taken as their text on both sides."""
    history = [USER, asking(made_call(call_id, "look")), answer(call_id)]
    normal = normalize(history)
    assert ids_of(normal[1:]) == (text, text)
    assert history[2]["tool_call_id"] == call_id
    assert unanswered_calls(normal) == []
    check_history(to_wire(normal))
    check_history(history)


def test_a_number_and_its_text_belong_together() -> None:
    """A call with the id 7 is answered by a tool message for "7"."""
    normal = normalize([USER, asking(made_call(7, "look")), answer("7")])  # type: ignore[arg-type]
    assert unanswered_calls(normal) == []


@pytest.mark.parametrize("call_id", [None, {"n": 1}, [7], b"7"])
def test_other_ids_in_a_history_are_refused(call_id: Any) -> None:
    """What is neither text nor a number names no call."""
    with pytest.raises(ConfigurationError, match="with an id"):
        normalize([USER, asking(made_call(call_id, "look"))])
    with pytest.raises(ConfigurationError, match="without a tool_call_id"):
        normalize([USER, answer(call_id)])
