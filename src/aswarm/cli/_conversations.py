"""The conversation of a command in a store: the options `--store` and `--conversation`.

A stored conversation is only data, and cannot approve a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ._exits import SetupError

F = TypeVar("F", bound=Callable[..., Any])


def _conversation_id(context: click.Context, _: click.Parameter, value: str | None) -> str:
    if context.params.get("store") is None:
        if value is not None:
            raise SetupError("--conversation needs --store: the file or the URL of a store")
        return ""  # no store, so no command reads the id
    from aswarm.repl._kept import ID  # noqa: PLC0415 - slow, and only a command with a store needs it

    return ID if value is None else value


def store_options(function: F) -> F:
    """Add `--store` and `--conversation`."""
    store = click.option(
        "--store",
        is_eager=True,
        metavar="FILE|URL",
        help="Save the conversation while it runs, to this SQLite file, or to the PostgreSQL database with this URL.",
    )
    conversation = click.option(
        "--conversation",
        metavar="ID",
        callback=_conversation_id,
        help="The id of a new conversation in --store, or of one to continue. [default: conversation]",
    )
    return store(conversation(function))
