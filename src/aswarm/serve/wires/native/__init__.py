"""The native wire: each entry of the log is a server-sent event, and its number is the id of the event."""
