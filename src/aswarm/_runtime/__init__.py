"""Additions to anyio and the standard library: tasks without a parent, values per event loop or process, threads, files.

The package does not depend on agents, tools or models.
"""
