"""Wires: the protocols with which clients start runs and read their entries.

Each protocol has a folder: `encoder` turns entries into frames, `input` reads requests (both are `wire` for the native protocol),
and `routes` has the endpoints.
"""
