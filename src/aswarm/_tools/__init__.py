"""Makes tools of functions, which a model can call.

Decides the schema of a function, the conversion of arguments and results, and the tools of an agent. Never runs a function,
and does no I/O.
"""
