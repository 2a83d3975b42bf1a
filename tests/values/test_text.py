"""Text for people: what a terminal must not get, and what fits on a line."""

from __future__ import annotations

import pytest

from aswarm._values.json import shown
from aswarm._values.text import clean, how_to_install, one_line, shortened


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a\nb"),
        ("\x1b[31mred\x07", "␛[31mred␇"),
        ("\x7f\x9b", "␡\ufffd"),
        ("\u202eabc\u2066", "\ufffdabc\ufffd"),
        ("half \ud83d", "half \ufffd"),
        ("Grüße 🎉", "Grüße 🎉"),
    ],
)
def test_control_characters_become_symbols(text: str, expected: str) -> None:
    """Line breaks and tabs stay, carriage returns go; any encoding of Unicode takes the result."""
    assert clean(text) == expected
    clean(text).encode()


def test_a_text_is_shortened() -> None:
    """A text that is too long ends with three dots, within the limit."""
    assert shortened("x" * 10, 10) == "x" * 10
    assert shortened("x" * 11, 10) == "x" * 7 + "..."


def test_one_line() -> None:
    """White space becomes single spaces; the line is clean, and has 300 characters at most."""
    assert one_line(" a\n\n b\t\x1bc ") == "a b ␛c"
    assert one_line("x" * 400) == "x" * 297 + "..."
    assert one_line(ValueError("no"), 5) == "no"


def test_a_value_is_shown_on_one_line() -> None:
    """A value in an error message is written as in Python."""
    assert shown({"a": "b\n"}, 60) == "{'a': 'b\\n'}"
    assert shown("x" * 100, 10) == "'xxxxxx..."


def test_how_to_install_an_extra() -> None:
    """There is no release yet, so it is installed from a clone."""
    assert how_to_install("cli") == 'install the extra "cli"; in a clone of aswarm: python -m pip install ".[cli]"'
