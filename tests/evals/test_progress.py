"""Progress: a bar or a line in a terminal, nothing elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from aswarm.evals import Case, evaluate
from tests.support.evals.evaluated import desk, swarm_that

CASES = [Case("Hi", function=None), Case("Hi", function="book")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def shown_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, progress: bool = True) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    await evaluate(desk, CASES, swarm=swarm_that({"Hi": "Hello"}), concurrency=1, progress=progress)
    return stream.getvalue()


@pytest.mark.anyio
async def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar of rich, with the counts."""
    monkeypatch.setenv("TERM", "xterm")
    shown = await shown_on(Terminal(), monkeypatch)
    assert "━" in shown
    assert "2/2, 1 passed" in shown


@pytest.mark.anyio
async def test_without_rich_a_line_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count replaces the last one, and the line ends."""
    monkeypatch.setitem(sys.modules, "rich", None)
    assert await shown_on(Terminal(), monkeypatch) == "\r1/2, 1 passed\r2/2, 1 passed\n"


@pytest.mark.anyio
async def test_elsewhere_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and pipes get nothing; nor does a terminal without `progress=True`."""
    assert await shown_on(io.StringIO(), monkeypatch) == ""
    assert await shown_on(Terminal(), monkeypatch, progress=False) == ""


@pytest.mark.anyio
async def test_what_is_printed_meanwhile_goes_where_stdout_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar on a terminal takes nothing from a stdout that is a file."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    case = Case("Hi", check=lambda response: print(response.text) or True)
    await evaluate(desk, [case], swarm=swarm_that({"Hi": "Hello"}), progress=True)
    assert capsys.readouterr().out == "Hello\n"
    assert "Hello" not in terminal.getvalue()
