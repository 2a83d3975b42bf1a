"""`Swarm`: the same engine without `await`.

Decides how a thread waits for the event loop, and what runs in the thread of the caller. Never decides how a run goes.
"""
