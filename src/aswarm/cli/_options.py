"""The options that several commands share, and what they mean."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, get_args

import click

from aswarm._budget import Budget
from aswarm._errors import ConfigurationError
from aswarm._providers.apis import ApiName
from aswarm._providers.default_client import MissingKeyError
from aswarm._run.options import MAX_TURNS

from ._exits import SetupError

F = TypeVar("F", bound=Callable[..., Any])

AGENT_HELP = (
    "AGENT is module:attribute, such as agents:triage, or path/to/file.py:attribute. It names an Agent, or a function "
    "without parameters that returns one."
)


def context_option(function: F) -> F:
    """`--context`: all variables in one dict. If a variable is given twice, its last value counts."""
    return click.option(
        "-c",
        "--context",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_merged,
        help="A context variable: key=value (text), or a JSON object with several. Can be repeated.",
    )(function)


def _merged(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for text in given for key, value in _variables(text).items()}


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


def provider_options(function: F) -> F:
    """`--model`, `--base-url` and `--api`."""
    model = click.option("-m", "--model", metavar="NAME", help="The model for all agents, in place of their own.")
    api = click.option(
        "--api",
        type=click.Choice(get_args(ApiName)),
        default="auto",
        show_default=True,
        help="The API of the model's server. auto: the Responses API for OpenAI itself and for Azure's v1, else Chat "
        "Completions.",
    )
    return model(base_url_option(api(function)))


def base_url_option(function: F) -> F:
    """`--base-url`."""
    return click.option(
        "--base-url",
        metavar="URL",
        callback=_checked_url,
        help="The server of the model, such as http://127.0.0.1:8080/v1. The key comes from OPENAI_API_KEY; a server of your own "
        "may need none. [default: OPENAI_BASE_URL, else OpenAI itself]",
    )(function)


def max_turns_option(function: F) -> F:
    """`--max-turns`."""
    return click.option(
        "--max-turns",
        metavar="N",
        type=click.IntRange(min=0),
        default=MAX_TURNS,
        show_default=True,
        help="End a run after this many completions.",
    )(function)


def budget_option(function: F) -> F:
    """`--budget`."""
    return click.option(
        "--budget",
        metavar="LIMIT=NUMBER,...",
        callback=_budget,
        help="How much a run may use, such as tool_calls=20,seconds=60. The limits are turns, tokens, cost (in dollars; needs "
        "the extra prices), seconds, tool_calls, repeats and handoffs. then=answer asks the model for an answer at a limit.",
    )(function)


def _budget(_: click.Context, __: click.Parameter, text: str | None) -> Budget | None:
    if text is None:
        return None
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


def _checked_url(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"expected an address that begins with http:// or https://, not {value!r}")
    return value


@contextmanager
def provider(base_url: str | None) -> Generator[None]:
    """Inside the block, a client that is made from the environment variables uses this server.

    There is no option for the key: every user of the machine can read the command lines of all processes.
    """
    wanted = {} if base_url is None else {"OPENAI_BASE_URL": base_url}
    if (base_url or os.environ.get("OPENAI_BASE_URL")) and not os.environ.get("OPENAI_API_KEY"):
        wanted["OPENAI_API_KEY"] = "none"  # the SDK requires a key, a server of one's own seldom does
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    except MissingKeyError as error:
        raise SetupError(
            "there is no API key: set OPENAI_API_KEY; or name a server of your own, which may need no key, with --base-url "
            "or OPENAI_BASE_URL. `aswarm demo` needs neither"
        ) from error
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
