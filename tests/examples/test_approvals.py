"""`examples/approvals`: calls that wait, and decisions from the keyboard."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.loading import load
from tests.examples.transcripts import run_offline

agents = load("approvals", "agents")


@pytest.mark.parametrize(("amount", "expected"), [(100, False), (101, "more than 100 euros")])
def test_only_large_refunds_wait(amount: int, expected: object) -> None:
    """A refund of exactly the limit needs no approval."""
    assert agents.over_limit({"order": 7, "amount": amount}, None) == expected


def test_the_desk_decides_once(tmp_path: Path) -> None:
    """At the keyboard a reason denies, and Return approves; then no call is open."""
    file = str(tmp_path / "chats.sqlite")
    assert run_offline("approvals", "run.py", "ask", file).returncode == 0
    decided = run_offline("approvals", "run.py", "decide", file, "--keyboard", text="\ngreen\ntoo late\n")
    assert decided.returncode == 0, decided.stderr
    assert "approved\n    Cashier: 120 euros for order 7" in decided.stdout
    assert "A green lamp is sent" in decided.stdout
    assert "denied: too late" in decided.stdout
    assert run_offline("approvals", "run.py", "decide", file).stdout == ""
