"""`aswarm chat`: a conversation in the terminal. Only sets up; the conversation is that of `aswarm.repl`."""

from __future__ import annotations

from typing import Any

import click

from ._exits import HELP
from ._load import load_agent
from ._options import AGENT_HELP, context_option, max_turns_option, provider, provider_options


@click.command(epilog=HELP, help=f"Talk with AGENT.\n\n{AGENT_HELP}")
@click.argument("agent")
@provider_options
@context_option
@max_turns_option
@click.option("--stream/--no-stream", default=True, help="Show answers as they come, or once they are whole.")
@click.option("--debug", is_flag=True, help="Tell what is asked and received, in Swarm's words.")
def chat(
    agent: str,
    base_url: str | None,
    model: str | None,
    context: dict[str, Any],
    max_turns: float,
    stream: bool,
    debug: bool,
) -> None:
    """Talk."""
    from aswarm import Swarm  # noqa: PLC0415 - only once it is needed
    from aswarm.repl import run_demo_loop  # noqa: PLC0415 - no other command needs it

    with provider(base_url), Swarm() as swarm:
        loaded = load_agent(agent)
        # Asked for here: without a key, no message could be answered.
        client = swarm.client
        run_demo_loop(loaded, context, stream, debug, client=client, model_override=model, max_turns=max_turns)
