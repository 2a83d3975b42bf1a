"""From a function to a tool that a model can call.

Decides the schema of a function, how arguments are converted, which functions an agent offers, and what a result means.
Never runs a function, and does no I/O.
"""
