"""Options that several commands share, the environment of `--base-url`, the MCP servers of `--mcp`, the folders of `--skills`."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from aswarm._blocking.sync_swarm import wait_on_event_loop
from aswarm._values.agent import Agent
from aswarm._values.budget import UNWATCHED, Budget
from aswarm._values.errors import ConfigurationError, MissingKeyError
from aswarm._values.settings import ApiName

from ._command import SetupError, log_as_notes

if TYPE_CHECKING:
    from aswarm.mcp import MCPServer

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

AGENT_HELP = (
    "AGENT is module:attribute, such as agents:triage, or path/to/file.py:attribute. It names an Agent, or a function "
    "without parameters that returns one."
)


def _merged(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for text in texts for key, value in _variables(text).items()}


def _variables(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            variables: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise click.BadParameter(f"the value is not JSON: {error}") from error
        return variables
    key, equals, value = text.partition("=")
    if not (key and equals):
        example = '{"user_id": 7}'
        raise click.BadParameter(f"expected key=value, or a JSON object such as '{example}', not {text!r}")
    return {key: value}


def _budget(text: str) -> Budget:
    parts = [part.strip().partition("=") for part in text.split(",")]
    limits = [field.name for field in dataclasses.fields(Budget) if field.name not in ("then", "prices")]
    unknown = [name for name, *_ in parts if name not in (*limits, "then")]
    if unknown:
        raise click.BadParameter(f"unknown limit {unknown[0]!r}; the limits are {', '.join(limits)}")
    try:
        return Budget(**{name: value if name == "then" else _number(value) for name, _, value in parts})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError) as error:
        raise click.BadParameter(f"expected limits such as tool_calls=20,seconds=60, not {text!r}") from error
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error


def _number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def _model_url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"expected an address that starts with http:// or https://, not {value!r}")
    return value


def count_option(*names: str, default: int, text: str) -> Callable[[F], F]:
    """Return an option whose value is a whole number from 1."""
    return click.option(*names, metavar="N", type=click.IntRange(min=1), default=default, show_default=True, help=text)


# The value is one dict; if a variable is repeated, its last value counts.
context_option = click.option(
    "-c",
    "--context",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_merged,
    help="A context variable: key=value (text), or a JSON object with several variables. Can be repeated.",
)
_base_url_option = click.option(
    "--base-url",
    metavar="URL",
    type=_model_url,
    help="The server of the model, such as http://127.0.0.1:8080/v1. The key comes from OPENAI_API_KEY; your own server may "
    "need none. [default: OPENAI_BASE_URL, else OpenAI itself]",
)
max_turns_option = click.option(
    "--max-turns",
    metavar="N",
    type=click.IntRange(min=0),
    default=UNWATCHED,
    show_default=True,
    help="End a run after this many completions.",
)
budget_option = click.option(
    "--budget",
    metavar="LIMIT=NUMBER,...",
    type=_budget,
    help="The limits of a run, such as tool_calls=20,seconds=60. The limits are turns, tokens, cost (in dollars; needs "
    "the extra prices), seconds, tool_calls, repeats and handoffs. then=answer asks the model for an answer at a limit.",
)
mcp_option = click.option(
    "--mcp",
    "servers",
    metavar="URL|COMMAND",
    multiple=True,
    help="Give AGENT the tools of an MCP server: its URL, or a command that starts it, such as "
    '"npx -y @modelcontextprotocol/server-filesystem .". The command gets only a few environment '
    'variables, such as HOME and PATH; "env NAME=VALUE command" adds a variable. Can be repeated. Needs the extra mcp.',
)
skills_option = click.option(
    "--skills",
    "folders",
    metavar="FOLDER",
    multiple=True,
    help="Give AGENT the skills of a folder: a skill, or a folder with folders of skills. Their texts are instructions for the "
    "model. Can be repeated. Needs the extra skills.",
)
_model_option = click.option("-m", "--model", metavar="NAME", help="The model for all agents, instead of their own.")
_api_option = click.option(
    "--api",
    type=click.Choice(get_args(ApiName)),
    default="auto",
    show_default=True,
    help="The API of the model's server. auto: the Responses API for OpenAI itself and for Azure's v1, else Chat Completions.",
)


@contextmanager
def _provider(base_url: str | None) -> Generator[None]:
    """Inside the block, set the environment variables that the client needs for this server.

    There is no option for the key, because each user of a machine can read the command lines of all processes.
    """
    wanted = {} if base_url is None else {"OPENAI_BASE_URL": base_url}
    if (base_url or os.environ.get("OPENAI_BASE_URL")) and not os.environ.get("OPENAI_API_KEY"):
        wanted["OPENAI_API_KEY"] = "none"  # the SDK requires a key, but most private servers do not
    before = {name: os.environ[name] for name in wanted if name in os.environ}
    os.environ.update(wanted)
    try:
        yield
    except MissingKeyError as error:
        raise SetupError(
            "there is no API key: set OPENAI_API_KEY. Or name your own server, which may need no key, with --base-url "
            "or OPENAI_BASE_URL. `aswarm demo` needs neither"
        ) from error
    finally:
        for name in wanted.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def provider_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--model`, `--api` and `--base-url`. The function runs in the environment of `--base-url`, and does not get the option."""

    @wraps(function)
    def run(base_url: str | None, **options: Any) -> None:
        with _provider(base_url):
            function(**options)

    return _model_option(_base_url_option(_api_option(run)))


def _conversation_id(context: click.Context, _: click.Parameter, value: str | None) -> str:
    if context.params.get("store") is None:
        if value is not None:
            raise SetupError("--conversation needs --store: the file or the URL of a store")
        return ""  # no store, so no command reads the id
    from aswarm.repl._kept import ID  # noqa: PLC0415 - slow, and only a command with a store needs it

    return ID if value is None else value


def store_options(function: F) -> F:
    """Add `--store` and `--conversation`: the conversation of the command, which is only data and cannot approve a call."""
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


@asynccontextmanager
async def equipped(agent: Agent, folders: Sequence[str], servers: Sequence[str]) -> AsyncGenerator[list[MCPServer]]:
    """Inside the block, the agent has the skills of these folders, and the tools of these MCP servers. Yield the servers."""
    before = agent.instructions, agent.functions
    opened: list[MCPServer] = []
    try:
        async with AsyncExitStack() as stack:
            if folders:
                from aswarm.skills import skills  # noqa: PLC0415 - an extra

                with log_as_notes():
                    skills(*folders).add_to(agent)
            for server in servers:
                opened.append(await stack.enter_async_context(_mcp_server(server)))
                agent.functions = [*agent.functions, *opened[-1].functions]
            yield opened
    finally:
        agent.instructions, agent.functions = before


def _mcp_server(text: str) -> MCPServer:
    from aswarm.mcp import MCPServer  # noqa: PLC0415 - only once it is needed

    if text.startswith(("http://", "https://")):
        return MCPServer(text)
    try:
        command, *arguments = shlex.split(text)
    except ValueError as error:
        raise SetupError(
            f"--mcp: expected a URL that starts with https:// or http://, or a command such as 'npx -y a-server', not {text!r}"
        ) from error
    from mcp import StdioServerParameters  # noqa: PLC0415 - as above

    return MCPServer(StdioServerParameters(command=command, args=arguments))


@contextmanager
def entered(manager: AbstractAsyncContextManager[T]) -> Generator[T]:
    """Enter an async context manager from synchronous code, on the event loop of `wait_on_event_loop`."""
    value = wait_on_event_loop(manager.__aenter__)
    try:
        yield value
    finally:
        wait_on_event_loop(partial(manager.__aexit__, None, None, None))
