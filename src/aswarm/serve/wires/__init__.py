"""Wires: the protocols over which clients start runs and read their entries.

Each protocol has a folder: `encoder` turns entries into frames, `input` reads requests, `routes` has the endpoints.
"""
