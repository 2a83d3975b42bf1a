"""Text that UTF-8 cannot encode is repaired or refused at every entry of a run, and the conversation continues."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    ConfigurationError,
    Deny,
    Hold,
    Output,
    Reply,
    Result,
    ToolError,
    current_call,
    external_tool,
    tool,
)
from aswarm.conversations import MemoryStore, SQLiteStore
from aswarm.middleware import CompletionRequest, Handlers, ToolCall, ToolOutcome
from aswarm.testing import ScriptedModel, call

NAME = os.fsdecode(b"caf\xe9.txt")  # as os.listdir names a file in another encoding
SHOWN = "caf\\udce9.txt"  # in a text that a tool gives to the model
REPAIRED = "caf\ufffd.txt"  # in any other text


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="aswarm")  # pytest-xdist cannot send such a text


@dataclass
class Entry:
    name: Any


class Listing(BaseModel):
    names: Any


class Broken(Exception):
    """Has a text that cannot be encoded."""


def raises(error: Exception) -> Any:
    raise error


RESULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text": (lambda name: name, SHOWN),
    "pair": (lambda _: "\ud83d\udc1d", "🐝"),  # JavaScript and JSON write an emoji as two halves
    "list": (lambda name: [name], f'["{SHOWN}"]'),
    "tuple": (lambda name: (name,), f'["{SHOWN}"]'),
    "set": (lambda name: {name}, f'["{SHOWN}"]'),
    "key": (lambda name: {name: 1}, f'{{"{SHOWN}": 1}}'),
    "nested": (lambda name: {"a": [{name: (name,)}]}, f'{{"a": [{{"{SHOWN}": ["{SHOWN}"]}}]}}'),
    "dataclass": (lambda name: Entry(name), f'{{"name": "{SHOWN}"}}'),
    "dataclass with a key": (lambda name: [Entry({name: 1})], f'[{{"name": {{"{SHOWN}": 1}}}}]'),
    "model with a key": (lambda name: [Listing(names={name: 1})], f'[{{"names": {{"{SHOWN}": 1}}}}]'),
    "set beside a key": (lambda name: {name: {1}}, f'{{"{SHOWN}": [1]}}'),
    "model": (lambda name: Listing(names=[name]), f'{{"names": ["{SHOWN}"]}}'),
    "Result": (lambda name: Result(value=name, context_variables={"x": name}), SHOWN),
    "Path": (lambda name: Path(name), SHOWN),
    "deque with a key": (lambda name: deque([{name: 1}]), f'[{{"{SHOWN}": 1}}]'),
    "exception": (lambda name: raises(Broken(name)), f"Error: Broken: {SHOWN}"),
    "ToolError": (lambda name: raises(ToolError(name)), SHOWN),
}


def sent(model: ScriptedModel) -> list[str]:
    """Return the contents of the tool messages of the last request, which UTF-8 can encode."""
    for request in model.requests:
        json.dumps([request.messages, request.body], ensure_ascii=False).encode()
    return [each["content"] for each in model.requests[-1].messages if each["role"] == "tool"]


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_result_is_repaired_and_the_conversation_continues(name: str, is_async: bool) -> None:
    """The call has run, its result is recorded, and later messages are answered."""
    make, text = RESULTS[name]
    model = ScriptedModel([call("look"), "First.", "Second."])

    async def slow() -> Any:
        return make(NAME)

    def plain() -> Any:
        return make(NAME)

    agent = Agent(functions=[tool(name="look")(slow if is_async else plain)])
    async with MemoryStore() as store:
        chat = store.conversation("c", AsyncSwarm(model.client()), agent=agent)
        response = await chat.run("Hi!")
        assert (response.text, response.unknown_calls) == ("First.", [])
        assert response.messages[1]["content"] == text
        assert sent(model) == [text]
        assert (await chat.run("More")).text == "Second."
        stored = await store.load("c")
        assert stored is not None
        json.dumps(stored.messages, ensure_ascii=False).encode()
        assert sent(model) == [text]


async def test_a_message_of_the_user_is_refused_with_its_place() -> None:
    """Such a message is an error before any request, and the error does not blame the provider."""
    model = ScriptedModel([])
    swarm = AsyncSwarm(model.client())
    old = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    parts = [{"type": "text", "text": NAME}]
    async with MemoryStore() as store:
        for run in (
            lambda: swarm.run(Agent(), NAME),
            lambda: swarm.run(Agent(), [{"role": "user", "content": NAME}]),
            lambda: swarm.run(Agent(), [*old, {"role": "user", "content": parts}]),
            lambda: swarm.run(Agent(), [{"role": "system", "content": NAME}, {"role": "user", "content": "Hi"}]),
            lambda: store.conversation("c", swarm, agent=Agent()).run(NAME),
        ):
            with pytest.raises(ConfigurationError, match=r"messages\[\d\] has half a surrogate pair.*caf.*errors="):
                await run()
        assert await store.load("c") is None
    assert model.requests == []


async def test_an_old_history_can_be_sent() -> None:
    """An old history may have such a text at every place."""
    model = ScriptedModel(["Hello."])
    asks = call("look", call_id="1", name="a")
    function = {"name": "look", "arguments": '{"name": "\\ud800"}', "note": NAME}
    history = [
        {"role": "user", "content": NAME},
        {
            "role": "assistant",
            "content": NAME,
            "tool_calls": [{"id": asks.id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "1", "tool_name": "look", "content": NAME},
        {"role": "assistant", "content": "Yes.", "reasoning_content": NAME, "sender": NAME},
        {"role": "user", "content": "And?"},
    ]
    await AsyncSwarm(model.client()).run(Agent(), history)
    assert sent(model) == [REPAIRED]
    messages = model.requests[0].messages
    assert messages[1]["content"] == REPAIRED
    assert messages[2]["tool_calls"][0]["function"]["arguments"] == '{"name": "\\ufffd"}'


def replacing(handlers: Handlers) -> Handlers:
    """Replace each result by a text or by parts, and add a message to each request, as a summary does."""

    async def call_tool(made: ToolCall, *_: Any) -> ToolOutcome:
        return ToolOutcome(NAME if made.name == "look" else [{"type": "text", "text": NAME}])

    async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        request.body["messages"].insert(1, {"role": "user", "content": NAME})
        request.body["metadata"] = {NAME: NAME}
        async for chunk in handlers.complete(request):
            yield chunk

    return replace(handlers, call_tool=call_tool, complete=complete)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_text_of_a_middleware_is_repaired(api: Any) -> None:
    """Results, messages and settings of a middleware are repaired."""
    model = ScriptedModel([[call("look"), call("see")], "Done."])
    swarm = AsyncSwarm(model.client(), api=api, middleware=[replacing])
    response = await swarm.run(Agent(functions=[tool(name=name)(lambda: "x") for name in ("look", "see")]), "Hi!")
    assert [each["content"] for each in response.messages[1:3]] == [REPAIRED, [{"type": "text", "text": REPAIRED}]]
    assert model.requests[1].body["metadata"] == {REPAIRED: REPAIRED}


async def test_the_text_of_tool_error_is_repaired() -> None:
    model = ScriptedModel([call("look"), "Done."])
    swarm = AsyncSwarm(model.client(), tool_error=lambda _: NAME)
    await swarm.run(Agent(functions=[tool(name="look")(lambda: 1 / 0)]), "Hi!")
    assert sent(model) == [REPAIRED]


async def paid(name: str) -> str:
    return f"paid {name}"


@tool(may_wait=True)
@tool(may_wait=True)
async def ask() -> Any:
    if not current_call().is_approved:
        raise Hold(NAME, data={"names": [NAME]})
    return [current_call().answer]


LOOK = external_tool(name="look", description="Look.", parameters={"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("function", "decision", "text"),
    [
        (tool(approve=True, name="pay")(paid), Deny(NAME), f"not run: denied by the user: {REPAIRED}"),
        (tool(approve=True, name="pay")(paid), NAME, REPAIRED),
        (tool(approve=True, name="pay")(paid), {"deny": NAME}, f"not run: denied by the user: {REPAIRED}"),
        (ask, Reply(NAME), f'["{REPAIRED}"]'),
        (LOOK, NAME, REPAIRED),
        (LOOK, Reply([NAME]), f'["{SHOWN}"]'),
    ],
)
async def test_a_decision_is_repaired(function: Any, decision: Any, text: str) -> None:
    """The reason, the result and the answer of a decision are repaired."""
    name = function.__name__
    model = ScriptedModel([call(name, call_id="1", **({"name": "a"} if name == "pay" else {})), "Done.", "More."])
    agent = Agent(functions=[function])
    async with MemoryStore() as store:
        chat = store.conversation("c", AsyncSwarm(model.client()), agent=agent)
        assert (await chat.run("Hi!")).stop == "waiting"
        assert (await chat.resume({"1": decision})).text == "Done."
        assert [each for each in sent(model) if "denied" in each or "caf" in each][-1] == text
        assert (await chat.run("More")).text == "More."


async def test_changed_arguments_that_cannot_be_sent_are_refused() -> None:
    """The function must not run with other arguments than the user has approved."""
    model = ScriptedModel([call("paid", call_id="1", name="a")])
    agent, swarm = Agent(functions=[tool(approve=True)(paid)]), AsyncSwarm(model.client())
    response = await swarm.run(agent, "Hi!")
    history = [{"role": "user", "content": "Hi!"}, *response.messages]
    for wrong in (NAME, float("nan")):
        with pytest.raises(ConfigurationError, match="changed arguments of the call '1' must be a JSON object"):
            await swarm.run(agent, history, resume={"1": Approve({"name": wrong})})


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ('{"name": "\\ud800"}', "\ufffd"),
        ('{"name": "a\\udce9b"}', "a\ufffdb"),
        ('{"name": "\\ud83d\\udc1d"}', "🐝"),
        (r'{"name": "\\ud800 \ud800"}', "\\ud800 \ufffd"),
        ('{"name": "\\u0000"}', "\0"),
        ('{"name": "\ud800"}', None),
    ],
)
async def test_arguments_of_a_model_are_repaired(arguments: str, received: str | None) -> None:
    """JSON allows the escape of half a pair, and parsers refuse it."""
    source = Source([{"tool_calls": [{"index": 0, "id": "1", "function": {"name": "paid", "arguments": arguments}}]}])
    response = await AsyncSwarm(source).run(Agent(functions=[paid]), "Hi!")
    content = response.messages[1]["content"]
    assert content == (f"paid {received}" if received is not None else "paid \ufffd")
    json.dumps([response.messages, source.bodies], ensure_ascii=False).encode()
    assert json.loads(source.bodies[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("mode", ["schema", "tool", "prompt"])
async def test_structured_output_is_repaired(mode: Any) -> None:
    """An answer in JSON may have the escape of half a pair."""
    text = '{"names": ["a\\udce9", "\\ud83d\\udc1d"]}'
    model = ScriptedModel([call("final_answer", arguments=text) if mode == "tool" else text])
    async with AsyncSwarm(model.client()).stream(Agent(), "Hi!", output=Output(Listing, mode=mode)) as run:
        async for _ in run:
            assert run.partial_output is None or isinstance(run.partial_output, dict)
    assert run.response.output == Listing(names=["a\ufffd", "🐝"])


class Source:
    """A source that sends these deltas, then "Done."."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.bodies.append(request.chat_body())
        for delta in self.answers.pop(0) if self.answers else [{"content": "Done."}]:
            yield {"choices": [{"index": 0, "delta": delta}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("key", ["content", "reasoning_content", "refusal"])
@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a \ud83d", "\udc1d b"], "a 🐝 b"),
        (["\ud83d", "", "\udc1d", "\ud83d", "\udc1d"], "🐝🐝"),
        (["a \ud83d", "b"], "a \ufffdb"),
        (["a", "\udc1d b"], "a\ufffd b"),
        (["a \ud83d"], "a "),
        (["\ud83d\udc1d"], "🐝"),
    ],
)
async def test_a_character_in_two_pieces_is_joined(key: str, pieces: list[str], text: str) -> None:
    """A server in JavaScript may cut an emoji between its surrogates; events and history have the emoji."""
    source = Source([{key: piece} for piece in pieces])
    shown: list[Any] = []
    async with AsyncSwarm(source).stream(Agent(), "Hi!") as run:
        async for event in run:
            shown.append(event.to_dict())  # noqa: PERF401 - the events are read one by one
    assert run.response.messages[0][key] == text
    pieces_of = [each["text"] for each in shown if each["type"] in ("TextDelta", "ReasoningDelta", "RefusalDelta")]
    assert "".join(pieces_of) == text
    json.dumps([shown, run.response.messages], ensure_ascii=False).encode()


