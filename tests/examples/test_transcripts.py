"""The transcripts in the READMEs of the examples."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.examples.transcripts import EXAMPLES, Runs, Transcript, check_output, run_offline, transcripts

ALL = [
    each
    for path in sorted(EXAMPLES.glob("*/README.md"))
    if path.parent.name != "demo"
    for each in transcripts(path.parent.name)
]


@pytest.mark.parametrize("transcript", ALL, ids=str)
def test_a_command_prints_its_transcript(transcript: Transcript, runs: Runs) -> None:
    """The command prints the transcript word for word, from an empty folder, with nobody at the keyboard."""
    check_output(transcript, runs[transcript].result())


def test_every_basic_script_has_a_transcript() -> None:
    """The README of the basic examples shows each script."""
    shown = {shlex.split(transcript.command)[1] for transcript in transcripts("basic")}
    assert shown == {path.name for path in (EXAMPLES / "basic").glob("*.py")} - {"script.py"}


def test_every_step_of_customer_service_has_a_transcript() -> None:
    """The README of customer service shows each step in order."""
    steps = [transcript.command.removeprefix("customer_service ") for transcript in transcripts("customer_service")]
    assert steps == ["1_routine.py", "2_functions.py", "3_handoff.py", "--yes"]


def test_evals_below_the_threshold_keep_their_record(tmp_path: Path) -> None:
    """The exit code is 1, and the results file has the calls."""
    results = tmp_path / "results.json"
    done = run_offline("airline", "evals.py", "--repeats", "1", "--threshold", "0.9", "--results", str(results))
    assert done.returncode == 1, done.stderr
    [record] = json.loads(results.read_text(encoding="utf-8"))
    assert record["total_evals"] == 9
    assert record["results"][0]["actual_function"] == ["transfer_to_lost_baggage"]
