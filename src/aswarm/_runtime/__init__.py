"""Additions to anyio and the standard library: tasks without a parent, values per event loop or process, threads, files.

Runs work beside a run. Does not depend on agents, tools or models.
"""
