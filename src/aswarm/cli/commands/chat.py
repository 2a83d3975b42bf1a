"""`aswarm chat`: a conversation in the terminal. `aswarm.repl` implements it."""

from __future__ import annotations

import sys
from typing import Any

import click

from aswarm import Swarm
from aswarm._values.settings import ApiName
from aswarm.cli._command import command, writing
from aswarm.cli._load import load_agent
from aswarm.cli._options import (
    AGENT_HELP,
    context_option,
    entered,
    equipped,
    max_turns_option,
    mcp_option,
    provider_options,
    skills_option,
    store_options,
)


@command("chat", text=f"Talk with AGENT.\n\n{AGENT_HELP}")
@click.argument("agent")
@provider_options
@context_option
@max_turns_option
@mcp_option
@skills_option
@click.option("--stream/--no-stream", default=True, help="Show answers piece by piece, or when they are complete.")
@store_options
@click.option("--debug", is_flag=True, help="Print every request and answer, as Swarm's debug mode does.")
def chat(
    agent: str,
    model: str | None,
    api: ApiName,
    context: dict[str, Any],
    max_turns: int,
    servers: tuple[str, ...],
    folders: tuple[str, ...],
    stream: bool,
    debug: bool,
    store: str | None,
    conversation: str,
) -> None:
    """Talk with the agent."""
    from aswarm.repl._display import PrintingError  # noqa: PLC0415 - no other command needs it
    from aswarm.repl._kept import ChatOptions  # noqa: PLC0415 - as above
    from aswarm.repl._loop import chat_with  # noqa: PLC0415 - as above

    with writing(sys.stdout, PrintingError):
        loaded = load_agent(agent)
        with Swarm(api=api) as swarm, entered(equipped(loaded, folders, servers)) as opened:
            options = ChatOptions(stream, debug, {"model_override": model, "max_turns": max_turns}, opened)
            chat_with(loaded, context, options, swarm, store, conversation)
