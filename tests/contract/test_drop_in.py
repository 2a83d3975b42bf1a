"""Code written for Swarm, with nothing changed but the name of the package.

The clients, agents and printers here are written as people wrote them for Swarm; what is imported, passed, read and
asserted is what Swarm offers.
"""

from __future__ import annotations

import io
import json
import sys
from collections import defaultdict
from typing import Any
from unittest.mock import MagicMock

import pytest
from openai.types.chat.chat_completion import ChatCompletion, Choice
from openai.types.chat.chat_completion_chunk import ChatCompletionChunk

from aswarm import Agent, Response, Swarm
from aswarm.core import Swarm as CoreSwarm
from aswarm.testing import ScriptedAnswer, call
from aswarm.types import AgentFunction, ChatCompletionMessage, ChatCompletionMessageToolCall, Function, Result
from aswarm.util import debug_print, function_to_json, merge_chunk
from tests.support.providers.bodies import chunks

HELLO = [{"role": "user", "content": "Hello"}]


def reply(content: str | None = None, calls: list[dict[str, Any]] | None = None) -> ChatCompletion:
    """A completion as tests of Swarm make it: with one id for every call, and "stop" even where something is called."""
    tool_calls = [
        ChatCompletionMessageToolCall(
            id="mock_tc_id",
            type="function",
            function=Function(name=made["name"], arguments=json.dumps(made.get("args", {}))),
        )
        for made in calls or ()
    ]
    message = ChatCompletionMessage(role="assistant", content=content, tool_calls=tool_calls or None)  # type: ignore[arg-type]
    choice = Choice(message=message, finish_reason="stop", index=0)
    return ChatCompletion(id="mock", created=1, model="gpt-6-luna", object="chat.completion", choices=[choice])


class MockOpenAIClient:
    def __init__(self, *responses: ChatCompletion) -> None:
        self.chat = MagicMock()
        self.chat.completions = MagicMock()
        self.chat.completions.create.side_effect = responses

    def set_response(self, response: ChatCompletion) -> None:
        self.chat.completions.create.side_effect = None
        self.chat.completions.create.return_value = response

    def assert_create_called_with(self, **kwargs: Any) -> None:
        self.chat.completions.create.assert_called_with(**kwargs)


def test_a_simple_message() -> None:
    """The whole of a test of many a project; the same reply may be given for ever."""
    mock = MockOpenAIClient()
    mock.set_response(reply("sample"))
    client = Swarm(client=mock)
    for _ in range(2):
        response = client.run(agent=Agent(), messages=HELLO)
        assert response.messages[-1]["role"] == "assistant"
        assert response.messages[-1]["content"] == "sample"
        assert response.messages[-1]["sender"] == "Agent"
    mock.assert_create_called_with(
        model="gpt-6-luna", messages=[{"role": "system", "content": "You are a helpful agent."}, *HELLO], stream=False
    )
    assert client.client is mock
    assert CoreSwarm is Swarm


def test_a_tool_call() -> None:
    """The function gets the arguments of the model, and its result goes back under the id of the call."""
    asked = MagicMock()

    def get_weather(location):  # type: ignore[no-untyped-def]
        asked(location=location)
        return "sunny"

    mock = MockOpenAIClient(reply("", [{"name": "get_weather", "args": {"location": "Rome"}}]), reply("It is sunny."))
    agent = Agent(name="Test", functions=[get_weather])
    response = Swarm(client=mock).run(agent=agent, messages=HELLO)
    asked.assert_called_once_with(location="Rome")
    assert response.messages[1] == {
        "role": "tool",
        "tool_call_id": "mock_tc_id",
        "tool_name": "get_weather",
        "content": "sunny",
    }
    assert response.messages[-1]["content"] == "It is sunny."
    sent = mock.chat.completions.create.call_args_list[0].kwargs
    assert sent["tools"] == [function_to_json(get_weather)]
    assert sent["parallel_tool_calls"] is True


def test_execute_tools_false() -> None:
    """The calls are left to whoever asked."""
    called = MagicMock()

    def get_weather(location):  # type: ignore[no-untyped-def]
        called()

    mock = MockOpenAIClient(reply("", [{"name": "get_weather", "args": {"location": "Rome"}}]))
    agent = Agent(functions=[get_weather])
    response = Swarm(client=mock).run(agent=agent, messages=HELLO, execute_tools=False)
    called.assert_not_called()
    tool_calls = response.messages[-1].get("tool_calls")
    assert tool_calls is not None
    assert tool_calls[0]["function"]["name"] == "get_weather"
    assert json.loads(tool_calls[0]["function"]["arguments"]) == {"location": "Rome"}


