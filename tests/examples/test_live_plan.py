"""The plan of `examples/live.py`, which itself needs a real model."""

from __future__ import annotations

import runpy

import pytest

from tests.examples.transcripts import EXAMPLES

PLAN = runpy.run_path(str(EXAMPLES / "live_plan.py"))
SOURCES = {
    script: [path.read_text("utf-8") for path in (EXAMPLES / script).parent.glob("*.py")] for script in PLAN["EXAMPLES"]
}


def test_every_example_of_the_plan_is_there() -> None:
    """Each script of the plan exists."""
    assert all((EXAMPLES / script).is_file() for script in SOURCES)


@pytest.mark.parametrize("sentence", PLAN["PLAN"])
def test_every_sentence_of_the_plan_is_in_an_example(sentence: str) -> None:
    """Each sentence of the plan is in an example, word for word."""
    assert any(f'"{sentence}"' in source for sources in SOURCES.values() for source in sources)
