"""A file that records what the runs of a batch did, so that a rerun after a crash continues where they were.

It is a SQLite file (with a write-ahead log and a lock beside it while it is open), for one machine and one process at a
time, and no queue. To a run it is a middleware and nothing else: it wraps the two handlers, and the loop does not know of it.

What is recorded, in this order, and when it is written:

    completion   the whole completion, with its usage          together with the next record
    started      a function is about to run                    before it runs: the run waits until the record is on disk
    outcome      how the call ended                            at once; the run does not wait
    withdrawn    the call was cancelled before its function ran  like an outcome
    finished     the `Response` of the item                    before the outcome is given out: the run waits as above

One thread writes all records, in the order in which they were made, many in one transaction. So no record is there
without the records before it, and a crash can lose only the last ones. A record survives a crash of the process once it
is written, and a power failure once the next `started` or `finished` is on disk.

| the process died | what the rerun does |
|---|---|
| before `started` was written | the function has not run: it runs |
| after `started`, before `outcome` was written | the call is answered "cancelled; its outcome is unknown", see below |
| after `outcome` was written | the call is answered from the record |
| after `finished` was written | the recorded `Response` is returned, and nothing runs |

A call that was started and has no outcome is in `Response.unknown_calls`, and the record of a finished item has that list.
If the tool is repeatable, the call runs again instead.

A call of an agent that stands in `functions` is not recorded, because it has no effect and gives the same answer again.

A rerun begins each item at its start: the loop makes the same requests and calls, and the middleware answers them from
the record as far as the record goes. It compares each request with the recorded one. It need not compare calls, because
they come from recorded completions. What the record cannot hold is refused when it happens, not when it is needed:
context variables with values that JSON cannot hold, and handoffs to agents that a rerun could not find by name. The
record does not see what a tool does to an object in the context (a client, a cart).
"""

from .journal import Journal

__all__ = ["Journal"]
