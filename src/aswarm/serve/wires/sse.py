"""Frames of server-sent events: data, a heartbeat, and the time before a client reconnects."""

from __future__ import annotations

MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b":\n\n"  # a comment, so that proxies do not close a silent connection


def retry(milliseconds: int) -> bytes:
    """Return the frame with the time before a browser reconnects, for a stream that stops before its run."""
    return b"retry: %d\n\n" % milliseconds


def data_frame(data: bytes) -> bytes:
    """Return a server-sent event with one line of data."""
    return b"data: %b\n\n" % data
