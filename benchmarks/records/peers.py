"""Steps a second, compared with the DBOS integrations of pydantic-ai and openai-agents: the conversation of `durable_runs.py`.

It needs `--peers DIRECTORY` with the environments of `durable_peers.toml`; `nox -s deep -- bench_durable` makes them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import common

_RUNS, _AT_ONCE = 100, 50


async def rounds(made: Any, given: Any) -> None:
    """Let the contenders take turns, and print the lines."""
    from durable_runs import STEPS, pythons_of, worker  # noqa: PLC0415 - needs a PostgreSQL server
    from processes import server  # noqa: PLC0415 - as above

    pythons = pythons_of(given.peers)
    if len(pythons) == 1:
        print("| steps a second, to peers: left out, no environments in --peers | | | |")
    async with server() as model:
        for store in common.STORES:
            found: dict[str, list[float]] = {name: [] for name in pythons}
            for turn in range(given.rounds):
                for name in list(found)[:: 1 if turn % 2 == 0 else -1]:
                    arguments = ("hold", name, model, made.empty(store), _RUNS, _AT_ONCE)
                    result = await asyncio.to_thread(worker, pythons[name], *map(str, arguments))
                    found[name].append(_RUNS * STEPS / result["wall"])
            for name, values in found.items():
                common.line(f"steps a second, {name.strip('_')}, {store}", values)
                if name != "aswarm_":
                    ratios = [ours / theirs for ours, theirs in zip(found["aswarm_"], values, strict=True)]
                    common.line(f"- aswarm to {name.strip('_')}, {store}", ratios, 2)


def measure(given: Any) -> None:
    """Print the lines, or a note if there are no peers."""
    with common.databases() as made:
        asyncio.run(rounds(made, given))
