"""`Swarm`: the same engine without `await`.

Decides how a thread waits for the event loop, and what runs in the thread of the caller. Never decides how a run goes.
From below: `event_loop` (the thread that owns the loop), `interrupts` (Ctrl-C), `jobs` (functions for the caller's
thread), `caller` (a thread that waits for a run), `sync_streams` and `sync_swarm` (what users see).
"""
