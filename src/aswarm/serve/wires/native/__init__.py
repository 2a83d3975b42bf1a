"""The native wire: the entries of the log as server-sent events, with their numbers as ids."""
