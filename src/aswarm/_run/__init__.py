"""One run: its options, state, plan of tool calls, loop and streams.

This package decides the next step of a run. It knows neither the provider nor the code that reads the events. It calls the
model and the tools only through two handlers, see `handlers`.
"""
