"""Evals of the airline's handoffs: JSON cases, each run several times, and a report of the accuracy.

    python examples/airline/evals.py [--repeats N] [--results FILE] [--threshold SHARE]

The cases are in Swarm's format: a conversation, and the name of the expected first function, or "None". An attempt is one
completion, and no function is executed. The exit code is 1 if the accuracy is below the threshold.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from agents import CONTEXT, flight_modification, triage

from aswarm.evals import evaluate, load_cases

CASES = Path(__file__).parent / "cases"


def main() -> int:
    """Run all cases of both files and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="how often each case is run")
    parser.add_argument("--results", help="a JSON file that a record of this evaluation is appended to")
    parser.add_argument("--threshold", type=float, default=0.7, help="the accuracy that is asked for, 0.0 to 1.0")
    options = parser.parse_args()
    cases = [
        *load_cases(CASES / "triage.json", agent=triage),
        *load_cases(CASES / "flight_modification.json", agent=flight_modification),
    ]
    cases = [replace(case, context_variables=CONTEXT) for case in cases]
    report = asyncio.run(evaluate(None, cases, repeats=options.repeats, results=options.results, progress=True))
    print(report)
    return 0 if report.accuracy >= options.threshold else 1


if __name__ == "__main__":
    sys.exit(main())
