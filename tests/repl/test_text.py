"""Texts of models and tools are made safe for a terminal, and calls are formatted."""

from __future__ import annotations

import pytest

from aswarm import Usage
from aswarm._values.text import clean, counted, one_line, shortened
from aswarm.repl._text import formatted_calls, is_terminal, usage_text


def message(name: str, arguments: str | None) -> dict:
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": name, "arguments": arguments}}]}


def test_control_characters_are_shown():
    """Escape sequences, the bell and eight-bit controls become symbols."""
    assert clean("a\x1b[2Jb\x07c\x9bd\x7f") == "a␛[2Jb␇c\ufffdd␡"


def test_lines_and_tabs_stay():
    """Only the carriage returns of Windows are removed."""
    assert clean("a\r\n\tb ü 🐝") == "a\n\tb ü 🐝"


def test_half_of_a_surrogate_pair_can_be_shown():
    """A character that no encoding accepts is replaced."""
    assert clean("\ud83d!").encode() == "\ufffd!".encode()


def test_one_line_is_one_line_and_not_too_long():
    """Line ends become spaces, and a long text is cut."""
    assert one_line(" a\nb\t c ") == "a b c"
    assert one_line("x" * 10, 5) == "xx..."
    assert shortened("abc", 3) == "abc"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"city": "Oslo", "n": [1, {"a": null}]}', 'city="Oslo", n=[1, {"a": null}]'),
        ('{"at": "12:30"}', 'at="12:30"'),
        ('{"name": "Jürgen"}', 'name="Jürgen"'),
        ("{}", ""),
        ("", ""),
        (None, ""),
        ('{"cut', '{"cut'),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 297 + "..."),
        ('{"x": "\\u001b[1m\\u009b"}', 'x="\\u001b[1m\ufffd"'),
    ],
)
def test_a_call_is_formatted_with_its_arguments(arguments, written):
    """As keywords; invalid arguments stay as they are."""
    assert formatted_calls(message("look_up", arguments)) == [("look_up", written)]


def test_a_message_without_calls_has_none():
    """None, an empty list and a missing key are the same; a custom call has an input instead of arguments."""
    assert (
        formatted_calls({"role": "assistant", "tool_calls": None})
        == formatted_calls({})
        == formatted_calls({"tool_calls": []})
        == []
    )
    custom = {"id": "1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    assert formatted_calls({"tool_calls": [custom]}) == [("sql", "select 1")]


def test_numbers_have_nouns():
    """Singular for one, plural otherwise."""
    assert [counted(number, "call") for number in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]
    assert usage_text(Usage(10, 5, 15, 1)) == "15 tokens (10 in, 5 out), 1 request"


def test_a_process_without_stdin_has_no_terminal():
    """`sys.stdin` may be None."""
    assert not is_terminal(None)
