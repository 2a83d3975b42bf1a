"""`aswarm batch`: reads conversations from a file or a pipe, and writes one outcome on each line.

`AsyncSwarm.batch` runs the agents, or `DurableRuns` for the URL of a database. This folder reads the input, writes the output,
skips the items that are finished in the output, and reports on stderr. Lines are only appended, and a crash may cut off a line.
"""
