"""The basic examples: each runs as its README says."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from subprocess import CompletedProcess

import pytest
from transcripts import EXAMPLES, Transcript, check_output, run_offline, transcripts

TRANSCRIPTS = transcripts("basic")
Runs = dict[Transcript, Future[CompletedProcess[str]]]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """All commands, a few at a time: most of a run is spent importing."""
    with ThreadPoolExecutor(4) as pool:
        yield {transcript: pool.submit(run_offline, *shlex.split(transcript.command)) for transcript in TRANSCRIPTS}


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=str)
def test_the_script_prints_what_the_readme_shows(transcript: Transcript, runs: Runs) -> None:
    """Every transcript of the README."""
    check_output(transcript, runs[transcript].result())


def test_every_script_has_a_transcript() -> None:
    """A new script is shown in the README."""
    shown = {shlex.split(transcript.command)[1] for transcript in TRANSCRIPTS}
    assert shown == {path.name for path in (EXAMPLES / "basic").glob("*.py")} - {"script.py"}
