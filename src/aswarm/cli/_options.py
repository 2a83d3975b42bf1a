"""The options that several commands have, and what they mean."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

AGENT_HELP = "AGENT is module:attribute, or path/to/file.py:attribute."


def context_option(function: F) -> F:
    """`--context`: all variables in one dict; of one that is given twice, the later."""
    return click.option(
        "-c",
        "--context",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_merged,
        help="A context variable: key=value (text), or a JSON object with several. May be given more than once.",
    )(function)


def _merged(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for text in given for key, value in _variables(text).items()}


def _variables(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            variables: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise click.BadParameter(f"this is not JSON: {error}") from error
        return variables
    key, equals, value = text.partition("=")
    if not (key and equals):
        example = '{"user_id": 7}'
        raise click.BadParameter(f"expected key=value, or a JSON object such as '{example}', not {text!r}")
    return {key: value}


def provider_options(function: F) -> F:
    """`--model` and `--base-url`."""
    model = click.option("-m", "--model", metavar="NAME", help="The model of all agents, in place of their own.")
    base_url = click.option(
        "--base-url",
        metavar="URL",
        callback=_checked_url,
        help="A server that speaks Chat Completions, such as http://127.0.0.1:8080/v1; else OPENAI_BASE_URL. "
        "The key comes from OPENAI_API_KEY, and need not be set for a server of your own.",
    )
    return model(base_url(function))


def max_turns_option(function: F) -> F:
    """`--max-turns`: infinity where it is not given."""
    return click.option(
        "--max-turns",
        type=click.IntRange(min=0),
        callback=_or_no_limit,
        help="End a run after so many completions. [default: no limit]",
    )(function)


def _or_no_limit(_: click.Context, __: click.Parameter, value: int | None) -> float:
    return math.inf if value is None else value


def _checked_url(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"expected an address that begins with http:// or https://, not {value!r}")
    return value


@contextmanager
def provider(base_url: str | None) -> Generator[None]:
    """Inside the block, clients that are made from the environment talk to this server.

    There is no option for the key: what is on the command line can be read by everybody on the machine.
    """
    wanted = {} if base_url is None else {"OPENAI_BASE_URL": base_url}
    if (base_url or os.environ.get("OPENAI_BASE_URL")) and not os.environ.get("OPENAI_API_KEY"):
        wanted["OPENAI_API_KEY"] = "none"  # the SDK wants one, a server of one's own seldom does
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
