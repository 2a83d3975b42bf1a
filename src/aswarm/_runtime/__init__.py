"""What anyio and processes do not give: tasks without a parent, one value for each event loop, bounded threads, forks.

Knows nothing of agents, tools or models.
"""
