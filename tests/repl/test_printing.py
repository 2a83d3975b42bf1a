"""`process_and_print_streaming_response` and `pretty_print_messages` print what Swarm prints."""

from __future__ import annotations

import io
import re
import sys

import pytest

from aswarm import Agent, AsyncSwarm, Response, Swarm
from aswarm.repl import pretty_print_messages, process_and_print_streaming_response
from aswarm.testing import ScriptedAnswer, ScriptedModel, call


def asked(name: str, arguments: str) -> dict:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


# --- pretty_print_messages --------------------------------------------------------------------------------------------


HISTORY = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "sender": "Triage", "content": None, "tool_calls": [asked("transfer_to_weather", "{}")]},
    {"role": "tool", "tool_call_id": "1", "tool_name": "transfer_to_weather", "content": "{}"},
    {
        "role": "assistant",
        "sender": "Weather",
        "content": "Let me see.",
        "tool_calls": [asked("look_up", '{"city": "Zürich", "at": "12:30", "days": [1, 2]}'), asked("now", "{}")],
    },
    {"role": "assistant", "sender": "Weather", "content": "It is\nsunny: 18 °C.", "tool_calls": None},
    {"role": "assistant", "sender": "Weather", "content": ""},
]
# The output of the code of Swarm for this history.
PRINTED = (
    "\x1b[94mTriage\x1b[0m: \x1b[95mtransfer_to_weather\x1b[0m()\n"
    "\x1b[94mWeather\x1b[0m: Let me see.\n"
    "\n"
    '\x1b[95mlook_up\x1b[0m("city"= "Z\\u00fcrich", "at"= "12=30", "days"= [1, 2])\n'
    "\x1b[95mnow\x1b[0m()\n"
    "\x1b[94mWeather\x1b[0m: It is\nsunny: 18 °C.\n"
    "\x1b[94mWeather\x1b[0m: "
)


@pytest.fixture(autouse=True)
def colours(monkeypatch):
    """Remove NO_COLOR from the environment."""
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_messages_are_printed_as_swarm_prints_them(capsys):
    """Messages are printed byte for byte like Swarm, also without a terminal."""
    pretty_print_messages(HISTORY)
    assert capsys.readouterr().out == PRINTED


def test_no_color_switches_the_colours_of_messages_off(capsys, monkeypatch):
    """NO_COLOR removes only the colours, and an empty NO_COLOR does not count."""
    monkeypatch.setenv("NO_COLOR", "")
    pretty_print_messages(HISTORY)
    assert capsys.readouterr().out == PRINTED
    monkeypatch.setenv("NO_COLOR", "1")
    pretty_print_messages(HISTORY)
    assert capsys.readouterr().out == re.sub(r"\x1b\[\d+m", "", PRINTED)


def test_messages_for_which_swarm_fails_are_printed_too(capsys, monkeypatch):
    """Messages without a sender, with a refusal, with parts or with invalid arguments are printed."""
    monkeypatch.setenv("NO_COLOR", "1")
    calls = [asked("a", "{"), asked("b", ""), asked("c\n", "[1]")]
    pretty_print_messages(
        [
            {"role": "assistant", "content": "Hello"},
            {"role": "assistant", "content": None, "refusal": "I will not."},
            {"role": "assistant", "sender": "A", "content": [{"type": "text", "text": "parts\x1b[2J"}]},
            {"role": "assistant", "sender": "A", "content": "Hm.", "tool_calls": calls},
        ]
    )
    assert capsys.readouterr().out == (
        "Assistant: Hello\nAssistant: I will not.\nA: parts\u241b[2J\nA: Hm.\n\na({)\nb()\nc(1)\n"
    )


