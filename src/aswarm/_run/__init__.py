"""One run: its options, its state, the plan of its tool calls, the loop, and the streams that show it.

Decides what happens next in a run. Never knows which provider answers, or who reads the events. Effects go through the
two handlers only.
"""
