"""Values that users create and receive: agents, messages, events, decisions, budgets, errors; and helpers for text and JSON.

The package checks the content of a value, and converts it to data. It imports no other package of aswarm, and does no I/O.
"""