def test_stdout_may_have_another_encoding(monkeypatch):
    """A character that the encoding of stdout lacks is a question mark."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", newline="\n"))
    pretty_print_messages([{"role": "assistant", "sender": "A", "content": "18 °C 🐝"}])
    assert raw.getvalue() == b"\x1b[94mA\x1b[0m: 18 ?C ?\n"


@pytest.mark.parametrize("error", [OSError(28, "No space left"), BrokenPipeError()])
def test_stdout_that_cannot_be_written(monkeypatch, error):
    """An error of stdout is another OSError with the reason, and a broken pipe stays the same."""

    def write(_: str) -> int:
        raise error

    monkeypatch.setattr(sys.stdout, "write", write)
    with pytest.raises(OSError) as caught:
        pretty_print_messages(HISTORY)
    assert caught.value.strerror == error.strerror
    assert (caught.value is error) is isinstance(error, BrokenPipeError)


# --- process_and_print_streaming_response -----------------------------------------------------------------------------

CHUNKS = [
    {"delim": "start"},
    {"role": "assistant", "sender": "Triage", "content": "", "tool_calls": None},
    {"content": None, "tool_calls": [{"index": 0, **asked("look_up", "")}]},
    {"content": None, "tool_calls": [{"index": 0, "function": {"name": None, "arguments": "{}"}}]},
    {"delim": "end"},
    {"delim": "start"},
    {"role": "assistant", "sender": "Weather", "content": None, "tool_calls": [{"index": 0, **asked("now", "{}")}]},
    {"delim": "end"},
    {"delim": "start"},
    {"role": "assistant", "sender": "Weather", "content": "Sun", "tool_calls": None},
    {"content": "ny."},
    {"content": None, "tool_calls": [{"index": 0, **asked("again", "{}")}]},
    {"delim": "end"},
    {"delim": "start"},
    {"content": "No name."},
    {"delim": "end"},
]
# The output of the code of Swarm for these events.
PRINTED_CHUNKS = (
    "\x1b[94mTriage:\x1b[0m \x1b[94m: \x1b[95mlook_up\x1b[0m()\n"
    "\x1b[94mWeather: \x1b[95mnow\x1b[0m()\n"
    "\x1b[94mWeather:\x1b[0m Sunny.\x1b[94m: \x1b[95magain\x1b[0m()\n"
    "\n"
    "No name.\n"
)


def test_events_are_printed_as_swarm_prints_them_and_the_response_returned(capsys, monkeypatch):
    """Events are printed byte for byte like Swarm, and NO_COLOR removes the colours."""
    response = Response()
    assert process_and_print_streaming_response([*CHUNKS, {"response": response}]) is response
    assert capsys.readouterr().out == PRINTED_CHUNKS
    monkeypatch.setenv("NO_COLOR", "1")
    process_and_print_streaming_response([*CHUNKS, {"response": response}])
    assert capsys.readouterr().out == re.sub(r"\x1b\[\d+m", "", PRINTED_CHUNKS)


def test_a_closed_stream_gives_its_response():
    """A closed stream gives its `response`, and a stream without a response is an error."""

    class Closed(list):
        response = Response(stop="cancelled")

    assert process_and_print_streaming_response(Closed()).stop == "cancelled"
    with pytest.raises(ValueError, match="without a"):
        process_and_print_streaming_response(iter(CHUNKS))


def test_it_prints_the_stream_of_swarm(capsys):
    """The import path of Swarm prints a stream of `Swarm`."""
    from aswarm.repl.repl import process_and_print_streaming_response as from_there

    stream = Swarm(ScriptedModel(["Hello!"], cut=2).client()).run(Agent(name="Bot"), "Hi", stream=True)
    assert from_there(stream).text == "Hello!"
    assert capsys.readouterr().out == "\x1b[94mBot:\x1b[0m Hello!\n"


async def test_it_prints_the_stream_of_async_swarm_when_awaited(capsys):
    """With `await`, the same function prints an async stream."""

    async def look_up(city: str) -> str:
        return "sunny"

    model = ScriptedModel([ScriptedAnswer("Hm.", calls=[call("look_up", city="Oslo")]), "It is sunny."], cut=3)
    stream = AsyncSwarm(model.client()).run(Agent(name="Bot", functions=[look_up]), "Hi", stream=True)
    response = await process_and_print_streaming_response(stream)
    assert response.text == "It is sunny."
    assert capsys.readouterr().out == (
        "\x1b[94mBot:\x1b[0m Hm.\x1b[94m: \x1b[95mlook_up\x1b[0m()\n\n\x1b[94mBot:\x1b[0m It is sunny.\n"
    )
