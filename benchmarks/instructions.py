"""Prints the bytecode instructions of aswarm in a turn, and the functions with the most instructions.

    python instructions.py [--functions 20]

The number depends only on the code and on the version of Python, so it shows a change that is too small for a clock: a new loop,
comprehension or copy. The conversation has the turns of the other benchmarks, with a scripted model instead of a server.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import aswarm
from aswarm import Agent, AsyncSwarm
from aswarm.testing import ScriptedModel, call

_ASWARM = str(Path(aswarm.__file__).parent / "_")  # the loop and its rooms, and not `aswarm.testing`
TURNS = [call("get_weather", city="Oslo"), call("transfer_to_b"), [call("get_time"), call("get_news")], "It is sunny."]


async def get_weather(city: str) -> str:
    """Return the weather."""
    return "sunny"


async def get_time() -> str:
    """Return the time."""
    return "noon"


async def get_news() -> str:
    """Return the news."""
    return "none"


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the instructions of aswarm in the block, by function."""
    counts: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        # The constructor of a dataclass has no file.
        if not code.co_filename.startswith(_ASWARM) and not frame.f_globals["__name__"].startswith("aswarm."):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counts[code.co_qualname] += event == "opcode"
        return trace

    gc.collect()
    gc.disable()
    sys.settrace(trace)
    try:
        yield counts
    finally:
        sys.settrace(None)
        gc.enable()


async def count() -> Counter[str]:
    """Return the instructions of a run. An earlier run makes the objects that a program makes once."""
    b = Agent(name="b", functions=[get_time, get_news])
    a = Agent(name="a", functions=[get_weather, b])
    swarm = AsyncSwarm(client=ScriptedModel(TURNS * 2).client())
    await swarm.run(a, [])
    with counting() as counts:
        response = await swarm.run(a, [])
    if response.text != TURNS[-1]:
        raise RuntimeError(f"the answer was {response.text!r}")
    return counts


async def main(functions: int) -> None:
    """Count two runs, and print the number of a turn. Raise RuntimeError if the runs differ."""
    counts = await count()
    if (again := await count()) != counts:
        raise RuntimeError(f"two runs differ: {counts - again}, {again - counts}")
    print(f"{counts.total() / len(TURNS):,.1f} instructions in a turn, Python {platform.python_version()}")
    if functions:
        print("\n| function | instructions in a turn |\n|---|---|")
    for name, number in counts.most_common(functions):
        print(f"| {name} | {number / len(TURNS):,.1f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=20, help="the number of functions in the table")
    asyncio.run(main(parser.parse_args().functions))
