"""The options of `aswarm batch`. They are checked before any input is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from aswarm.cli._command import SetupError

from .output import rejected_path
from .readers import InputFormat, format_of

_NOT_DURABLE = ("rpm", "tpm", "model", "budget", "ordered", "attempts")


class CommandOptions(SimpleNamespace):
    """The values of the options of the command, under their names."""

    @property
    def is_durable(self) -> bool:
        """Whether each item is a durable run: the store is the URL of a database."""
        return self.store is not None and "://" in self.store

    @property
    def journal(self) -> Path | None:
        """The file that keeps the finished turns, if the store is a file."""
        return None if self.store is None or self.is_durable else Path(self.store)

    @property
    def input_format(self) -> InputFormat:
        """The format of the input."""
        name = self.format_name or format_of(self.source)
        return InputFormat(name, self.column, self.id_column, takes_decisions=not self.is_durable)

    def check(self) -> None:
        """Raise SetupError if one file has two purposes, or if an option does not apply to durable runs."""
        if self.is_durable:
            self._check_durable()
        named = {"INPUT": self.source, "--output": self.output, "--store": self.journal}
        places = {name: Path(place).resolve() for name, place in named.items() if place not in (None, "-")}
        places["the file for rejected lines"] = rejected_path(self.output).resolve()
        for name, place in places.items():
            other = next(key for key, value in places.items() if value == place)
            if other != name and Path("/dev") not in place.parents:
                raise SetupError(f"{place} is both {other} and {name}; they must be different files")

    def _check_durable(self) -> None:
        if self.code_version is None:
            raise SetupError(
                "a database needs --code-version: a process continues only runs of its own version of the code"
            )
        given = {f"--{name}": getattr(self, name) for name in _NOT_DURABLE}
        given["--concurrency auto"] = self.concurrency == "auto"
        for name in (name for name, value in given.items() if value):
            raise SetupError(
                f"{name} is not for durable runs, which other processes may execute; remove it, or use a file as --store"
            )

    def resume_hint(self) -> str:
        """Return a text that explains how to continue a stopped batch."""
        if self.store is not None:
            return f"To continue, run the same command again: {self.store} has the finished steps"
        if self.output == "-":
            return "All items must run again. (With --store FILE, the batch would continue.)"
        return (
            "To continue, run the same command again with --store FILE: items with an outcome are skipped. (With --store "
            "from the start, unfinished items would continue too.)"
        )
