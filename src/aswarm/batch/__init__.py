"""Thousands of conversations at once: what `AsyncSwarm.batch` takes and gives.

async with swarm.batch(agent, tickets, concurrency=200) as outcomes:
    async for outcome in outcomes:
        print(outcome.id, outcome.error or outcome.response.text)
"""

from ._batch import Batch
from ._item import Item, Outcome

__all__ = ["Batch", "Item", "Outcome"]
