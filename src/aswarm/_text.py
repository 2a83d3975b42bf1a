"""Text for people: made safe for a terminal, cut to one line, and what to install.

Texts of models, tools and users can hold control characters, which a terminal would obey. They are shown as symbols here
and never sent.
"""

from __future__ import annotations

import os
import sys

# All control characters but the line break and the tab. The last two ranges change the direction of writing: a call would
# read differently from what runs.
OBEYED = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))

# The control pictures begin at U+2400. A carriage return is dropped: it belongs to the line ends of Windows.
_VISIBLE: dict[int, int | None] = {
    **{code: 0x2400 + code if code < ord(" ") else 0xFFFD for code in OBEYED},
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),  # half of a surrogate pair: no encoding takes it
    0x7F: 0x2421,
    0x0D: None,
}


def without_colours() -> bool:
    """Whether the user wants no colours: NO_COLOR is set, and not to an empty text (no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def has_colours() -> bool:
    """Whether a text on stdout may have colours: stdout is a terminal, and the user has not switched them off."""
    return sys.stdout is not None and sys.stdout.isatty() and not without_colours()


def how_to_install(extra: str) -> str:
    """What to do where a package of an extra is missing. The package index has no release of aswarm yet."""
    return f'install the extra "{extra}"; in a clone of aswarm: python -m pip install ".[{extra}]"'


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 message", "2,000 messages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def clean(text: str) -> str:
    """The text with a symbol in place of each control character; line breaks and tabs stay."""
    return text.translate(_VISIBLE)


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and "...", of at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_line(text: object, limit: int = 300) -> str:
    """The text, clean, on one line of at most `limit` characters; each run of white space becomes a space."""
    return shortened(clean(" ".join(str(text).split())), limit)
