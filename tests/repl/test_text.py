"""`aswarm.repl`: what models and tools say is made fit for a terminal, and calls are written readably."""

from __future__ import annotations

import pytest

from aswarm import Usage
from aswarm.repl._text import clean, counted, is_terminal, one_line, shortened, usage_text, written_calls


def message(name: str, arguments: str | None) -> dict:
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": name, "arguments": arguments}}]}


def test_no_text_steers_the_terminal():
    """Escape sequences, the bell and the eight-bit controls are shown, not obeyed."""
    assert clean("a\x1b[2Jb\x07c\x9bd\x7f") == "a␛[2Jb␇c\ufffdd␡"


def test_lines_and_tabs_stay():
    """A text keeps its form; the carriage returns of Windows go."""
    assert clean("a\r\n\tb ü 🐝") == "a\n\tb ü 🐝"


def test_half_a_pair_of_surrogates_can_be_shown():
    """What no encoding takes is replaced."""
    assert clean("\ud83d!").encode() == "\ufffd!".encode()


def test_one_line_is_one_line_and_not_too_long():
    """A text of many lines, or a long one, is cut."""
    assert one_line(" a\nb\t c ") == "a b c"
    assert one_line("x" * 10, 5) == "xxxx…"
    assert shortened("abc", 3) == "abc"


@pytest.mark.parametrize(
    ("arguments", "written", "as_swarm"),
    [
        (
            '{"city": "Oslo", "n": [1, {"a": null}]}',
            'city="Oslo", n=[1, {"a": null}]',
            '"city"= "Oslo", "n"= [1, {"a"= null}]',
        ),
        ('{"at": "12:30"}', 'at="12:30"', '"at"= "12:30"'),
        ('{"name": "Jürgen"}', 'name="Jürgen"', '"name"= "Jürgen"'),
        ("{}", "", ""),
        ("", "", ""),
        (None, "", ""),
        ('{"cut', '{"cut', '{"cut'),
        ("[1]", "[1]", "[1]"),
        ("[" * 100_000, "[" * 299 + "…", "[" * 299 + "…"),
        ('{"x": "\\u001b[1m\\u009b"}', 'x="\\u001b[1m\ufffd"', '"x"= "\\u001b[1m\ufffd"'),
    ],
)
def test_a_call_is_written_with_its_arguments(arguments, written, as_swarm):
    """As keywords, or as Swarm writes them, but with colons in values kept; what is no object of JSON as it came."""
    [(name, text)] = written_calls(message("look_up", arguments))
    assert (name, text) == ("look_up", written)
    assert written_calls(message("look_up", arguments), as_swarm=True) == [("look_up", as_swarm)]


def test_a_message_without_calls_has_none():
    """None, an empty list and no key are the same; a custom call has an input instead of arguments."""
    assert (
        written_calls({"role": "assistant", "tool_calls": None})
        == written_calls({})
        == written_calls({"tool_calls": []})
        == []
    )
    custom = {"id": "1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    assert written_calls({"tool_calls": [custom]}) == [("sql", "select 1")]


def test_numbers_have_nouns():
    """One of a thing, or several."""
    assert [counted(number, "call") for number in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]
    assert usage_text(Usage(10, 5, 15, 1)) == "15 tokens (10 in, 5 out), 1 request"


def test_a_process_without_stdin_sits_at_no_terminal():
    """`sys.stdin` may be None."""
    assert not is_terminal(None)
