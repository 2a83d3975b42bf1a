"""`aswarm chat`: a conversation in the terminal. Prepares the client and the agent; `aswarm.repl` holds the conversation."""

from __future__ import annotations

import sys
from typing import Any

import click

from ._command import command
from ._load import load_agent
from ._options import AGENT_HELP, context_option, max_turns_option, provider, provider_options
from ._output import colours_for, writing


@command("chat", text=f"Talk with AGENT.\n\n{AGENT_HELP}")
@click.argument("agent")
@provider_options
@context_option
@max_turns_option
@click.option("--stream/--no-stream", default=True, help="Show answers piece by piece, or when they are complete.")
@click.option("--debug", is_flag=True, help="Print every request and answer, as Swarm's debug mode does.")
def chat(
    agent: str,
    base_url: str | None,
    model: str | None,
    context: dict[str, Any],
    max_turns: float,
    stream: bool,
    debug: bool,
) -> None:
    """Talk with the agent."""
    from aswarm import Swarm  # noqa: PLC0415 - only once it is needed
    from aswarm.repl import run_demo_loop  # noqa: PLC0415 - no other command needs it

    with provider(base_url), Swarm() as swarm:
        loaded = load_agent(agent)
        # Made before the first prompt: a missing key is an error of the command, not of the first message.
        client = swarm.client
        with writing(sys.stdout), colours_for(sys.stdout):
            run_demo_loop(loaded, context, stream, debug, client=client, model_override=model, max_turns=max_turns)
