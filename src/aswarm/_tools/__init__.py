"""Tools: functions that a model can call.

The package creates the schema of a function, converts arguments and results, and lists the tools of an agent. It never runs a
function, and does no I/O.
"""
