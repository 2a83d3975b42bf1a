"""Thousands of conversations at once: what `AsyncSwarm.batch` takes and gives.

    async with swarm.batch(agent, tickets, concurrency=200, journal="tickets.sqlite") as outcomes:
        async for outcome in outcomes:
            print(outcome.id, outcome.error or outcome.response.text)

Items are read one at a time, and only while there is room: there may be millions, or no end. A plain iterable is read on
the event loop, which waits for it: one that blocks (a slow file, a queue) belongs into an async iterable. Both are read
in one task, and closed at the end.

`concurrency` is how many items are in memory: running, or finished and not yet taken. So whoever takes outcomes slowly is
waited for. With `ordered=True` a slow item holds up those behind it, and their places; more concurrency makes up for it.

A completion that fails in a way that may pass (5xx, a lost connection) is asked for again, `attempts` times in all,
with pauses of about 1, 2, 4... up to 60 seconds; the client's own `max_retries` does not count here. A refusal for the
rate (429, or Retry-After) is no attempt: all runs of the swarm pause, and it is asked for again up to ten times; less
often where the others are taken meanwhile, for then it waits alone. The run goes on where it was: no tool call is
carried out twice. Ids are the caller's and need not differ, but for a journal, in which each item must have its own.
What an item leaves in Python's context variables is not seen by another.

| what happens | what comes of it |
|---|---|
| an item fails, or is no conversation | the `error` of its outcome, with `.response`; the others go on |
| the same, with `on_error="stop"` | no item is begun any more; those that run are finished and come out |
| reading the items raises | what has begun is finished and comes out; then that is raised, as it was |
| the journal cannot be written | the same: a RunError says so at the end |
| `break`, an exception, a timeout, cancellation | what runs is cancelled and awaited, the items are closed |
| KeyboardInterrupt, SystemExit in an item | the same, and it is raised |
"""

from aswarm import _public

from ._batch import Batch
from ._item import Item, Outcome

__all__ = ["Batch", "Item", "Outcome"]

_public.publish(globals())
