"""Faults of aswarm that the programs have found, and that are not mended yet.

A program leaves out the check of a known finding, so that it still finds other faults. A test checks that each finding is still a
fault: delete its line here after it is mended.
"""

from __future__ import annotations

KNOWN = {
    # name: the program
    "hedge counts a second request that was never sent": "hedged",
    "hedge keeps the loser open": "hedged",
    "what a middleware writes beside an eager call is lost": "middlewares",
    "what a middleware writes beside a call without context is lost in a replay": "crashed_middleware",
}


def is_known(name: str) -> bool:
    """Return whether the programs leave out the check of this finding."""
    return name in KNOWN
