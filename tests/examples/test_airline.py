"""The airline: conversations and evals are as its README shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.transcripts import EXAMPLES, Runs, Transcript, check_output, run_offline, transcripts


@pytest.mark.parametrize("transcript", transcripts("airline"), ids=str)
def test_the_program_prints_what_the_readme_shows(transcript: Transcript, runs: Runs) -> None:
    """Every transcript of the README."""
    check_output(transcript, runs[transcript].result())


def test_below_the_threshold_the_exit_code_is_1_and_the_record_is_kept(tmp_path: Path) -> None:
    """CI sees the exit code; the results file has what was asked and called."""
    results = tmp_path / "results.json"
    done = run_offline("airline", "evals.py", "--repeats", "1", "--threshold", "0.9", "--results", str(results))
    assert done.returncode == 1, done.stderr
    [record] = json.loads(results.read_text(encoding="utf-8"))
    assert record["total_evals"] == 9
    assert record["results"][0]["actual_function"] == ["transfer_to_lost_baggage"]


def test_the_cases_are_in_swarms_format() -> None:
    """A list of conversations, each with the name of a function or "None"."""
    for path in (EXAMPLES / "airline" / "cases").glob("*.json"):
        cases = json.loads(path.read_text(encoding="utf-8"))
        assert all(set(case) == {"conversation", "function"} for case in cases)
