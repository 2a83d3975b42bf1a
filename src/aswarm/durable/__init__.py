"""Durable runs: a run survives its process, may wait for days, and can run on any machine that shares the database.

`DurableRuns` puts a run into a queue, in the transaction that records the run. DBOS only decides which process executes a run,
and when: for DBOS, a run is one workflow without steps. `aswarm.runs` records and replays the run, as it does for `LocalRuns`.
Each execution is an attempt with a number, and only the newest attempt may write.
"""

from aswarm._values import public_names as _public

from ._durable_runs import DurableRuns

__all__ = ["DurableRuns"]

_public.publish(globals())
