"""Text for people: safe for a terminal, shortened to one line, and hints for installing.

Texts of models, tools and users can contain control characters, which a terminal would execute. Here they become symbols, for
display only.

Security: A terminal shows a symbol for each control character in a text of a model, a tool or a user.
"""

from __future__ import annotations

import os
import sys

# All control characters but the line break and the tab. The last two ranges change the direction of writing, which could show
# another call than the call that runs.
OBEYED = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))

# The control pictures start at U+2400. A carriage return is dropped: it belongs to the line ends of Windows.
_VISIBLE: dict[int, int | None] = {
    **{code: 0x2400 + code if code < ord(" ") else 0xFFFD for code in OBEYED},
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),  # half of a surrogate pair, which cannot be encoded
    0x7F: 0x2421,
    0x0D: None,
}


def without_colours() -> bool:
    """Return whether the user wants no colours: NO_COLOR is set, and not to an empty text (no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def has_colours() -> bool:
    """Return whether a text on stdout may have colours: stdout is a terminal, and NO_COLOR is not set."""
    return sys.stdout is not None and sys.stdout.isatty() and not without_colours()


def how_to_install(extra: str) -> str:
    """Return the remedy for a missing package of an extra. The package index has no release of aswarm yet."""
    return f'install the extra "{extra}"; in a clone of aswarm: python -m pip install ".[{extra}]"'


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 message", "2,000 messages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def clean(text: str) -> str:
    """Return the text with a symbol in place of each control character; line breaks and tabs stay."""
    return text.translate(_VISIBLE)


def shortened(text: str, limit: int) -> str:
    """Return the text, or its start and "...", of at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_line(text: object, limit: int = 300) -> str:
    """Return the text, clean, on one line of at most `limit` characters; each run of white space becomes a space."""
    return shortened(clean(" ".join(str(text).split())), limit)
