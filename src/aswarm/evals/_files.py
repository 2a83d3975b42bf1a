"""The files of evals: cases that are read, and results that are appended. Agents by name belong to the cases.

Decides what both files look like; the cases check themselves. A file of cases holds a list, or an object with that list
under `cases`. The other keys of the object are defaults for all cases:

    {"agent": "agents:triage_agent", "cases": [{"conversation": "Where is my bag?", "function": "find_bag"}]}

A file of results is a JSON list with one record for each evaluation, as Swarm's evals keep it. No record is ever lost.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._files import replacing
from aswarm._json import is_array, is_object, shown
from aswarm._text import how_to_install

from ._case import Case, as_case

_LINE = 60  # characters of a value in a message


def load_cases(path: str | os.PathLike[str], *, agent: Agent | str | None = None) -> list[Case]:
    """The cases of a file, JSON or YAML by its ending (see `FORMATS`). Swarm's files can be read unchanged.

    `agent` replaces every agent that the file names. An agent stays a name here; `evaluate` imports it. Raises
    ConfigurationError that names the file and the case, and OSError if the file cannot be read.
    """
    path = Path(path)
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigurationError(f"{path}: a file of cases must end with {', '.join(FORMATS)}")
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
        raise ConfigurationError(f"YAML files need pyyaml: {how_to_install('evals')}") from error

    class Loader(yaml.SafeLoader):
        """Safe. Values that JSON has no number for (a date, 12:30, 0o17) stay text, as they are in a model's arguments."""

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
FORMATS = (".json", ".yaml", ".yml")
"""The endings of the files that `load_cases` reads."""


def import_agent(reference: str) -> Agent:
    """The agent that "module:attribute" names. Raises ConfigurationError if there is no such agent."""
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(f"an agent must be named as module:attribute, not {reference!r}")
    try:
        found: object = reduce(getattr, attribute.split("."), importlib.import_module(module))
    except Exception as error:  # a module can raise anything
        raise ConfigurationError(f"there is no agent {reference!r}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Agent):
        raise ConfigurationError(f"{reference!r} must be an Agent, not {shown(found, _LINE)}")
    return found


class ResultsError(OSError):
    """The results cannot be written. `strerror` says why."""


class ResultsFile:
    """A file that records are appended to. Only one evaluation may write to it at a time.

    Made before the first request. Raises ConfigurationError if the file cannot be written, or holds anything but JSON.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).resolve()
        if self._path.exists() and not self._path.is_file():  # a device may have no end
            raise ConfigurationError(f"{self._path} cannot be written: it is not a regular file")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._path.parent):
                self._records()
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be written: {error.strerror}") from error

    def append(self, record: dict[str, Any]) -> None:
        """Add a record. The whole file is replaced, so that it is never half written. Raises ResultsError."""
        try:
            text = json.dumps([*self._records(), record], indent=2, ensure_ascii=False, default=_plain)
            with replacing(self._path) as file:
                # A model can write half a surrogate pair. UTF-8 cannot hold it; JSON has this escape for it.
                file.write(f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise ResultsError(*error.args) from error

    def _records(self) -> list[Any]:
        try:
            known: Any = json.loads(self._path.read_text(encoding="utf-8") or "[]")
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise ConfigurationError(f"{self._path} is not a results file: {error}") from error
        return list(known) if is_array(known) else [known]


def _plain(value: object) -> str:
    return str(getattr(value, "__name__", value))
