"""`Swarm`: the engine of `AsyncSwarm` without `await`.

The modules, from the lowest to the highest:

- `event_loop`: the thread of the event loop.
- `interrupts`: Ctrl-C.
- `jobs`: functions for the caller's thread.
- `caller`: a thread that waits for a run.
- `engine`: the engine of `Swarm`.
- `sync_streams`, `sync_swarm`: the public classes.
"""
