"""Encoder of the native wire: each entry of the log as one server-sent event, whose `id` is the `seq` of the entry.

A browser's `EventSource` sends the last id when it reconnects, so a reader gets each entry once.
"""

from __future__ import annotations

from collections.abc import Mapping

from aswarm._record.entries import Entry
from aswarm.serve.wires.sse import MEDIA_TYPE


class NativeWire:
    """The native wire: an entry is a server-sent event, with its number as id and its JSON as data.

    It has no state: all readers get the same frames.
    """

    media_type = MEDIA_TYPE
    headers: Mapping[str, str] = {}

    def encode(self, entry: Entry) -> list[bytes]:
        """Return the frames of the next entry."""
        return [b"id: %d\ndata: %b\n\n" % (entry.seq, entry.to_json())]
