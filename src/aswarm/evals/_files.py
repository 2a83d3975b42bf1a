"""Cases from a file, and agents by name. Decides what a file of cases looks like; the cases check themselves.

A file holds a list of cases, or an object whose `cases` is that list; what stands beside `cases` holds for every case
that does not say otherwise:

    {"agent": "agents:triage_agent", "cases": [{"conversation": "Where is my bag?", "function": "find_bag"}]}
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object, shown

from ._case import Case, as_case

_LINE = 60  # characters of a value in a message


def load_cases(path: str | os.PathLike[str], *, agent: Agent | str | None = None) -> list[Case]:
    """The cases of a file, JSON or YAML by its ending (see `FORMATS`). Swarm's files are read as they are.

    `agent` takes the place of every agent that the file names. An agent stays a name here; `evaluate` imports it.
    Raises ConfigurationError that names the file and the case; OSError where the file cannot be read.
    """
    path = Path(path)
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigurationError(f"{path}: cases come as {', '.join(FORMATS)}")
    try:
        data = parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return list(_cases(path, data, {} if agent is None else {"agent": agent}))


def _cases(path: Path, data: Any, overrides: dict[str, Any]) -> Iterator[Case]:
    listed: Any = data.get("cases") if is_object(data) else data
    if not is_array(listed) or not listed:
        raise ConfigurationError(f"{path}: expected a list of cases, or an object with one under 'cases'")
    common = {key: value for key, value in data.items() if key != "cases"} if is_object(data) else {}
    for number, case in enumerate(listed, 1):
        try:
            yield as_case({**common, **case, **overrides} if is_object(case) else case)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: case {number}: {error}") from error


_DATE = "tag:yaml.org,2002:timestamp"
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"-?(0|[1-9][0-9]*)$"),
    "tag:yaml.org,2002:float": re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+][0-9]+)$"),
}
_DIGITS = tuple("-0123456789")


def _parse_yaml(text: str) -> Any:
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError('YAML files need pyyaml: pip install "aswarm[evals]"') from error

    class Loader(yaml.SafeLoader):
        """Safe, and what JSON has no number for (a date, 12:30, 0o17) stays text, as it is in a model's arguments."""

        yaml_implicit_resolvers = {  # noqa: RUF012 - as in the base class
            first: [
                *(resolver for resolver in resolvers if resolver[0] not in (_DATE, *_NUMBERS)),
                *(_NUMBERS.items() if first in _DIGITS else ()),
            ]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        return yaml.load(text, Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_PARSERS: dict[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": _parse_yaml, ".yml": _parse_yaml}
FORMATS = tuple(_PARSERS)


def import_agent(reference: str) -> Agent:
    """The agent that "module:attribute" names. Raises ConfigurationError where there is none."""
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(f"an agent is named as module:attribute, not {reference!r}")
    try:
        found: object = reduce(getattr, attribute.split("."), importlib.import_module(module))
    except Exception as error:  # a module may raise whatever it likes
        raise ConfigurationError(f"no agent {reference!r}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Agent):
        raise ConfigurationError(f"{reference!r} is no Agent but {shown(found, _LINE)}")
    return found
