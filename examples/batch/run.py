"""Routes all tickets of `tickets.jsonl`, twenty at once, and prints the tickets of each queue.

With `--journal FILE`, the same command continues after a crash.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from agents import router

from aswarm import AsyncSwarm, Usage
from aswarm.batch import Item

TICKETS = Path(__file__).with_name("tickets.jsonl")


def tickets() -> Iterator[Item]:
    """Yield the items. The batch reads one only when it needs one, so the file may be larger than the memory."""
    with TICKETS.open(encoding="utf-8") as file:
        for line in file:
            ticket = json.loads(line)
            messages = ticket.get("messages") or ticket["input"]
            yield Item(messages, id=ticket["id"], metadata=ticket["metadata"])


async def main(journal: Path | None) -> None:
    """Run the batch, and print the sorted outcomes."""
    queues: defaultdict[str, list[str]] = defaultdict(list)
    urgent: list[str] = []
    unrouted: list[str] = []
    usage = Usage()
    async with (
        AsyncSwarm() as swarm,
        swarm.batch(router, tickets(), concurrency=20, journal=journal) as outcomes,
    ):
        async for outcome in outcomes:
            usage += outcome.usage
            if outcome.response is None:
                print(f"{outcome.id} failed: {outcome.error}")
                continue
            variables = outcome.response.context_variables
            if "queue" not in variables:  # a model may answer without the call
                queues["human"].append(str(outcome.id))
                unrouted.append(str(outcome.id))
                continue
            queues[variables["queue"]].append(str(outcome.id))
            if variables["urgency"] == "high":
                urgent.append(
                    f"{outcome.id} ({outcome.metadata['channel']}, {variables['queue']}): {variables['summary']}"
                )
    for queue, ids in sorted(queues.items()):
        print(f"{queue:10}{len(ids):3}  {' '.join(sorted(ids)[:5])}{' ...' if len(ids) > 5 else ''}")  # noqa: PLR2004 - to fit a line
    print("\nurgent:", *sorted(urgent), sep="\n  ")
    if unrouted:
        print("\nnot routed, so for a human to look at:", *sorted(unrouted), sep="\n  ")
    print(f"\n{sum(map(len, queues.values()))} tickets, {usage.requests} completions, {usage.total_tokens:,} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", type=Path, help="a file that keeps every finished turn")
    asyncio.run(main(parser.parse_args().journal))
