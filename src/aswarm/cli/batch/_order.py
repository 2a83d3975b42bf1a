"""What the command line of `aswarm batch` says, checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aswarm._providers.default_client import Transport
from aswarm.cli._exits import Mistake

from ._readers import kind_of
from ._records import Form
from ._rejected import aside_of


@dataclass(frozen=True, slots=True)
class Order:
    """What the command line says."""

    source: str
    output: str
    concurrency: int | Literal["auto"]
    rpm: int | None
    tpm: int | None
    journal: Path | None
    resume: bool
    attempts: int
    on_error: Literal["keep", "stop"]
    ordered: bool
    kind: str | None
    column: str | None
    id_column: str
    messages: bool
    transport: Transport
    model: str | None
    context: dict[str, Any]
    max_turns: float

    @property
    def form(self) -> Form:
        return Form(self.kind or kind_of(self.source), self.column, self.id_column)

    @property
    def goes_on(self) -> bool:
        """A journal that is there is of this batch, or will be refused; without one, the caller has to say so."""
        return self.resume or (self.journal is not None and self.journal.exists())

    def check(self) -> None:
        """Raise Mistake where one file would be two things."""
        named = {"INPUT": self.source, "--output": self.output, "--journal": self.journal}
        places = {name: Path(place).resolve() for name, place in named.items() if place not in (None, "-")}
        places["the file for bad lines"] = aside_of(self.output).resolve()
        for name, place in places.items():
            other = next(key for key, value in places.items() if value == place)
            if other != name and Path("/dev") not in place.parents:
                raise Mistake(f"{place} is both {other} and {name}")

    def how_to_go_on(self) -> str:
        if self.journal is not None:
            return f"To go on, give the same command again: what is done is in {self.journal}"
        if self.output != "-":
            return "To go on, give the same command again with --resume. (With --journal, what had begun goes on too.)"
        return "What is not written has to run again; with --journal, or with --output and --resume, it can go on"
