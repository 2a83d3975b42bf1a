"""The figures of recorded runs, one table line each.

    python benchmarks/records all
    python benchmarks/records frames copies        only these
    python benchmarks/records peers --peers DIRECTORY

Everything is measured through the public interface, so the same command measures any version of the package. The model answers at
once and in the process, except in `peers`, whose contenders share the server of the other benchmarks. Counts are exact; CPU is
`time.process_time()` of the process that runs, without the database server. Contenders of a ratio take turns, round by round, each in a
process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parent.parent))

FIGURES = ("frames", "copies", "statements", "latency", "plain_dbos", "peers", "queued", "readers", "leases")


def figures() -> None:
    """Measure the figures that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=(*FIGURES, "all"))
    parser.add_argument("--rounds", type=int, default=5, help="of each ratio")
    parser.add_argument("--queued", type=int, default=20_000, help="runs in the long queue")
    parser.add_argument("--peers", help="a folder with the environments of durable_peers.toml")
    given = parser.parse_args()
    print("| figure | median | lowest to highest | n |\n|---|---|---|---|", flush=True)
    for name in FIGURES if "all" in given.names else given.names:
        importlib.import_module(name).measure(given)


def child(name: str, arguments: str) -> None:
    """Call a function of this folder, `module:function`, and print its result as JSON."""
    module, _, function = name.partition(":")
    result = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    print(json.dumps(asyncio.run(result) if inspect.isawaitable(result) else result), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        figures()
