"""Entries of a newer version: an older version ignores what it does not know, and shows none of it to users."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm._record.entries import Entry
from aswarm._record.facts import CallKey, Facts
from aswarm._record.fold import fold
from aswarm.runs import answers, everything
from aswarm.serve import AguiWire, OpenAIWire, VercelWire

TURN = Entry(1, 0, "TurnStarted", {"agent": "Boss", "turn": 1})
LATER = Entry(2, 0, "Later", {"instructions": "secret", "index": 0})


def test_users_get_no_entry_of_an_unknown_type() -> None:
    """A type that only a newer version knows may have data that is not for users, as RequestSent has."""
    assert answers(LATER) is None
    assert everything(LATER) is LATER
    assert answers(TURN) is TURN


@pytest.mark.parametrize("wire", [AguiWire(), OpenAIWire("Boss"), VercelWire()], ids=lambda wire: type(wire).__name__)
def test_a_wire_with_a_protocol_of_its_own_sends_no_frame_for_an_unknown_type(wire: Any) -> None:
    """Even with show=everything."""
    assert list(wire.encode(LATER)) == []


def test_an_unknown_type_changes_neither_the_history_nor_the_facts() -> None:
    """The run continues as if the entry were missing."""
    folded, facts = fold([TURN, LATER]), Facts([TURN, LATER])
    assert folded.messages == []
    assert not (facts.completions or facts.started or facts.waiting or facts.finished)


def test_an_unknown_type_inside_code_is_not_taken_for_a_result() -> None:
    """Otherwise the call would be answered from this entry, and would never run."""
    value = {"type": "Later", "index": 0, "name": "erase"}
    facts = Facts([TURN, Entry(2, 0, "ToolProgress", {"index": 0, "value": value, "_inside": True})])
    assert CallKey(1, 0, 0) not in facts.finished
    assert not facts.made
