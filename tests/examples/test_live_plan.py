"""What `examples/live.py` runs is there: it needs a real model itself, and would tell only then."""

from __future__ import annotations

import runpy

import pytest

from tests.examples.transcripts import EXAMPLES

PLAN = runpy.run_path(str(EXAMPLES / "live_plan.py"))
SOURCES = {
    script: [path.read_text("utf-8") for path in (EXAMPLES / script).parent.glob("*.py")] for script in PLAN["EXAMPLES"]
}


def test_every_example_of_the_plan_is_there() -> None:
    """A script that is renamed is renamed in the plan."""
    assert all((EXAMPLES / script).is_file() for script in SOURCES)


@pytest.mark.parametrize("said", PLAN["PLAN"])
def test_every_sentence_of_the_plan_is_said(said: str) -> None:
    """The plan goes by what the user says, word for word."""
    assert any(f'"{said}"' in source for sources in SOURCES.values() for source in sources)
