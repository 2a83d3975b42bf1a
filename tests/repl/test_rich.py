"""The chat in a terminal: its display, the answers that grow on the screen, and the terminals without it."""

from __future__ import annotations

import io
import re
import sys
import termios
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aswarm import Agent
from aswarm.conversations import Change, SQLiteStore
from aswarm.repl import run_demo_loop
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.repl.chats import RichChat, Tty, TypedLines

TRIAGE = Agent(name="Triage")


def silent(text: str, **fields: Any) -> ScriptedModel:
    """Return a model that sends no usage, which the chat would show."""
    return ScriptedModel([ScriptedAnswer(text, usage=None, **fields)])


class Pieces:
    """A model that sends these deltas, and calls `look` after each of them."""

    def __init__(self, look: Callable[[], object], *deltas: dict[str, str]) -> None:
        self._look = look
        self._deltas = deltas

    async def complete(self, request: Any) -> AsyncIterator[dict[str, Any]]:
        for delta in self._deltas:
            yield {"choices": [{"index": 0, "delta": delta}]}
            self._look()
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def looks(rich: RichChat, *deltas: str | dict[str, str], stream: bool = True) -> list[list[str]]:
    """Return the screen after each delta of an answer, and at the end."""
    seen: list[list[str]] = []
    given = [{"content": each} if isinstance(each, str) else each for each in deltas]
    end = rich(["Hi"], TRIAGE, Pieces(lambda: seen.append(rich.seen), *given), stream=stream)
    return [*seen, end]


@pytest.mark.parametrize("stream", [True, False])
def test_a_run_with_tools_and_a_handoff(rich, stream):
    """The screen has the speaker, the calls with arguments and results, the handoff, and the usage."""

    async def look_up(city: str) -> str:
        """Look up the weather."""
        return "sunny\n18 degrees"

    weather = Agent(name="Weather", functions=[look_up])

    def to_weather() -> Agent:
        """Hand off."""
        return weather

    calls = [call("look_up", city="Oslo"), call("nope")]
    model = ScriptedModel([call("to_weather"), ScriptedAnswer("Let me *see*.", calls=calls), "It is **sunny**."], cut=4)
    assert rich(["Hi"], Agent(name="Triage", functions=[to_weather]), model, stream=stream) == [
        "",
        "Triage",
        "  → to_weather()",
        '  ← to_weather: {"assistant": "Weather"}',
        "  Triage ⇒ Weather",
        "",
        "Weather",
        "Let me see.",
        "",
        '  → look_up(city="Oslo")',
        "  → nope()",
        "  ← look_up: sunny",
        "    18 degrees",
        "  ✗ nope: Error: Tool nope not found. Tools: look_up.",
        "",
        "It is sunny.",
        "",
        "45 tokens (30 in, 15 out), 3 requests",
    ]
    colours = [re.findall(rf"\x1b\[1;(\d+)m{name}", rich.stdout.getvalue())[0] for name in ("Triage", "Weather")]
    assert len({*colours}) == 2


def test_an_answer_grows_on_the_screen(rich):
    """Finished blocks are printed once, and the unfinished end is shown in place, as Markdown."""
    first, _, third, fourth, end = looks(rich, "- a\n- **b", "**\n\nNow", " what?\n\n", "The *end*.\n")
    assert first == ["", "Triage", " • a", " • **b"]
    assert third[2:] == [" • a", " • b", "", "Now what?"]
    assert fourth[2:] == end[2:] == [" • a", " • b", "", "Now what?", "", "The end."]


