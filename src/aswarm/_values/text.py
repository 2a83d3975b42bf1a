"""Text for people: safe for a terminal, shortened to one line, and hints for installation.

Texts of models, tools and users can contain control characters, which a terminal would execute. Symbols replace them, but only
in displayed text.

Security: A terminal shows a symbol for each control character in a text of a model, a tool or a user.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TextIO

# All control characters except the line break and the tab. The last two ranges change the direction of writing: an attacker
# could use them to show a user other arguments than the arguments that run (CVE-2021-42574).
OBEYED = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))

# One escape of JSON. The group is an escaped half of a surrogate pair, without the other half.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)

# Symbols for control characters start at U+2400. A carriage return is removed, because it is part of a line end on Windows.
_VISIBLE: dict[int, int | None] = {
    **{code: 0x2400 + code if code < ord(" ") else 0xFFFD for code in OBEYED},
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),  # half of a surrogate pair, which UTF-8 cannot encode
    0x7F: 0x2421,
    0x0D: None,
}


def sendable(text: str) -> str:
    """Return the text as UTF-8 can encode it. Two halves of a surrogate pair become their character, one half its escape.

    JSON, a split emoji, and names of files (`os.fsdecode`) can contain such halves. The escape is valid inside the text of
    a JSON document, and has the same value there.
    """
    # Models write such halves too, and a request with one of them fails in httpx, as an error that looks like the provider's:
    # https://github.com/BerriAI/litellm/pull/24196
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode(errors="backslashreplace").decode()
    return text


def whole_escapes(text: str) -> str:
    r"""Return a JSON text with `\ufffd` in place of each escaped half of a surrogate pair, which JSON parsers refuse."""
    return _ESCAPE.sub(lambda match: r"\ufffd" if match[1] else match[0], text) if "\\u" in text else text


def without_colours() -> bool:
    """Return whether the user wants no colours: NO_COLOR is set and not empty (no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def has_colours(stream: TextIO | None = None) -> bool:
    """Return whether a text on the stream, by default stdout, may have colours: it is a terminal, and NO_COLOR is not set."""
    stream = stream or sys.stdout
    return stream is not None and stream.isatty() and not without_colours()


def how_to_install(extra: str) -> str:
    """Return the remedy for a missing package of an extra. The text names a clone: aswarm has no release on PyPI yet."""
    return f'install the extra "{extra}"; in a clone of aswarm: python -m pip install ".[{extra}]"'


AS_RESOURCE = "pass a client or a connection as resources={...}: a parameter with the hint Resource[T] gets it"
"""The remedy for a value that has no JSON form."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 message", "2,000 messages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def clean(text: str) -> str:
    """Return the text with a symbol in place of each control character, except line breaks and tabs."""
    return text.translate(_VISIBLE)


def shortened(text: str, limit: int) -> str:
    """Return the text with at most `limit` characters. If it is longer, return its start and "..."."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_line(text: object, limit: int = 300) -> str:
    """Return the clean text on one line of at most `limit` characters. Each sequence of white space becomes one space."""
    return shortened(clean(" ".join(str(text).split())), limit)


# The fields of a log record outside of a run. Without them, a log format with `%(run_id)s` would fail for such a record.
NO_RUN: Mapping[str, None] = {"run_id": None, "agent": None}
