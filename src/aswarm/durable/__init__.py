"""Durable runs: a run survives its process, may wait for days, and runs on any machine that shares the database.

It decides which process executes a run, what of it is recorded, and what a process does with the runs of a dead one. It never
decides how a run goes: to a run it is a middleware, whose two handlers record their outcomes as steps of the engine, which is
DBOS. What readers and clients of a run get is decided by `aswarm.serve`.

    complete    one step: the completion, with a fingerprint of its request
    call_tool   two steps: the function is about to run; how the call has ended

| the process died | what the next one does |
|---|---|
| before the completion was recorded | it asks the model again |
| before the start of a call was recorded | the function has not run: it runs |
| after that, before its outcome was recorded | the call is answered "cancelled; its outcome is unknown", unless it is repeatable |
| after the outcome was recorded | the call is answered from the record |
"""

from aswarm import _public

from ._durable_run import DurableRun
from ._durable_runs import DurableRuns

__all__ = ["DurableRun", "DurableRuns"]

_public.publish(globals())
