"""The weather agent: conversation and evals are as its README shows."""

from __future__ import annotations

import pytest

from tests.examples.transcripts import Runs, Transcript, check_output, transcripts


@pytest.mark.parametrize("transcript", transcripts("weather_agent"), ids=str)
def test_the_program_prints_what_the_readme_shows(transcript: Transcript, runs: Runs) -> None:
    """Every transcript of the README."""
    check_output(transcript, runs[transcript].result())
