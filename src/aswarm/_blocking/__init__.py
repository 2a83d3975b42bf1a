"""`Swarm`: the engine of `AsyncSwarm` without `await`.

The modules, from the lowest to the highest:

- `event_loop`: the thread of the event loop, and Ctrl-C.
- `caller`: a thread that waits for a run, and calls its plain functions.
- `sync_streams`, `sync_swarm`: the public classes.
"""
