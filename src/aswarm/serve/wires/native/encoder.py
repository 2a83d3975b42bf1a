"""Encoder of the native wire: each entry of the log is one server-sent event. Its `id` is the number (`seq`) of the entry.

A browser's `EventSource` sends the last id when it reconnects. So a reader gets each entry once.
"""

from __future__ import annotations

from collections.abc import Mapping

from aswarm._record.entries import Entry
from aswarm.serve.wires.sse import MEDIA_TYPE


class NativeWire:
    """The native wire: each entry is a server-sent event. Its id is the number of the entry; its data is the entry as JSON.

    The wire has no state, so all readers get the same frames.
    """

    media_type: str = MEDIA_TYPE
    headers: Mapping[str, str] = {}

    def encode(self, entry: Entry) -> list[bytes]:
        """Return the frames of the next entry."""
        return [b"id: %d\ndata: %b\n\n" % (entry.seq, entry.to_json())]
