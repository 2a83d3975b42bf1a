"""Clients as people write them: mocks in every style, patched clients, dicts, and a `CompletionSource`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from openai import AsyncOpenAI
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from aswarm import Agent, AsyncSwarm, CompletionError, Response
from aswarm.errors import StreamInterrupted
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.providers.faces import respond
from tests.support.providers.loopback import data_of, sse, whole
from tests.support.run.ways_to_run import FACES

pytestmark = pytest.mark.asyncio

# One id for every call, as in Swarm's own mock client.
CALL = ScriptedAnswer(
    calls=[call("look", what="x", call_id="mock_tc_id"), call("look", what="y", call_id="mock_tc_id")]
)
SCRIPT = [CALL, CALL, ScriptedAnswer("Done")]


def look(what: str) -> str:
    return f"{what} seen"


async def through(client: Any, face: str) -> Response:
    """Return the response of the whole conversation of `SCRIPT`."""
    return await respond(AsyncSwarm(client=client), face, Agent(functions=[look]), "Go")


def check(response: Response) -> None:
    """Check the result of the conversation, which is the same with any client."""
    check_history(response.messages)
    tools = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert tools == ["x seen", "y seen"] * 2
    assert (response.text, response.stop) == ("Done", "answer")


def completion(answer: ScriptedAnswer) -> dict[str, Any]:
    """Return a whole completion."""
    return data_of(whole(answer))[0]


def chunks(answer: ScriptedAnswer) -> list[dict[str, Any]]:
    """Return the chunks of a stream."""
    return data_of(sse(answer, cut=2))


def typed(answer: ScriptedAnswer) -> ChatCompletion:
    """As the SDK gives a whole completion."""
    return ChatCompletion.model_validate({"created": 1, **completion(answer)})


def typed_chunks(answer: ScriptedAnswer) -> list[ChatCompletionChunk]:
    """As the SDK gives the chunks of a stream."""
    return [ChatCompletionChunk.model_validate({"created": 1, **chunk}) for chunk in chunks(answer)]


def simple(value: Any) -> Any:
    """Attribute objects all the way down."""
    if isinstance(value, Mapping):
        return SimpleNamespace(**{key: simple(item) for key, item in value.items()})
    return [simple(item) for item in value] if isinstance(value, list) else value


def mock(value: Any) -> Any:
    """MagicMocks all the way down, as in most test suites."""
    if isinstance(value, Mapping):
        made = MagicMock()
        for key, item in value.items():
            setattr(made, key, mock(item))
        return made
    return [mock(item) for item in value] if isinstance(value, list) else value


async def slowly(items: list[Any]) -> AsyncIterator[Any]:
    for item in items:
        await asyncio.sleep(0)
        yield item


REPLIES: dict[str, Callable[[ScriptedAnswer], Any]] = {
    "ChatCompletion": typed,
    "dict": completion,
    "SimpleNamespace": lambda answer: simple(completion(answer)),
    "MagicMock": lambda answer: mock(completion(answer)),
    "list of chunks": typed_chunks,
    "generator": lambda answer: (chunk for chunk in typed_chunks(answer)),
    "async generator": lambda answer: slowly(typed_chunks(answer)),
    "dict chunks": chunks,
    "SimpleNamespace chunks": lambda answer: slowly([simple(chunk) for chunk in chunks(answer)]),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
@pytest.mark.parametrize("mocked", [AsyncMock, MagicMock, lambda: AsyncMock(spec=AsyncOpenAI), "spec"])
async def test_mock_clients(mocked: Any, reply: Callable[[ScriptedAnswer], Any], face: str) -> None:
    """Every kind of mock client with every kind of reply leads to the same conversation, through every face."""
    client = MagicMock(spec=AsyncOpenAI) if mocked == "spec" else mocked()
    client.chat.completions.create.side_effect = [reply(answer) for answer in SCRIPT]
    check(await through(client, face))
    requests = [dict(made.kwargs) for made in client.chat.completions.create.call_args_list]
    assert [request["stream"] for request in requests] == [face != "run"] * 3
    assert all("stream_options" not in request for request in requests)
    assert [len(request["messages"]) for request in requests] == [2, 5, 8], "each call has a list of its own"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("make", [simple, mock, dict], ids=["SimpleNamespace", "MagicMock", "dict"])
async def test_a_reply_with_nothing_but_a_message(make: Callable[[Any], Any], face: str) -> None:
    """A whole reply without finish_reason, usage or index, as short mocks are, has finished: Swarm never read those."""
    client = AsyncMock()
    message = {"role": "assistant", "content": "Hi", "tool_calls": None}
    client.chat.completions.create.return_value = make({"choices": [{"message": message}]})
    response = await through(client, face)
    assert response.messages == [{"role": "assistant", "content": "Hi", "sender": "Agent", "tool_calls": None}]


async def test_a_stream_without_finish_reason_has_finished() -> None:
    """A mock's stream that simply ends is whole."""
    client = AsyncMock()
    client.chat.completions.create.return_value = slowly([{"choices": [{"delta": {"content": "Hi"}}]}])
    assert (await through(client, "stream")).text == "Hi"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("mocked", [AsyncMock, MagicMock])
