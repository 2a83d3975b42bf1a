"""Batches: thousands of conversations at once, with `AsyncSwarm.batch`.

    async with swarm.batch(agent, tickets, concurrency=200, journal="tickets.sqlite") as outcomes:
        async for outcome in outcomes:
            print(outcome.id, outcome.response.text if outcome.error is None else outcome.error)

**Items.** An item is a conversation: a text, a list of messages, a pair of id and messages, or an `Item`. The batch reads an
item only when `concurrency` allows another item, so the iterable may be huge or endless. A plain iterable is read on the event
loop. If it may block (a slow file, a queue), use an async iterable. The batch reads all items in one task, and closes the
iterator at the end.

**Concurrency.** `concurrency` is the maximum of items in memory: running items, and outcomes that the consumer has not read. So
a slow consumer slows the batch down. With `ordered=True`, one slow item delays the outcomes after it. These outcomes count too,
so use a higher concurrency. `"auto"` starts with 10, and adapts to the answers of the provider.

**Failures.** If a completion fails temporarily (a 5xx, a lost connection), the batch retries it: at most `attempts` requests,
with waits of about 1, 2, 4... up to 60 seconds. The client's own `max_retries` is not used. A 429 or a Retry-After does not
count as an attempt. Instead, all runs of the swarm pause, and the request is sent up to ten times; or fewer times, if the
provider accepts other requests meanwhile. A retry repeats only one completion, so no tool call runs twice.

| what happens | what the batch does |
|---|---|
| an item fails, or is not a conversation | its outcome has the `error`; the other items run |
| an item fails, with `on_error="stop"` | it starts no further item; running items finish and have an outcome |
| reading the items raises | running items finish and have an outcome; then it raises that exception |
| the journal cannot be written | running items finish and have an outcome; then it raises a RunError |
| `break`, an exception, a timeout, cancellation | it cancels and awaits the running items, and closes the iterator |
| KeyboardInterrupt or SystemExit in an item | it cancels and awaits the running items, closes the iterator, and raises that exception |

**Journal.** With `journal=`, the batch records every step in a SQLite file. After a crash, run the same batch with the same
file. A finished item gets its recorded response. The other items continue: a recorded completion is not requested again, and a
recorded tool call does not run again. If a call had started, but has no recorded result, the model gets "cancelled; its outcome
is unknown", and the call is in `BatchResult.unknown_calls`. But a call of `@tool(repeatable=True)` runs again.

If a call of an item waits for a decision, the item finishes with `response.stop == "waiting"`. Continue it as a new item, with
another id, the whole history and `Item(..., resume=decisions)`. With a journal, each item needs a unique id; without a journal,
ids may repeat.

**Agents in a journal.** The journal records an agent by its name. A rerun first looks for this name in `agents=[...]`. Then it
looks among the agents in the `functions` of the agent of the item and of the listed agents, and among the agents that are values
of these functions: globals of the module, variables of a closure, defaults, and attributes of the object of a method. List other
agents, such as agents that a function gets from a registry. If an agent hands off to an agent that a rerun could
not find, the first run already raises an error.

Each item runs in a copy of the `contextvars` context in which the batch was opened. So an item cannot change the context of
another item.
"""

from aswarm._values import public_names as _public

from ._batch import Batch
from ._item import BatchResult, Completed, Failed, Item

__all__ = ["Batch", "BatchResult", "Completed", "Failed", "Item"]

_public.publish(globals())
