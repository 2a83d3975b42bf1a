"""Planted faults: each is still in the source where its table says, and the programs of the simulation find it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.testing.faults import FAULTS, Fault, planted, search
from tests.support.testing.universes import PROGRAMS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_planted_fault_has_its_text_in_the_source(fault: Fault, tmp_path: Path) -> None:
    """A fault that changes nothing would count as missed, or worse, as found by another cause."""
    file = planted(fault, tmp_path, fault.file) / "aswarm" / fault.file
    compile(file.read_text(), file.name, "exec")
    assert set(fault.programs) <= set(PROGRAMS)


def test_a_fault_without_its_text_is_an_error(tmp_path: Path) -> None:
    """The error names the fault and the file."""
    lost = replace(FAULTS[0], old="not in the file")
    with pytest.raises(LookupError, match=r"_record/log\.py has the text 0 times"):
        planted(lost, tmp_path, lost.file)


@pytest.mark.processes
@pytest.mark.slow
def test_a_planted_fault_is_found_in_a_process_of_its_own() -> None:
    """`nox -s deep -- simulate_faults` plants all."""
    fault = next(each for each in FAULTS if each.name == "one turn more than the budget")
    (line,) = search(replace(fault, programs=("budgets",)), 40)
    assert not line.startswith("MISSED"), line
