"""Ids that have come: as a set would have them."""

from __future__ import annotations

from aswarm.cli.batch._ids import Ids


def test_ids_come_once() -> None:
    """However many there are."""
    ids = Ids()
    for expected in (True, False):
        assert all(ids.add(f"item-{number}") is expected for number in range(5000))
    assert ids.add("another")


def test_they_take_little_room() -> None:
    """Less than 25 bytes for each."""
    ids = Ids()
    for number in range(5000):
        ids.add(str(number))
    assert len(ids._table) * ids._table.itemsize < 25 * 5000
