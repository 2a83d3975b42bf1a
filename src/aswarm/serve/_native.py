"""The native wire: each entry of the log as one server-sent event, whose `id` is the `seq` of the entry.

A browser's `EventSource` reads it, and sends the last id when it connects again. So a reader gets each entry once.
"""

from __future__ import annotations

from ._entries import Entry

MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b":\n\n"  # a comment: it keeps proxies from closing a connection that says nothing


def retry(milliseconds: int) -> bytes:
    """The frame that tells a browser when to connect again, as a stream that ends before its run."""
    return b"retry: %d\n\n" % milliseconds


def data_frame(data: bytes) -> bytes:
    """A server-sent event with one line of data."""
    return b"data: %b\n\n" % data


class NativeWire:
    """Encodes the entries of one run. It has no state: the frames of an entry are the same for each reader."""

    media_type = MEDIA_TYPE

    def encode(self, entry: Entry) -> list[bytes]:
        """The frames of the next entry."""
        return [b"id: %d\ndata: %b\n\n" % (entry.seq, entry.to_json())]
