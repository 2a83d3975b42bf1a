"""`aswarm.testing` itself: the scripted model follows its script, and `check_history` finds every fault."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import anyio
import httpx
import pytest
from openai.types import responses
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from aswarm import Agent, AsyncSwarm, CompletionError, CompletionFinished, ConfigurationError
from aswarm.errors import StreamInterrupted
from aswarm.testing import Failure, RawAnswer, ScriptedAnswer, ScriptedCall, ScriptedModel, call, check_history
from tests.support.providers.loopback import whole, whole_response

APIS = pytest.mark.parametrize("api", ["chat", "responses"])
QUESTION = {"role": "user", "content": "Go"}


def asking(*ids: str, name: str = "f") -> dict[str, Any]:
    calls = [{"id": made, "type": "function", "function": {"name": name, "arguments": "{}"}} for made in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def answering(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


SAID = {"role": "assistant", "content": "Done"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [QUESTION],
        [QUESTION, SAID, QUESTION, SAID],
        [QUESTION, asking("1"), answering("1"), SAID],
        [QUESTION, asking("1", "2"), answering("1"), answering("2"), asking("3"), answering("3")],
        [QUESTION, asking("same", "same"), answering("same"), answering("same")],
        [QUESTION, asking("same"), answering("same"), asking("same"), answering("same")],
    ],
)
def test_valid_histories(messages: list[dict[str, Any]]) -> None:
    """Histories that the API accepts pass, equal ids included."""
    check_history(messages)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([QUESTION, asking("1"), SAID], "'1'"),
        ([QUESTION, asking("1")], "'1'"),
        ([QUESTION, asking("1", "2"), answering("1")], "'2'"),
        ([QUESTION, answering("1")], "'1'"),
        ([answering("1")], "'1'"),
        ([QUESTION, asking("1"), answering("1"), answering("1")], "'1'"),
        ([QUESTION, asking("1"), answering("2")], "'2'"),
        ([QUESTION, asking("1"), SAID, answering("1")], "'1'"),
        ([QUESTION, asking("1", "2"), answering("2"), answering("1")], "order"),
        ([{"role": "robot", "content": "x"}], "robot"),
        ([{"content": "x"}], "None"),
        ([{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x"}], "tool_call_id"),
        ([{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}], "id"),
        (["x"], "not a message"),
    ],
)
def test_faulty_histories(messages: list[dict[str, Any]], says: str) -> None:
    """Every fault is an AssertionError that names it."""
    with pytest.raises(AssertionError, match="not a valid history") as caught:
        check_history(messages)
    assert says in str(caught.value)


def test_what_may_be_allowed() -> None:
    """`allow_open` accepts open calls of the last assistant message only; `ordered=False` accepts any order."""
    check_history([QUESTION, asking("1", "2"), answering("2")], allow_open=True)
    check_history([QUESTION, asking("1", "2"), answering("2"), answering("1")], ordered=False)
    with pytest.raises(AssertionError):
        check_history([QUESTION, asking("1"), SAID], allow_open=True)


@pytest.mark.asyncio  # openai leaves its generators open, which trio warns about
@pytest.mark.parametrize("cut", [None, 1, 3, lambda text: [text[:1], text[1:]]])
async def test_chunks_and_completion_say_the_same(cut: Any) -> None:
    """However an answer is cut, its chunks together are the whole completion."""
    answer = ScriptedAnswer("Hello you", calls=[call("f", x=1)], extra={"reasoning_content": "Hm, so"})
    async with ScriptedModel([answer] * 2, cut=cut).client() as client:
        made: Any = client.chat.completions.create
        streamed = [chunk.to_dict() async for chunk in await made(model="m", messages=[QUESTION], stream=True)]
        whole = (await made(model="m", messages=[QUESTION])).to_dict()["choices"][0]["message"]
    deltas = [choice["delta"] for chunk in streamed for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["content"]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm, so" == whole["reasoning_content"]
    fragments = [fragment["function"]["arguments"] for delta in deltas for fragment in delta.get("tool_calls") or ()]
    assert "".join(fragments) == whole["tool_calls"][0]["function"]["arguments"]


@APIS
async def test_steps_of_every_kind(api: Any) -> None:
    """A str, a call, calls, an Answer, a Failure, raw bytes, an exception, and functions of the request."""
    [raw] = (whole_response if api == "responses" else whole)(ScriptedAnswer("raw")).pieces
    model = ScriptedModel(
        [
            call("f"),
            [call("f"), call("f")],
            lambda request: f"said {len(request.messages)}",
            ScriptedAnswer("an answer"),
            RawAnswer([raw[:5], raw[5:]], "application/json"),
            Failure(418, "teapot"),
            httpx.ConnectError("no route"),
        ],
        api=api,
    )
    swarm = AsyncSwarm(client=model.client())
    agent = Agent(functions=[f])
    assert (await swarm.run(agent, "Go")).text == "said 7"
    assert (await swarm.run(agent, "Go")).text == "an answer"
    assert (await swarm.run(agent, "Go")).text == "raw"
    for words in ("teapot", "no route"):
        with pytest.raises(CompletionError, match=words):
            await swarm.run(agent, "Go")
    assert [request.tool_names for request in model.requests] == [["f"]] * 7


def f() -> str:
    return "ok"


async def test_the_end_of_the_script_says_so() -> None:
    """A request beyond the script fails, and the error has its number and its last message."""
    model = ScriptedModel(["one"])
    swarm = AsyncSwarm(client=model.client())
    await swarm.run(Agent(), "first")
    with pytest.raises(Exception, match=r"no answer for request 2.*second"):
        await swarm.run(Agent(), "second")


@pytest.mark.parametrize(("api", "events"), [("chat", 3), ("responses", 6)])
async def test_streams_are_counted_and_break_where_told(api: Any, events: int) -> None:
    """`open_streams` counts bodies that are being read; `break_after` breaks after so many chunks or events."""
    model = ScriptedModel([ScriptedAnswer("Hello"), ScriptedAnswer("Hello", break_after=events)], cut=1, api=api)
    swarm = AsyncSwarm(client=model.client())
    async with swarm.stream(Agent(), "Go") as run:
        counted = [(type(event).__name__, model.open_streams) async for event in run]
    assert ("TextDelta", 1) in counted and counted[-1] == ("RunFinished", 0)
    with pytest.raises(StreamInterrupted, match="scripted break") as caught:
        _ = [event async for event in swarm.run(Agent(), "Go", stream=True)]
    assert caught.value.partial == "He"
    assert model.open_streams == 0


@APIS
async def test_delays_are_on_the_clock_of_the_event_loop(api: Any) -> None:
    """`delay` and `pause` wait with anyio, so that other tasks run meanwhile."""
    model = ScriptedModel([ScriptedAnswer("Hello", delay=0.05, pause=0.01)], cut=1, api=api)
    before, ticks = anyio.current_time(), 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.005)
            ticks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        async with AsyncSwarm(client=model.client()).stream(Agent(), "Go") as run:
            async for _ in run:
                pass
        group.cancel_scope.cancel()
    assert anyio.current_time() - before >= 0.1
    assert ticks >= 2


@pytest.mark.asyncio
@APIS
async def test_a_scripted_break_breaks_a_whole_answer_too(api: Any) -> None:
    """`ScriptedAnswer(break_after=...)` is a lost connection in a plain run too."""
    model = ScriptedModel([ScriptedAnswer("Hello", break_after=1)], api=api)
    with pytest.raises(CompletionError) as caught:
        await AsyncSwarm(client=model.client()).run(Agent(), "Hi")
    assert caught.value.retryable


# --- over both APIs ---------------------------------------------------------------------------------------------------

CUSTOM = ScriptedCall("shell", "ls -la", "c2", kind="custom")
ANSWERS = {
    "text": ScriptedAnswer("Hello"),
    "nothing": ScriptedAnswer(),
    "calls": ScriptedAnswer(calls=[call("f", call_id="c1"), call("g", "{not json", call_id="c2")]),
    "text and a call": ScriptedAnswer("Let me see", calls=[call("f", call_id="c1")]),
    "reasoning": ScriptedAnswer("Hello", extra={"reasoning_content": "Hm, so"}),
    "reasoning and a call": ScriptedAnswer(calls=[call("f", call_id="c1")], extra={"reasoning_content": "Hm"}),
    "refusal": ScriptedAnswer(extra={"refusal": "No."}),
    "custom call": ScriptedAnswer(calls=[call("f", call_id="c1"), CUSTOM]),
    "cut": ScriptedAnswer("Hel", finish_reason="length"),
    "filtered": ScriptedAnswer("Hel", finish_reason="content_filter"),
    "no usage": ScriptedAnswer("Hello", usage=None),
}


async def conversation(
    api: Any, answer: ScriptedAnswer, *, stream: bool
) -> tuple[list[Any], list[str | None], ScriptedModel]:
    """The messages of a run with this answer and of the next one, the finish reasons, and the model."""
    model = ScriptedModel(lambda _: answer if len(model.requests) == 1 else "Done", cut=2, api=api)
    swarm, agent, finished = AsyncSwarm(model.client()), Agent(functions=[f]), list[str | None]()
    if stream:
        async with swarm.stream(agent, "Go") as run:
            finished = [event.finish_reason async for event in run if isinstance(event, CompletionFinished)]
        messages = run.response.messages
    else:
        messages = (await swarm.run(agent, "Go")).messages
    await swarm.run(agent, [QUESTION, *messages, QUESTION])
    return [without_items(message) for message in messages], finished, model


def without_items(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "responses_output"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_gives_the_same_messages_over_both_apis(name: str, stream: bool) -> None:
    """Text, calls of both kinds, reasoning, refusals and finish reasons, and the next request has the same history."""
    left = {api: await conversation(api, ANSWERS[name], stream=stream) for api in ("chat", "responses")}
    assert left["chat"][:2] == left["responses"][:2]
    sent = {api: [shape(message) for message in left[api][2].requests[-1].messages] for api in left}
    assert sent["chat"] == sent["responses"]
    assert all(request.is_responses for request in left["responses"][2].requests)


EVENT_TYPES = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}


@pytest.mark.asyncio
@pytest.mark.processes
@pytest.mark.parametrize("name", ANSWERS)
async def test_responses_and_events_fit_the_types_of_the_sdk(name: str) -> None:
    """Code that reads them through openai finds the fields of its types."""
    answer = replace(ANSWERS[name], usage=None)
    model = ScriptedModel([answer] * 2, cut=2)
    async with model.client() as client:
        made: Any = client.responses.create
        TypeAdapter(responses.Response).validate_python((await made(model="m", input="Go")).to_dict())
        events = [event.to_dict() async for event in await made(model="m", input="Go", stream=True)]
    for number, event in enumerate(events):
        assert EVENT_TYPES[event["type"]].model_validate(event).sequence_number == number
    assert [(each["role"], each["content"]) for each in model.requests[0].messages] == [("user", "Go")]


def shape(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the content of a message of a request; the Responses API has no place for the reasoning and the refusal of a message."""
    return message["role"], message.get("content") or None, message.get("tool_calls"), message.get("tool_call_id")