def test_a_handoff_and_context_variables() -> None:
    """A function returns the next agent; a `Result` brings all three; instructions see the context."""

    def transfer() -> Result:
        return Result(value="transferred", agent=second, context_variables={"department": "sales"})

    def who(context_variables):  # type: ignore[no-untyped-def]
        context_variables["asked"] = True
        return f"{context_variables['user']} of {context_variables['department']}"

    def instructions(context_variables):  # type: ignore[no-untyped-def]
        return f"Help {context_variables['user']}{context_variables['unknown']}."

    functions: list[AgentFunction] = [transfer]
    first, second = Agent(name="First", functions=functions), Agent(name="Second", instructions=instructions)
    second.functions.append(who)
    mock = MockOpenAIClient(reply(None, [{"name": "transfer"}]), reply(None, [{"name": "who"}]), reply("Done"))
    given = {"user": "Ann"}
    response = Swarm(mock).run(first, HELLO, context_variables=given)
    assert given == {"user": "Ann"}
    assert response.agent == second
    assert response.context_variables == {"user": "Ann", "department": "sales", "asked": True}
    assert [message["content"] for message in response.messages if message["role"] == "tool"] == [
        "transferred",
        "Ann of sales",
    ]
    assert mock.chat.completions.create.call_args.kwargs["messages"][0]["content"] == "Help Ann."


def streaming(*answers: ScriptedAnswer) -> MagicMock:
    """A client whose streams are lists of chunks of the SDK."""
    client = MagicMock()
    client.chat.completions.create.side_effect = [
        [ChatCompletionChunk.model_validate({"created": 1, **chunk}) for chunk in chunks(answer, 3)]
        for answer in answers
    ]
    return client


def show(response: Any) -> Response | None:
    """A printer of Swarm's stream, as terminals written for Swarm have it."""
    content, sender = "", ""
    for chunk in response:
        if "sender" in chunk:
            sender = chunk["sender"]
        if "content" in chunk and chunk["content"] is not None:
            if not content and sender:
                print(f"{sender}: ", end="")
                sender = ""
            print(chunk["content"], end="")
            content += chunk["content"]
        if "tool_calls" in chunk and chunk["tool_calls"] is not None:
            for tool_call in chunk["tool_calls"]:
                if tool_call["function"]["name"]:
                    print(f"{sender}: {tool_call['function']['name']}()")
        if "delim" in chunk and chunk["delim"] == "end" and content:
            print()
            content = ""
        if "response" in chunk:
            return chunk["response"]  # type: ignore[no-any-return]
    return None


