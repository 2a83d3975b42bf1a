"""Values that users make and get: agents, messages, events, decisions, budgets, errors; and helpers for text and JSON.

The package decides the valid content of a value, and its form as data. It uses no tools, providers or runs, and does no I/O.
"""