def test_a_text_is_whole_before_a_long_call(rich, monkeypatch):
    """A refresh that was left out, because the last one was slow, comes before the arguments of a call."""
    monkeypatch.setattr("aswarm.repl._rich._REST", 1e9)
    made = {"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}]}
    model = Pieces(lambda: seen.append(rich.seen), {"content": "Let "}, {"content": "me see."}, made, made)
    seen: list[list[str]] = []
    rich(["Hi"], TRIAGE, model, max_turns=1)
    assert [screen[2] for screen in seen] == ["Let", "Let", "Let me see.", "Let me see."]


def test_without_streaming_an_answer_is_shown_at_its_end(rich):
    """Without streaming, reasoning and pieces of an answer are not shown before its end."""
    *before, end = looks(rich, {"reasoning_content": "Hm."}, "He", "llo", stream=False)
    assert not any("Hm." in line or "He" in line for seen in before for line in seen)
    assert end == ["", "Triage", "Hello"]


def test_reasoning_is_shown_and_removed(rich):
    """The end of the reasoning is shown until the answer starts."""
    reasoning, _, end = looks(rich, {"reasoning_content": "Long ago. " * 100 + "The user greets."}, "Hello!")
    assert " ".join(reasoning).endswith("The user greets.")
    assert len(reasoning) < 10
    assert end == ["", "Triage", "Hello!"]


@pytest.mark.parametrize("stream", [True, False])
def test_refusals_are_shown(rich, stream):
    """A refusal is shown like an answer, and without usage there is no line of usage."""
    model = silent("", extra={"refusal": "I will not."})
    assert rich(["Hi"], TRIAGE, model, stream=stream) == ["", "Triage", "I will not."]


def test_no_text_controls_the_terminal(rich):
    """The texts of models and tools, and the names of agents, have no control characters on the screen."""

    def look_up() -> str:
        """Look up."""
        return "\x1b[2J\nlook"

    model = ScriptedModel([ScriptedAnswer("\x1b[2Jhello", calls=[call("look_up"), call("\x1b[2J")]), "[red]done[/red]"])
    seen = rich(["Hi"], Agent(name="\x1b[2JBot", functions=[look_up]), model)
    assert "\x1b[2J" not in rich.stdout.getvalue()
    assert "[red]done[/red]" in seen
    assert seen[1:3] == ["␛[2JBot", "␛[2Jhello"]


def test_long_results_and_arguments_are_cut(rich):
    """Only the first lines of a result and the first characters of arguments are shown."""

    def look_up(text: str) -> str:
        """Look up."""
        return "\n".join("abcdefghij") if text == "long" else ""

    calls = [call("look_up", text="long"), call("look_up", text=""), call("look_up", text="x" * 5000)]
    seen = rich(["Hi"], Agent(name="Bot", functions=[look_up]), ScriptedModel([calls, "Done."]))
    assert "    … 4 more lines" in seen
    assert "  ← look_up:" in seen
    assert any(line.endswith("...)") for line in seen)


def test_texts_of_the_chat_are_no_markup(rich):
    """An error of the chat is one line, and is not read as markup."""
    assert rich(["/[bold]c[/bold]"], TRIAGE, silent("")) == [
        "There is no command /[bold]c[/bold]. See /help, or start with a space to send",
        "the line.",
    ]


def test_a_history_is_shown_as_it_was_printed(rich, tmp_path):
    """`/history` shows the messages of all roles, with calls and results."""
    made = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Oslo"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "sender": "Bot", "content": "Let me see.", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "assistant", "content": "**Sunny**"},
    ]

    async def write() -> None:
        async with SQLiteStore(tmp_path / "chat.sqlite") as store:
            await store.write("conversation", Change("", "1", 0, messages, "Bot", {}))

    anyio.run(write)
    seen = rich([f"/load {tmp_path / 'chat.sqlite'}", "/history"], TRIAGE, silent(""))
    assert [line for line in seen if line][-8:] == [
        "System: Be kind.",
        "User: Weather?",
        "Bot",
        "Let me see.",
        '  → look_up(city="Oslo")',
        "  ← tool: sunny",
        "Assistant",
        "Sunny",
    ]


def test_other_output_is_printed_above_the_answer(rich):
    """A `print` of a program does not break the answer on the screen."""
    model = Pieces(lambda: print("by the way"), {"content": "Hello"})
    assert rich(["Hi"], TRIAGE, model) == ["", "Triage", "by the way", "Hello"]
    assert sys.stdout is rich.stdout


# --- Markdown ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# Head\n\ntext", ["Head", "", "text"]),
        ("## Head", ["Head"]),
        ("one\ntwo", ["one", "two"]),
        ("- a\n- b", [" • a", " • b"]),
        ("3. c\n4. d", [" 3 c", " 4 d"]),
        ("List<String> <b>x</b>", ["List<String> <b>x</b>"]),
        ("<div>\n\ntext", ["<div>", "", "text"]),
        ("[here](http://else.where)", ["here (http://else.where)"]),
        ("[bold]not markup[/bold] :bee:", ["[bold]not markup[/bold] :bee:"]),
        ("```python\nprint(1)\n```", [" print(1)"]),
        ("> one\n> two", ["▌ one", "▌ two"]),
        ("a ~~b~~ **c** `d`", ["a b c d"]),
        ("a\n\n```\nb\n```\n- c\n\n\n# d\n\ne", ["a", "", " b", "", " • c", "", "d", "", "e"]),
        ("[a]: http://else.where", ["[a]: http://else.where"]),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_text_is_shown_completely(rich, text, lines, stream):
    """HTML is text, line ends stay, links show their addresses, and there are no blank lines around an answer."""
    assert rich(["Hi"], TRIAGE, silent(text), stream=stream) == ["", "Triage", *lines]


