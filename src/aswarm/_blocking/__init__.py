"""`Swarm`: the same engine without `await`.

The modules, the lowest first: `event_loop` (the thread that owns the loop), `interrupts` (Ctrl-C), `jobs` (functions for
the caller's thread), `caller` (a thread that waits for a run), `sync_streams` and `sync_swarm` (the public classes).
"""
