"""`aswarm batch`: reads conversations from a file or a pipe, and writes one outcome on each line.

Decides what a line of input means, what a line of output holds, and what the user is told. Never runs an agent itself:
that is `AsyncSwarm.batch`.
"""
