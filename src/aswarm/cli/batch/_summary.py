"""What is told at the end of a batch, and the exit code where it was stopped. Decides no more than the words."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

import click

from aswarm.cli._exits import Code

from ._order import Order
from ._outcomes import FAILED
from ._progress import Tally
from ._rejected import Aside
from ._signals import Terminated


class Summary:
    """Around a batch: at its end tells what came of it, and where it was stopped, how to go on."""

    def __init__(self, order: Order, tally: Tally, aside: Aside, stderr: TextIO) -> None:
        self._order = order
        self._tally = tally
        self._aside = aside
        self._stderr = stderr

    def __enter__(self) -> None:
        """Nothing to tell yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._aside.close()
        is_interrupted = isinstance(error, KeyboardInterrupt)
        if error is None:
            self._tell("nothing to do", *self._stopped_by_a_failure())
        elif is_interrupted or self._tally.statuses:
            self._tell("none has ended", f"Stopped. {self._order.how_to_go_on()}")
        if is_interrupted:
            raise click.exceptions.Exit(Code.TERMINATED if isinstance(error, Terminated) else Code.INTERRUPTED)

    def _stopped_by_a_failure(self) -> list[str]:
        tally = self._tally
        left = None if tally.total is None else tally.total - tally.done
        if self._order.on_error != "stop" or not tally.statuses[FAILED] or tally.is_read or left == 0:
            return []
        not_begun = "" if left is None else f", {left:,} lines were not begun"
        return [f"Stopped: an item failed{not_begun}. {self._order.how_to_go_on()}"]

    def _tell(self, nothing: str, *more: str) -> None:
        lines = [*self._tally.summary(nothing), *more]
        if self._aside.count:
            lines.insert(1, f"{self._aside.count:,} lines could not be used: they are in {self._aside.path}")
        if self._order.output != "-":
            lines.append(f"Outcomes are in {self._order.output}")
        for line in lines:
            click.echo(line, file=self._stderr)