@pytest.mark.parametrize("stream", [False, True])
async def test_items_of_hosted_tools(stream: bool) -> None:
    """They come before the text, and are sent back in order."""
    items = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
    ]
    *_, model = await conversation(
        "responses", ScriptedAnswer("Hello", extra={"responses_output": items}), stream=stream
    )
    assert model.requests[1].body["input"][1:3] == items
    assert model.requests[1].body["input"][3]["type"] == "message"


@pytest.mark.parametrize("step", [7, ["Hi"], {"content": "Hi"}])
async def test_a_step_that_is_no_step(step: Any) -> None:
    """The script is wrong, and the error shows the step."""
    with pytest.raises(
        CompletionError, match=r"a step of the script must be a str, .*; it is " + re.escape(repr(step))
    ):
        await AsyncSwarm(ScriptedModel([step]).client()).run(Agent(), "Hi")


async def test_keys_that_the_responses_api_does_not_have() -> None:
    """The script is wrong, and the error names the keys."""
    model = ScriptedModel([ScriptedAnswer("Hello", extra={"reasoning_details": []})], api="responses")
    with pytest.raises(CompletionError, match="keys that the Responses API does not have: reasoning_details"):
        await AsyncSwarm(model.client()).run(Agent(), "Hi")


@APIS
async def test_a_scripted_model_is_a_source(api: Any) -> None:
    """The swarm gets the model itself, and sends the requests that its client would send."""
    models = [ScriptedModel([call("f", call_id="c1"), "Done."], api=api) for _ in range(2)]

    async def f() -> str:
        """Do it."""
        return "done"

    for client in (models[0], models[1].client()):
        response = await AsyncSwarm(client).run(Agent(functions=[f]), "Go")
        assert response.text == "Done."
    assert [request.body for request in models[0].requests] == [request.body for request in models[1].requests]


def test_the_arguments_of_a_call_may_be_a_dict() -> None:
    """A dict is for a name that `call` has itself; the other arguments are added."""
    assert json.loads(call("book", {"arguments": 1}, city="Rome").arguments) == {"arguments": 1, "city": "Rome"}


def test_an_api_that_a_scripted_model_does_not_have() -> None:
    """The error says how to test agents of Claude."""
    wrong: Any = "anthropic"
    with pytest.raises(ConfigurationError, match=r"api='anthropic'.*AsyncSwarm\(model\)"):
        ScriptedModel(["Hi"], api=wrong)
