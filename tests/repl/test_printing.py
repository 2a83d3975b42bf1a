"""`process_and_print_streaming_response` and `pretty_print_messages` print what Swarm prints."""

from __future__ import annotations

import io
import sys

import pytest

import aswarm.repl
from aswarm import Agent, AsyncSwarm, Response, Swarm
from aswarm.repl import pretty_print_messages, process_and_print_streaming_response
from aswarm.testing import Answer, ScriptedModel, call


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def asked(name: str, arguments: str) -> dict:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("name", aswarm.repl.__all__)
def test_public_functions_report_the_public_module(name):
    """Their `__module__` does not show in which private module they are defined."""
    assert getattr(aswarm.repl, name).__module__ == "aswarm.repl"


# --- pretty_print_messages --------------------------------------------------------------------------------------------


def test_assistants_are_printed_with_their_names(capsys):
    """The texts and calls of assistants, a line for each; user and tool messages are left out."""
    pretty_print_messages(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "sender": "Triage", "content": None, "tool_calls": [asked("look_up", '{"id": 4}')]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            {"role": "assistant", "sender": "Weather", "content": "It is sunny."},
        ]
    )
    assert capsys.readouterr().out == 'Triage: look_up("id"= 4)\nWeather: It is sunny.\n'


def test_several_calls_have_a_line_each(capsys):
    """A text before the calls has its own line too."""
    calls = [asked("a", "{}"), asked("b", "{")]
    pretty_print_messages([{"role": "assistant", "sender": "A", "content": "Let me see.", "tool_calls": calls}])
    assert capsys.readouterr().out == "A: Let me see.\nA: a()\nA: b({)\n"


def test_messages_of_other_libraries_are_printed_too(capsys):
    """A message without a sender, a refusal, an empty answer, content in parts."""
    pretty_print_messages(
        [
            {"role": "assistant", "content": "Hello"},
            {"role": "assistant", "content": None, "refusal": "I will not."},
            {"role": "assistant", "sender": "A", "content": ""},
            {"role": "assistant", "sender": "A", "content": [{"type": "text", "text": "parts"}]},
        ]
    )
    assert capsys.readouterr().out == "Assistant: Hello\nAssistant: I will not.\nA: \nA: parts\n"


def test_names_and_calls_have_swarms_colours_in_a_terminal(monkeypatch):
    """Names are blue and calls purple; with NO_COLOR there are no colours."""
    message = {"role": "assistant", "sender": "A", "content": None, "tool_calls": [asked("f", "{}")]}
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    pretty_print_messages([message])
    assert sys.stdout.getvalue() == "\033[94mA\033[0m: \033[95mf\033[0m()\n"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", Terminal())
    pretty_print_messages([message])
    assert sys.stdout.getvalue() == "A: f()\n"


def test_stdout_may_have_another_encoding(monkeypatch):
    """A character that it does not have is a question mark, not an error."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", newline="\n"))
    pretty_print_messages([{"role": "assistant", "sender": "A", "content": "18 °C 🐝"}])
    assert raw.getvalue() == b"A: 18 ?C ?\n"


# --- process_and_print_streaming_response -----------------------------------------------------------------------------

CHUNKS = [
    {"delim": "start"},
    {"role": "assistant", "sender": "Bot", "content": "", "tool_calls": None},
    {"content": "Let me "},
    {"content": "see."},
    {"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "look_up", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"name": None, "arguments": "{}"}}]},
    {"delim": "end"},
    {"delim": "start"},
    {"role": "assistant", "sender": "Other", "content": "Sunny."},
    {"delim": "end"},
]


def test_chunks_of_swarm_are_printed_and_the_response_returned(capsys):
    """The name comes before the first piece of a message; a call has its own line."""
    response = Response()
    assert process_and_print_streaming_response([*CHUNKS, {"response": response}]) is response
    assert capsys.readouterr().out == "Bot: Let me see.\nBot: look_up()\nOther: Sunny.\n"


def test_without_a_sender_there_is_no_name(capsys):
    """As in Swarm, where only the first delta has a sender."""
    process_and_print_streaming_response([{"content": "Hi"}, {"delim": "end"}, {"response": Response()}])
    assert capsys.readouterr().out == "Hi\n"


def test_a_closed_stream_gives_its_response():
    """Its `response`; a stream without one is an error."""

    class Closed(list):
        response = Response(stop="cancelled")

    assert process_and_print_streaming_response(Closed()).stop == "cancelled"
    with pytest.raises(ValueError, match="without a"):
        process_and_print_streaming_response(iter(CHUNKS))


def test_it_prints_the_stream_of_swarm(capsys):
    """With the import path of code that was written for Swarm."""
    from aswarm.repl.repl import process_and_print_streaming_response as from_there

    stream = Swarm(ScriptedModel(["Hello!"], cut=2).client()).run(Agent(name="Bot"), "Hi", stream=True)
    assert from_there(stream).text == "Hello!"
    assert capsys.readouterr().out == "Bot: Hello!\n"


@pytest.mark.anyio
async def test_it_prints_the_stream_of_async_swarm_when_awaited(capsys):
    """With `await`, the same function prints an async stream."""

    async def look_up(city: str) -> str:
        return "sunny"

    model = ScriptedModel([Answer("Hm.", calls=[call("look_up", city="Oslo")]), "It is sunny."], cut=3)
    stream = AsyncSwarm(model.client()).run(Agent(name="Bot", functions=[look_up]), "Hi", stream=True)
    response = await process_and_print_streaming_response(stream)
    assert response.text == "It is sunny."
    assert capsys.readouterr().out == "Bot: Hm.\nBot: look_up()\nBot: It is sunny.\n"
