"""`aswarm chat`: a conversation in the terminal. Prepares the client and the agent; `aswarm.repl` holds the conversation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ._command import command
from ._exits import SetupError
from ._load import load_agent
from ._options import AGENT_HELP, context_option, max_turns_option, provider, provider_options
from ._output import writing

if TYPE_CHECKING:
    from aswarm._providers.apis import ApiName
    from aswarm.repl._saved import SavedConversation


@command("chat", text=f"Talk with AGENT.\n\n{AGENT_HELP}")
@click.argument("agent")
@provider_options
@context_option
@max_turns_option
@click.option("--stream/--no-stream", default=True, help="Show answers piece by piece, or when they are complete.")
@click.option("--load", metavar="FILE", help="Continue a conversation that /save has written.")
@click.option("--debug", is_flag=True, help="Print every request and answer, as Swarm's debug mode does.")
def chat(
    agent: str,
    base_url: str | None,
    model: str | None,
    api: ApiName,
    context: dict[str, Any],
    max_turns: float,
    stream: bool,
    load: str | None,
    debug: bool,
) -> None:
    """Talk with the agent."""
    from aswarm import Swarm  # noqa: PLC0415 - only once it is needed
    from aswarm.repl._loop import ChatOptions, chat_with  # noqa: PLC0415 - no other command needs it
    from aswarm.repl._printing import PrintingError  # noqa: PLC0415 - as above

    saved = None if load is None else _saved(load)
    with provider(base_url), Swarm() as swarm:
        loaded = load_agent(agent)
        # Made before the first prompt: a missing key is an error of the command, not of the first message.
        client = swarm.client
        with writing(sys.stdout, PrintingError):
            chat_with(loaded, context, ChatOptions(stream, debug, model, max_turns, api), client, saved)


def _saved(path: str) -> SavedConversation:
    from aswarm.repl._saved import read_conversation  # noqa: PLC0415 - as above

    try:
        return read_conversation(path)
    except (OSError, ValueError) as error:
        raise SetupError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
