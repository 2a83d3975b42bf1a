"""Planted faults: each is still in the source at the place in its table, and its programs and tests find it."""

from __future__ import annotations

import builtins
import dis
import re
from dataclasses import replace
from pathlib import Path
from types import CodeType

import pytest

from tests.support.testing.faults import FAULTS, Fault
from tests.support.testing.planting import check_tests, failures_without_faults, planted, run_tests, search
from tests.support.testing.universes import PROGRAMS

MODULE_NAMES = ("__file__", "__name__", "__module__", "__qualname__", "__annotations__")


def unknown_names(module: CodeType) -> set[str]:
    """Return the names that a module uses, and neither defines nor imports."""
    codes, used, defined = [module], set[str](), {*dir(builtins), *MODULE_NAMES}
    for code in codes:  # the list grows during the loop
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                used.add(step.argval)
            elif step.opname in ("STORE_GLOBAL", "STORE_NAME"):
                defined.add(step.argval)
    return used - defined


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_planted_fault_has_its_text_in_the_source(fault: Fault, tmp_path: Path) -> None:
    """A fault that changes nothing would count as missed, or worse, as found by another cause."""
    file = planted(fault, tmp_path, fault.file) / "aswarm" / fault.file
    assert not unknown_names(compile(file.read_text(), file.name, "exec"))  # a NameError fails nearly every test
    assert set(fault.programs) <= set(PROGRAMS)
    assert fault.programs or fault.tests
    check_tests(fault)


def test_a_fault_without_its_text_is_an_error(tmp_path: Path) -> None:
    """The error names the fault and the file."""
    lost = replace(FAULTS[0], old="not in the file")
    with pytest.raises(LookupError, match=r"_log/runs\.py has this text 0 times"):
        planted(lost, tmp_path, lost.file)


@pytest.mark.parametrize("test", ["tests/run/test_none.py::test_x", "tests/testing/test_planted_faults.py::test_x[1]"])
def test_a_fault_without_its_test_is_an_error(test: str) -> None:
    """The error names the fault and the test."""
    with pytest.raises(LookupError, match=rf"{FAULTS[0].name}.*there is no test {re.escape(test)}"):
        check_tests(replace(FAULTS[0], tests=(test,)))


@pytest.mark.processes
@pytest.mark.slow
def test_a_planted_fault_is_found_in_a_process_of_its_own() -> None:
    """`nox -s deep -- simulate_faults` plants all."""
    fault = next(each for each in FAULTS if each.name == "one turn more than the budget")
    (line,) = search(replace(fault, programs=("budgets",)), 40)
    assert not line.startswith("MISSED"), line


@pytest.mark.processes
@pytest.mark.slow
def test_a_planted_fault_is_found_by_its_test() -> None:
    """A test that passes with the fault, or fails without it, finds nothing. `nox -s deep -- test_faults` plants all."""
    fault = next(each for each in FAULTS if each.name == "the first handoff wins")
    (line,) = run_tests(fault)
    assert not line.startswith("MISSED"), line
    (line,) = run_tests(replace(fault, new=fault.old))
    assert line.startswith("MISSED"), line
    assert not failures_without_faults([fault])
