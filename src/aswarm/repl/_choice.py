"""Which face a conversation gets: the rich one in a terminal that can show it, lines of text everywhere else."""

from __future__ import annotations

import importlib.util
import os
import sys

from ._display import Face, Reader
from ._plain import PlainFace, PlainReader
from ._session import Session
from ._text import is_terminal

_NEEDED = ("prompt_toolkit", "rich")
_MISSING = 'For colours, editing and Markdown: pip install "aswarm[repl]". /help shows the commands.'


def face_and_reader(session: Session, *, live: bool) -> tuple[Face, Reader]:
    """The face, which has greeted, and the reader for this process's stdin and stdout.

    `live`: answers are shown as they come.
    """
    if not _is_capable():
        return _plain("", live=live)
    if not all(importlib.util.find_spec(name) for name in _NEEDED):
        return _plain(_MISSING, live=live)
    # Imported here, because they are an extra, and heavy.
    from rich.console import Console  # noqa: PLC0415

    from ._prompt import Prompt, user_history  # noqa: PLC0415
    from ._rich import RichFace  # noqa: PLC0415

    rich_face = RichFace(Console(highlight=False), live=live)
    rich_face.greet(f"{session.agent.name} listens. /help shows the commands, Ctrl-D leaves.")
    return rich_face, Prompt(session, user_history())


def _plain(hint: str, *, live: bool) -> tuple[Face, Reader]:
    face = PlainFace(live=live)
    face.greet(hint)
    return face, PlainReader()


def _is_capable() -> bool:
    encoding = str(getattr(sys.stdout, "encoding", None) or "").lower()
    return (
        is_terminal(sys.stdin)
        and is_terminal(sys.stdout)
        and os.environ.get("TERM") != "dumb"
        and encoding.replace("-", "").startswith("utf")
    )
