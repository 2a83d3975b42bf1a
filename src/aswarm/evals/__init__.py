"""Evals: measure how often an agent behaves as expected, and report the failures.

    cases = load_cases("cases.json")  # or [Case("Where is my bag?", function="transfer_to_lost_baggage"), ...]
    report = asyncio.run(evaluate(triage_agent, cases, repeats=5, results="results.json"))
    print(report)
    assert report.accuracy >= 0.9

In pytest (the marker comes from anyio, which aswarm installs):

    @pytest.mark.anyio
    @pytest.mark.parametrize("case", load_cases("cases.json"), ids=str)
    async def test_triage(case):
        await assert_case(triage_agent, case)

YAML files need pyyaml, and the progress bar needs rich. The extra `evals` installs both packages; importing this module does
not import them.
"""

from aswarm._values import public_names as _public

from ._case import Case, CaseCall, Extent
from ._evaluate import assert_case, evaluate
from ._files import load_cases
from ._report import Attempt, CaseReport, Report

__all__ = [
    "Attempt",
    "Case",
    "CaseCall",
    "CaseReport",
    "Extent",
    "Report",
    "assert_case",
    "evaluate",
    "load_cases",
]

_public.publish(globals())
