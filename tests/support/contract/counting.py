"""The calls of functions, counted and not timed."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import aswarm

ASWARM = str(Path(aswarm.__file__).parent / "_")


@contextmanager
def counting(prefix: str = ASWARM) -> Iterator[Counter[str]]:
    """Count the frames that start or continue, by function, of files whose path starts with the prefix."""
    counts: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            counts[frame.f_code.co_qualname] += 1

    gc.collect()
    gc.disable()  # the garbage of other tests would be counted
    sys.setprofile(profile)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        gc.enable()
