"""One run: its options, state, plan of tool calls, loop and streams.

Decides the next step of a run. Does not depend on the provider, or on the reader of the events. Effects go through the two
handlers only.
"""