@pytest.mark.parametrize("way", ["run", "run_and_stream"])
def test_a_streaming_printer(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who speaks, what is called, the text as it comes, and last the response."""

    def transfer() -> Agent:
        return sales

    sales = Agent(name="Sales")
    triage = Agent(name="Triage", functions=[transfer])
    swarm = Swarm(
        streaming(
            ScriptedAnswer("One moment."),
            ScriptedAnswer(calls=[call("transfer")]),
            ScriptedAnswer("What may I sell you?"),
        )
    )

    def run(**options: Any) -> Any:
        return swarm.run(stream=True, **options) if way == "run" else swarm.run_and_stream(**options)

    show(run(agent=triage, messages=HELLO))
    response = show(run(agent=triage, messages=HELLO, context_variables={}, debug=False))
    assert capsys.readouterr().out == "Triage: One moment.\nTriage: transfer()\nSales: What may I sell you?\n"
    assert response is not None
    assert response.agent == sales
    assert [message["sender"] for message in response.messages if message["role"] == "assistant"] == ["Triage", "Sales"]


def test_a_loop_that_merges_the_chunks() -> None:
    """The deltas, merged as Swarm did it, are the messages of the response."""

    def ask(what):  # type: ignore[no-untyped-def]
        return what

    swarm = Swarm(streaming(ScriptedAnswer("Yes.", calls=[call("ask", what="a"), call("ask", what="b")])))
    agent = Agent(functions=[ask])
    messages: list[dict[str, Any]] = []
    for chunk in swarm.run(agent, HELLO, stream=True, execute_tools=False):
        if chunk.get("delim") == "start":
            message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": defaultdict(dict)}
        elif chunk.get("delim") == "end":
            messages.append({**message, "tool_calls": list(message["tool_calls"].values())})
        elif "response" in chunk:
            assert messages == [
                {key: made[key] for key in ("role", "content", "tool_calls", "sender")}
                for made in chunk["response"].messages
            ]
        else:
            merge_chunk(message, chunk)


def test_a_loop_that_joins_arguments_as_with_openais_own_chunks() -> None:
    """Arguments that the server sent as empty text are empty text, and can be added to."""
    client = MagicMock()
    fragments = [("c1", "ask", ""), (None, None, '{"what":'), (None, None, ' "a"}')]
    client.chat.completions.create.side_effect = [[_with_fragment(*fragment) for fragment in fragments]]
    arguments = ""
    for chunk in Swarm(client).run(Agent(), HELLO, stream=True, execute_tools=False):
        for tool_call in chunk.get("tool_calls") or ():
            arguments += tool_call["function"]["arguments"]
    assert json.loads(arguments) == {"what": "a"}


def _with_fragment(call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    fragment = {"index": 0, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [fragment]}}]}


def test_a_conversation_that_goes_on() -> None:
    """The loop without helpers: the next run gets the messages and the agent of the run before."""

    def transfer() -> Agent:
        return second

    second = Agent(name="Second")
    mock = MockOpenAIClient(reply(None, [{"name": "transfer"}]), reply("Hello"), reply("Still here"))
    client, agent, messages = Swarm(client=mock), Agent(name="First", functions=[transfer]), []
    for text in ("Hi", "And now?"):
        messages.append({"role": "user", "content": text})
        response = client.run(agent=agent, messages=messages)
        messages.extend(response.messages)
        agent = response.agent  # type: ignore[assignment]
    assert agent is second
    assert [message["content"] for message in messages] == [
        "Hi",
        None,
        '{"assistant": "Second"}',
        "Hello",
        "And now?",
        "Still here",
    ]


def stored(message: ChatCompletionMessage, sender: str) -> dict[str, Any]:
    """A message as Swarm put it into its history: everything that the class of the SDK has, and the sender."""
    message.sender = sender  # type: ignore[attr-defined]
    stored: dict[str, Any] = json.loads(message.model_dump_json())
    return stored


def test_a_history_that_swarm_has_stored() -> None:
    """A request has no keys that only the SDK added to answers: nulls, empty lists, and the citations that the API does not take."""
    citation = {"start_index": 0, "end_index": 4, "title": "Rome", "url": "https://rome.example"}
    calling = reply(None, [{"name": "look"}]).choices[0].message
    calling.annotations = []
    citing = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": "Rome", "annotations": [{"type": "url_citation", "url_citation": citation}]}
    )
    answer = {"role": "tool", "tool_call_id": "mock_tc_id", "tool_name": "look", "content": "Rome"}
    streamed = {"content": "Hi", "sender": "Agent", "role": "assistant", "function_call": None, "tool_calls": None}
    history = [*HELLO, stored(calling, "Agent"), answer, stored(citing, "Agent"), streamed, *HELLO]
    before = json.dumps(history)
    assert {"refusal", "annotations", "audio", "function_call", "sender"} <= history[1].keys()
    mock = MockOpenAIClient(reply("Done"))
    Swarm(mock).run(Agent(), history)
    call_sent = {"id": "mock_tc_id", "function": {"arguments": "{}", "name": "look"}, "type": "function"}
    assert mock.chat.completions.create.call_args.kwargs["messages"][1:] == [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call_sent]},
        {"role": "tool", "tool_call_id": "mock_tc_id", "content": "Rome"},
        {"role": "assistant", "content": "Rome"},
        {"role": "assistant", "content": "Hi"},
        *HELLO,
    ]
    assert json.dumps(history) == before


def test_debug_print(capsys: pytest.CaptureFixture[str]) -> None:
    """`debug_print` prints only if its first argument is true."""
    debug_print(False, "nothing")
    debug_print(True, "some", "thing", 1)
    out = capsys.readouterr().out
    assert "some thing 1" in out
    assert "nothing" not in out


@pytest.mark.parametrize(
    ("encoding", "shown"), [("cp1252", "Zürich \\u2603 \\ud800"), ("ascii", "Z\\xfcrich \\u2603 \\ud800")]
)
def test_debug_output_in_an_encoding_that_lacks_characters(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are printed as escapes, so that the run goes on; a program without stdout prints nothing."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, write_through=True))
    debug_print(True, "Zürich \u2603 \ud800")
    assert written.getvalue().decode(encoding).endswith(f"{shown}\n")
    monkeypatch.setattr(sys, "stdout", None)
    debug_print(True, "nothing")


def test_where_an_example_of_swarms_looks_for_triage() -> None:
    """Its module had no such file."""


def test_a_name_that_swarm_did_not_have() -> None:
    """Is an ImportError, as in any module."""
    with pytest.raises(ImportError):
        from aswarm.types import Nothing  # type: ignore[attr-defined] # noqa: F401