LINES = [
    "text",
    "- item",
    "1. one",
    "2. two",
    "  more",
    "",
    "```",
    "```py",
    "| a | b |",
    "|---|---|",
    "# head",
    "> q",
    "---",
    "===",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LINES), max_size=12).map("\n".join), st.integers(1, 6))
def test_the_pieces_of_an_answer_do_not_change_it(rich, text, size):
    """The screen of an answer in pieces is the screen of the whole answer."""
    model = ScriptedModel([ScriptedAnswer(text, usage=None)] * 2, cut=size)
    shown = []
    for stream in (True, False):
        rich.stdout = Tty()
        shown.append(rich(["Hi"], TRIAGE, model, stream=stream))
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("text", "height", "lines"),
    [
        ("**a**\n" * 100, 5, ["**a**", "**a**"]),
        ("- a\n- b\n- c\n- d", 6, [" • a", " • b", " • c", " • d"]),
        ("x" * 1000, 5, ["x" * 80] * 3),
        ("a b", 1, ["a b"]),
    ],
)
def test_the_end_of_a_text_fits_the_screen(rich, monkeypatch, text, height, lines):
    """A short unfinished text is shown as Markdown, and of a long text the last lines as they came."""
    monkeypatch.setenv("LINES", str(height))
    seen, _ = looks(rich, text)
    assert seen == ["", "Triage", *lines]


# --- terminals --------------------------------------------------------------------------------------------------------


def plain(rich: RichChat) -> str:
    """Return the output of a chat whose user leaves at once, in plain lines."""
    rich.monkeypatch.setattr("builtins.input", TypedLines([]))
    run_demo_loop(Agent(name="Bot"))
    return rich.stdout.getvalue()


@pytest.mark.parametrize("missing", ["rich", "prompt_toolkit"])
def test_without_the_extra_the_lines_are_plain(rich, monkeypatch, missing):
    """Without the extra, the first lines name it."""
    rich.type()
    monkeypatch.setitem(sys.modules, missing, None)
    assert plain(rich).startswith('Starting Swarm CLI ~~~~:>\nFor editing and colours, install the extra "repl"')


@pytest.mark.parametrize("stdin", [io.StringIO(), None])
def test_without_a_terminal_for_input_the_lines_are_plain(rich, stdin):
    """Without a terminal for input there is no hint for the extra."""
    rich.stdin = stdin
    rich.type()
    assert plain(rich) == "Starting Swarm CLI ~~~~:>\n\n"


def test_without_a_terminal_for_output_the_lines_are_plain(rich, capsys, monkeypatch):
    """A pipe for output gets plain lines without a hint."""
    monkeypatch.setattr(sys, "stdin", Tty())
    plain(rich)
    assert capsys.readouterr().out == "Starting Swarm CLI ~~~~:>\n\n"


@pytest.mark.parametrize(("name", "encoding"), [("dumb", "utf-8"), ("xterm", "cp437")])
def test_a_less_capable_terminal_has_plain_lines(rich, monkeypatch, name, encoding):
    """A terminal with TERM=dumb or without UTF gets plain lines."""
    rich.type()
    monkeypatch.setenv("TERM", name)
    monkeypatch.setattr(Tty, "encoding", encoding)
    assert plain(rich) == "Starting Swarm CLI ~~~~:>\n\n"


def test_a_line_typed_at_a_terminal_is_not_printed(rich, monkeypatch):
    """A terminal echoes the typed line itself."""
    rich.type()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("builtins.input", TypedLines(["/usage"]))
    run_demo_loop(Agent(name="Bot"))
    assert "/usage" not in rich.stdout.getvalue()


def test_the_echo_is_off_while_an_answer_is_shown(rich):
    """The terminal does not echo keys during an answer, and echoes them afterwards."""
    echoes: list[int] = []
    before = termios.tcgetattr(rich.stdin)
    model = Pieces(lambda: echoes.append(termios.tcgetattr(rich.stdin)[3] & termios.ECHO), {"content": "Hello"})
    rich(["Hi"], TRIAGE, model)
    assert termios.tcgetattr(rich.stdin) == before
    assert echoes == [0]


def test_a_function_may_replace_stdin(rich, monkeypatch):
    """An answer is shown also after a function has replaced stdin."""

    def replace() -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        return "replaced"

    assert "Done." in rich(["Hi"], Agent(name="Bot", functions=[replace]), ScriptedModel([call("replace"), "Done."]))


def test_a_large_block_is_parsed_again_only_after_it_has_grown(rich):
    """A paragraph of many lines arrives line by line, and its last line is shown."""
    assert "end" in rich(["Hi"], TRIAGE, ScriptedModel([ScriptedAnswer("word word\n" * 600 + "end")], cut=10))
