"""The files of evals: files of cases are read, and results are appended to a results file.

A file of cases has a list of cases, or an object with this list as `cases`. The other keys of the object are defaults for all
cases:

    {"agent": "agents:triage_agent", "cases": [{"conversation": "Where is my bag?", "function": "find_bag"}]}

A results file is a JSON list with one record for each evaluation, as in Swarm's evals.

Security: A YAML file creates no objects; it imports only the modules that it names.
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

from aswarm._runtime.files import replacing
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object, shown
from aswarm._values.text import how_to_install

from ._case import Case, as_case

_LINE = 60  # characters of a value in a message


def load_cases(path: str | os.PathLike[str], *, agent: Agent | str | None = None) -> list[Case]:
    """Return the cases of a file. Its suffix decides whether it is JSON or YAML (see `FORMATS`). Swarm's files work unchanged.

    `agent`: replaces each agent in the file. If an agent is a name, `evaluate` imports it later. Raises ConfigurationError for
    an invalid case, with the file and the case in the text; OSError if the file cannot be read.
    """
    path = Path(path)
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigurationError(f"{path}: a file of cases must end with {', '.join(FORMATS)}")
    try:
        data = parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be parsed: {error}") from error
    return list(_cases(path, data, {} if agent is None else {"agent": agent}))


def _cases(path: Path, data: Any, overrides: dict[str, Any]) -> Iterator[Case]:
    listed: Any = data.get("cases") if is_object(data) else data
    if not is_array(listed) or not listed:
        raise ConfigurationError(f"{path}: expected a list of cases, or an object with this list as 'cases'")
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
        """A safe loader in which only JSON numbers are numbers: a date, 12:30 or 0o17 stays text.

        The arguments that a model writes are JSON, so the values of a case must be comparable with JSON.
        """

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
"""The suffixes of the files that `load_cases` reads."""


def import_agent(reference: str) -> Agent:
    """Return the agent with the name "module:attribute". Raises ConfigurationError if there is no such agent."""
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(f"an agent must be named as module:attribute, not {reference!r}")
    try:
        agent: object = reduce(getattr, attribute.split("."), importlib.import_module(module))
    except Exception as error:  # a module can raise anything
        raise ConfigurationError(f"there is no agent {reference!r}: {type(error).__name__}: {error}") from error
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"{reference!r} must be an Agent, not {shown(agent, _LINE)}")
    return agent


class ResultsError(OSError):
    """The results cannot be written. `strerror` has the reason."""


class ResultsFile:
    """A file of records. Only one evaluation may write to it at a time.

    Raises ConfigurationError if the file cannot be written, or is not JSON.
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
        """Append a record. This replaces the whole file, so that the file is never half written. Raises ResultsError."""
        try:
            text = json.dumps([*self._records(), record], indent=2, ensure_ascii=False, default=_plain)
            with replacing(self._path) as file:
                # A model can write half a surrogate pair. UTF-8 cannot encode it, but JSON has an escape for it.
                file.write(f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise ResultsError(*error.args) from error

    def _records(self) -> list[Any]:
        try:
            records: Any = json.loads(self._path.read_text(encoding="utf-8") or "[]")
        except FileNotFoundError:
            return []
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{self._path} is not a results file: {error}") from error
        return list(records) if is_array(records) else [records]


def _plain(value: object) -> str:
    return str(getattr(value, "__name__", value))
