"""A file that remembers what the runs of a batch did, so that a rerun after a crash goes on where they were.

SQLite, in one file (beside it, while it is open, a write-ahead log); for one machine and one process at a time. It is no
queue. It sits in the two doors of a run, where a durable engine would sit, and the loop does not know of it.

What is recorded, in this order, and when:

    completion   whole, with its usage                        with whatever is written next
    started      a function is about to run                   before it runs: the run waits until it is on the disk
    outcome      what the call led to                         at once; the run does not wait
    withdrawn    it was cancelled before the function ran     as an outcome
    finished     the `Response` of the item                   before the item is given out: the run waits as above

Everything goes through one writer, in the order in which it was recorded, many records at a time. So a record is never
there without those that led to it, and whatever a crash takes with it is the end. What nobody waits for outlives the
process as soon as it is written, and the power once the next `started` or `finished` is on the disk.

| the process died | the rerun |
|---|---|
| before `started` was there | the function has not run: it runs |
| after it, and before the outcome was there | nobody can tell: the call is answered "cancelled; its outcome is unknown" |
| after the outcome was there | the call is answered from the record |
| after `finished` was there | the recorded `Response` is given back, and nothing runs |

A call of an agent that stands in `functions` is not recorded: it has no effect, and says the same when it runs again.

A resumed item is run from its beginning: the loop asks for the same completions and calls, and the doors answer from the
record as far as it goes. Requests are compared with what was asked then, and calls need no comparison, because they
come from completions. What the record cannot hold is refused when it is met, not when it is needed: context variables
that are set to what is not JSON, and handoffs to agents that could not be found again by their names. What a tool does
to an object in the context (a client, a cart) is that object's, and is not seen.
"""

from .journal import Entry, Journal

__all__ = ["Entry", "Journal"]
