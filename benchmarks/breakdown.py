"""Prints the CPU of a turn by package, and by function of one package.

    python breakdown.py [--contender aswarm_] [--at-once 1] [--past 0] [--stream] [--seconds 5]

A sample of the stack is taken at each millisecond of CPU. It counts for the innermost frame of a package in the list below. So
the standard library counts for its caller. Sampling keeps the proportions: a tracing profiler would add a cost to each call, and
make layers with many small calls look too expensive.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections import Counter
from collections.abc import Sequence
from types import FrameType

from processes import server
from scenario import Session, history, opener_of

PACKAGES = {
    "aswarm": "aswarm",
    "openai": "openai SDK",
    "httpx": "httpx",
    "httpx2": "httpx",
    "httpcore": "httpx",
    "httpcore2": "httpx",
    "h11": "httpx",
    "aiohttp": "aiohttp",
    "httpx_aiohttp": "aiohttp",
    "anyio": "anyio",
    "pydantic": "pydantic",
    "asyncio": "asyncio",
    "contenders": "the program",
}
# Packages that other packages call. Their samples are counted separately for each calling package.
_SERVANTS = ("anyio", "asyncio", "pydantic")
_INTERVAL = 0.001


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _nearest(frame: FrameType | None, besides: Sequence[str] = ()) -> tuple[FrameType | None, str]:
    """Return the innermost frame of a package in the list, and the name of the package."""
    while frame is not None:
        package = PACKAGES.get(_module(frame).partition(".")[0])
        if package is not None and package not in besides:
            return frame, package
        frame = frame.f_back
    return None, "the event loop"


class Sampler:
    """Counts samples by package, and by function of the chosen package."""

    def __init__(self, inside: str) -> None:
        self.inside = inside
        self.packages: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()

    def sample(self, _: int, frame: FrameType | None) -> None:
        """Count a sample. This is the handler of SIGPROF."""
        frame, package = _nearest(frame)
        if frame is None:
            self.packages["other"] += 1
            return
        self.functions[f"{_module(frame)}.{frame.f_code.co_qualname}"] += package == self.inside
        if package in _SERVANTS:
            _, master = _nearest(frame.f_back, besides=_SERVANTS)
            package = f"{package}, for {master}"
        self.packages[package] += 1

    def shares(self, counts: Counter[str], most: int) -> list[str]:
        """Return the lines of a Markdown table with the largest shares."""
        total = self.packages.total()
        return [f"| {name} | {count / total:.1%} |" for name, count in counts.most_common(most) if count]


async def work(session: Session, arguments: argparse.Namespace, seconds: float) -> int:
    """Hold conversations, or stream answers, for this number of seconds of CPU. Returns their number."""
    prepared, done, end = session.prepare(history(arguments.past)), 0, time.process_time() + seconds
    while time.process_time() < end:
        if not arguments.stream:
            await asyncio.gather(*(session.converse(prepared) for _ in range(arguments.at_once)))
            done += arguments.at_once
        else:
            async for _ in session.stream():
                pass
            done += 1
    return done


async def main(arguments: argparse.Namespace) -> None:
    """Sample, and print the shares."""
    async with server() as url:
        options = "script=answer/chunks=1000/" if arguments.stream else ""
        session: Session = await opener_of(arguments.contender)(f"{url}/{options}v1")
        await work(session, arguments, 0.5)
        sampler = Sampler(arguments.inside)
        signal.signal(signal.SIGPROF, sampler.sample)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL, _INTERVAL)
        begun = time.process_time()
        done = await work(session, arguments, arguments.seconds)
        signal.setitimer(signal.ITIMER_PROF, 0)
        spent = time.process_time() - begun
        await session.close()
    print(
        f"{spent / done * 1e6:,.0f} µs of CPU for each {'answer of 1,000 chunks' if arguments.stream else 'conversation'}"
    )
    print("\n| package | share |\n|---|---|", *sampler.shares(sampler.packages, 20), sep="\n")
    print(f"\n| function of {arguments.inside} | share |\n|---|---|", *sampler.shares(sampler.functions, 15), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", default="aswarm_")
    parser.add_argument("--inside", default="aswarm", help="the package whose functions are listed")
    parser.add_argument("--at-once", type=int, default=1, help="conversations at once")
    parser.add_argument("--past", type=int, default=0)
    parser.add_argument("--stream", action="store_true", help="answers of 1,000 chunks")
    parser.add_argument("--seconds", type=float, default=5)
    asyncio.run(main(parser.parse_args()))
