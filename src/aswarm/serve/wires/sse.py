"""Frames of server-sent events: data, a heartbeat, and the time after which a client reconnects."""

from __future__ import annotations

MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b":\n\n"  # a comment, which clients ignore; it keeps a proxy from closing a silent connection
# If a stream ends before its run, its last frame makes a browser reconnect to a service that restarts, after a second.
RECONNECT = b"retry: 1000\n\n"


def data_frame(data: bytes) -> bytes:
    """Return a server-sent event with one line of data."""
    return b"data: %b\n\n" % data
