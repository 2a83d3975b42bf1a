"""Makes tools of functions, which a model can call.

The package decides the schema of a function, the conversion of arguments and results, and the tools of an agent. It never runs
a function, and does no I/O.
"""
