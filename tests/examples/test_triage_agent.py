"""The tea shop: conversation and evals are as its README shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.transcripts import Runs, Transcript, check_output, run_offline, transcripts


@pytest.mark.parametrize("transcript", transcripts("triage_agent"), ids=str)
def test_the_program_prints_what_the_readme_shows(transcript: Transcript, runs: Runs) -> None:
    """Every transcript of the README."""
    check_output(transcript, runs[transcript].result())


def test_the_evals_append_to_the_results_file(tmp_path: Path) -> None:
    """One record for each evaluation, with the accuracy that was printed."""
    results = tmp_path / "results.json"
    results.write_text("[{}]", encoding="utf-8")
    done = run_offline("triage_agent", "evals.py", "--results", str(results))
    _, record = json.loads(results.read_text(encoding="utf-8"))
    assert record["overall_accuracy_percent"] == "90.00%"
    assert done.stdout.splitlines()[-1].split() == ["9/10", "90.0%", "all"]
