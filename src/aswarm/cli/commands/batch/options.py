"""The options of `aswarm batch`. They are checked before any input is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aswarm._values.budget import Budget
from aswarm._values.settings import ApiName, Transport
from aswarm.cli._exits import SetupError

from .output import rejected_path
from .readers import InputFormat, format_of


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The values of the command line."""

    source: str
    output: str
    concurrency: int | Literal["auto"]
    rpm: int | None
    tpm: int | None
    journal: Path | None
    resume: bool
    attempts: int | None
    on_error: Literal["keep", "stop"]
    ordered: bool
    format_name: str | None
    column: str | None
    id_column: str
    messages: bool
    transport: Transport
    api: ApiName
    model: str | None
    context: dict[str, Any]
    max_turns: int
    budget: Budget | None
    store: str | None
    code_version: str | None

    @property
    def input_format(self) -> InputFormat:
        """The format of the input."""
        return InputFormat(
            self.format_name or format_of(self.source), self.column, self.id_column, takes_decisions=self.store is None
        )

    @property
    def resumes(self) -> bool:
        """Whether the output may already have lines.

        With a journal it may: the lines are of this batch, because `AsyncSwarm.batch` rejects the journal of another batch.
        """
        return self.resume or (self.journal is not None and self.journal.exists())

    def check(self) -> None:
        """Raise SetupError if one file has two purposes, or if an option does not apply to durable runs."""
        if self.store is not None:
            self._check_durable()
        named = {"INPUT": self.source, "--output": self.output, "--journal": self.journal}
        places = {name: Path(place).resolve() for name, place in named.items() if place not in (None, "-")}
        places["the file for rejected lines"] = rejected_path(self.output).resolve()
        for name, place in places.items():
            other = next(key for key, value in places.items() if value == place)
            if other != name and Path("/dev") not in place.parents:
                raise SetupError(f"{place} is both {other} and {name}; they must be different files")

    def _check_durable(self) -> None:
        if self.code_version is None:
            raise SetupError(
                "--store needs --code-version: a process continues only runs of its own version of the code"
            )
        conflicts = {
            "--journal": self.journal,
            "--rpm": self.rpm,
            "--tpm": self.tpm,
            "--model": self.model,
            "--budget": self.budget,
            "--concurrency auto": self.concurrency == "auto",
            "--ordered": self.ordered,
            "--attempts": self.attempts,
        }
        for name, value in conflicts.items():
            if value:
                raise SetupError(
                    f"{name} is not for durable runs, which other processes may execute; remove {name}, or remove --store"
                )

    def resume_hint(self) -> str:
        """Return a text that explains how to continue a stopped batch."""
        if self.store is not None:
            return f"To continue, run the same command again: the runs are in {self.store}"
        if self.journal is not None:
            return f"To continue, run the same command again: finished turns are in {self.journal}"
        if self.output != "-":
            return (
                "To continue, run the same command again with --resume. (With --journal, unfinished items would "
                "continue too.)"
            )
        return "All items must run again. (With --journal, or with --output and --resume, only items without an outcome would.)"