@pytest.mark.parametrize("name", ["x" * 3, NAME])
async def test_a_local_fault_is_not_a_fault_of_the_provider(name: str) -> None:
    """A fault of a middleware that cannot be repaired is an error about the request."""

    def adding(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            request.body["metadata"] = {name: object()}
            async for chunk in handlers.complete(request):
                yield chunk

        return replace(handlers, complete=complete)

    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match="request") as caught:
        await AsyncSwarm(model.client(), middleware=[adding]).run(Agent(), "Hi!")
    assert "provider" not in str(caught.value)
    assert caught.value.response is not None


texts = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(
    ["\ud83d", "\udc1d", "\ud83d\udc1d", "\0", NAME]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3) | st.tuples(inner),
    max_leaves=6,
)


@given(value=values, text=texts, on_disk=st.booleans())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@pytest.mark.slow
def test_any_value_at_any_place_leaves_a_conversation_alive(
    tmp_path_factory: pytest.TempPathFactory, value: Any, text: str, on_disk: bool
) -> None:
    """Two more turns work, each request is JSON in UTF-8, and the context of the function is kept."""

    async def main() -> None:
        asked = {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "look", "arguments": "{}"}}]}
        source = Source([{"content": text}, asked], [{"content": text}], [{"content": text, "x": value}])

        async def look(context_variables: dict[str, Any]) -> Any:
            context_variables["seen"] = text
            return Result(value=value, context_variables={"more": [text]})

        agent = Agent(functions=[look], instructions=lambda: text)
        folder = tmp_path_factory.mktemp("stores")
        async with SQLiteStore(folder / "s") if on_disk else MemoryStore() as store:
            chat = store.conversation("c", AsyncSwarm(source), agent=agent)
            first = await chat.run("Hi!")
            assert (first.unknown_calls, len(first.messages)) == ([], 3)
            assert (await chat.run("More")).stop == "answer"
            last = await chat.run("More")
            assert last.stop == "answer"
            kept = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # pairs become characters
            assert last.context_variables == {"seen": kept, "more": [kept]}
        for body in source.bodies:
            json.dumps({**body, "messages": body["messages"]}, ensure_ascii=False).encode()

    anyio.run(main)
