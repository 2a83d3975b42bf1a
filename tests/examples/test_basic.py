"""The basic examples: each runs as its README says."""

from __future__ import annotations

import shlex

import pytest

from tests.examples.transcripts import EXAMPLES, Runs, Transcript, check_output, transcripts

TRANSCRIPTS = transcripts("basic")


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=str)
def test_the_script_prints_what_the_readme_shows(transcript: Transcript, runs: Runs) -> None:
    """Every transcript of the README."""
    check_output(transcript, runs[transcript].result())


def test_every_script_has_a_transcript() -> None:
    """A new script is shown in the README."""
    shown = {shlex.split(transcript.command)[1] for transcript in TRANSCRIPTS}
    assert shown == {path.name for path in (EXAMPLES / "basic").glob("*.py")} - {"script.py"}
