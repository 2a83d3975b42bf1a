"""Frames of server-sent events: data, a heartbeat, and the time after which a client reconnects."""

from __future__ import annotations

MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b":\n\n"  # a comment, which clients ignore; it keeps a proxy from closing a silent connection


def retry(milliseconds: int) -> bytes:
    """Return the frame that sets the time after which a browser reconnects.

    If a stream ends before its run, it sends this frame.
    """
    return b"retry: %d\n\n" % milliseconds


def data_frame(data: bytes) -> bytes:
    """Return a server-sent event with one line of data."""
    return b"data: %b\n\n" % data
