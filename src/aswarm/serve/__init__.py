"""Runs on the web: a run belongs to the service, and each request is a reader of its log.

The log of a run is a list of entries. A wire turns entries into the frames of one protocol, and reads what a client of
that protocol asks for. Everything here is a caller of `run()` and `stream()`: it never decides how a run goes. What a
client sends as history, as state or as an approval is data. It never becomes the history of the server.
"""
