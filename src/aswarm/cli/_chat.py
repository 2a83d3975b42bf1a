"""`aswarm chat`: a conversation in the terminal. Prepares the client and the agent; `aswarm.repl` holds the conversation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ._command import command
from ._continued import saved_conversation
from ._exits import SetupError
from ._load import load_agent
from ._mcp_servers import mcp_option, with_async_mcp_servers, with_mcp_servers
from ._options import AGENT_HELP, context_option, max_turns_option, provider, provider_options
from ._output import writing
from ._stored import StoreTarget, store_options, store_target

if TYPE_CHECKING:
    from aswarm._providers.apis import ApiName
    from aswarm.repl._loop import ChatOptions


@command("chat", text=f"Talk with AGENT.\n\n{AGENT_HELP}")
@click.argument("agent")
@provider_options
@context_option
@max_turns_option
@mcp_option
@click.option("--stream/--no-stream", default=True, help="Show answers piece by piece, or when they are complete.")
@click.option("--load", metavar="FILE", help="Continue a conversation that /save has written.")
@store_options
@click.option("--debug", is_flag=True, help="Print every request and answer, as Swarm's debug mode does.")
def chat(
    agent: str,
    base_url: str | None,
    model: str | None,
    api: ApiName,
    context: dict[str, Any],
    max_turns: float,
    servers: tuple[str, ...],
    stream: bool,
    load: str | None,
    store: str | None,
    conversation: str | None,
    debug: bool,
) -> None:
    """Talk with the agent."""
    from aswarm.repl._loop import ChatOptions  # noqa: PLC0415 - no other command needs it
    from aswarm.repl._printing import PrintingError  # noqa: PLC0415 - as above

    options = ChatOptions(stream, debug, model, max_turns, api)
    target = store_target(store, conversation)
    if load is not None and target is not None:
        raise SetupError("--load and --store are two places of a conversation; use one of them")
    with provider(base_url), writing(sys.stdout, PrintingError):
        if target is None:
            _chat_in_memory(agent, context, options, load, servers)
        else:
            _chat_in_store(agent, context, options, target, servers)


def _chat_in_memory(
    agent: str, context: dict[str, Any], options: ChatOptions, load: str | None, servers: tuple[str, ...]
) -> None:
    from aswarm import Swarm  # noqa: PLC0415 - only once it is needed
    from aswarm.repl._loop import chat_with  # noqa: PLC0415 - as above

    saved = None if load is None else saved_conversation(load)
    loaded = load_agent(agent)
    with Swarm() as swarm, with_mcp_servers(loaded, servers):
        # Made before the first prompt: a missing key is an error of the command, not of the first message.
        chat_with(loaded, context, options, swarm.client, saved)


def _chat_in_store(
    agent: str,
    context: dict[str, Any],
    options: ChatOptions,
    target: StoreTarget,
    servers: tuple[str, ...],
) -> None:
    import anyio  # noqa: PLC0415 - as above

    from aswarm import AsyncSwarm  # noqa: PLC0415 - as above
    from aswarm.repl._loop import chat_in_store  # noqa: PLC0415 - as above

    async def talk() -> None:
        async with AsyncSwarm(api=options.api) as swarm, target.open() as store:
            _ = swarm.client  # as above
            async with with_async_mcp_servers(loaded, servers):
                await chat_in_store(loaded, context, options, swarm, store, target.conversation)

    loaded = load_agent(agent)
    anyio.run(talk)