async def test_an_exhausted_mock_is_a_completion_error(mocked: type[MagicMock], face: str) -> None:
    """A mock with too few replies is a CompletionError that keeps the earlier messages, never a silent end."""
    client = mocked()
    client.chat.completions.create.side_effect = [typed(CALL)]
    with pytest.raises(CompletionError) as caught:
        await through(client, face)
    assert caught.value.response is not None
    assert [message["role"] for message in caught.value.response.messages] == ["assistant", "tool", "tool"]
    assert caught.value.response.stop == "error"
    assert isinstance(caught.value.__cause__, StopIteration | StopAsyncIteration)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "reply",
    [AsyncMock(), MagicMock(), None, 7, [], "text"],
    ids=["AsyncMock", "MagicMock", "None", "int", "list", "str"],
)
async def test_a_reply_that_is_no_completion(reply: object, face: str) -> None:
    """A mock that nobody gave a reply, or a wrong one, is a CompletionError and never an empty answer."""
    client = AsyncMock()
    client.chat.completions.create.return_value = reply
    with pytest.raises(CompletionError):
        await through(client, face)


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (429, True)])
@pytest.mark.parametrize("begun", [False, True])
async def test_an_error_at_the_first_step_of_a_stream_keeps_its_status(
    begun: bool, status: int, retryable: bool
) -> None:
    """LiteLLM sends a request to Gemini at the first step of the stream: a 400 there is no broken stream."""

    class Refused(Exception):
        status_code = status

    async def create(**_: Any) -> AsyncIterator[dict[str, Any]]:
        async def stream() -> AsyncIterator[dict[str, Any]]:
            if begun:
                yield {"choices": [{"delta": {"content": "Hel"}}]}
            raise Refused("not so")

        return stream()

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    with pytest.raises(CompletionError, match="not so") as caught:
        await through(client, "stream")
    error = caught.value
    assert isinstance(error, StreamInterrupted) == begun
    assert (error.status_code, error.retryable) == ((None, True) if begun else (status, retryable))
    assert ("model 'gpt-6-luna'" in str(error)) != begun


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("where", ["instance", "class"])
async def test_a_patched_create_is_called(where: str, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real client whose `create` somebody patched, on the instance or the class, is called through the patch."""
    model, client, replies = ScriptedModel([]), None, iter(SCRIPT)
    client = model.client()
    seen: list[list[str]] = []

    async def create(*args: Any, **request: Any) -> Any:
        seen.append([message["role"] for message in request["messages"]])
        return slowly(typed_chunks(next(replies))) if request["stream"] else typed(next(replies))

    monkeypatch.setattr(client.chat.completions if where == "instance" else AsyncCompletions, "create", create)
    check(await through(client, face))
    assert model.requests == []
    assert [len(roles) for roles in seen] == [2, 5, 8]


@pytest.mark.parametrize(("include_usage", "expected"), [(None, None), (True, {"include_usage": True}), (False, None)])
async def test_a_client_that_is_said_to_know_stream_options_gets_them(
    include_usage: bool | None, expected: dict[str, bool] | None
) -> None:
    """A `create` that takes any arguments may or may not know stream options."""
    asked: list[dict[str, Any]] = []

    async def create(**arguments: Any) -> Any:
        asked.append(arguments)
        return iter(chunks(ScriptedAnswer("Done")))

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    swarm = AsyncSwarm(client, include_usage=include_usage)
    response = [event async for event in swarm.run(Agent(), "Go", stream=True)][-1]["response"]
    assert response.text == "Done"
    assert asked[0].get("stream_options") == expected
