"""What neither anyio nor the standard library has: tasks without a parent, a value per event loop or process, threads.

Decides how work runs beside a run. Knows nothing of agents, tools or models.
"""
