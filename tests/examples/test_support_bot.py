"""`examples/support_bot`: its outbox."""

from __future__ import annotations

import importlib
import json
import sys
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest

from tests.examples.transcripts import EXAMPLES, run_offline

FOLDER = EXAMPLES / "support_bot"


def load(name: str) -> Any:
    """Return a module of the example. No other example has a module of this name."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def test_tickets_and_letters_are_kept_in_the_outbox(tmp_path: Path) -> None:
    """`--outbox` writes a letter and a ticket of the customer, and keeps earlier files."""
    (tmp_path / "ticket-1.json").write_text("older", encoding="utf-8")
    done = run_offline("support_bot", "--outbox", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["email-1.eml", "ticket-1.json", "ticket-2.json"]
    letter = message_from_bytes((tmp_path / "email-1.eml").read_bytes(), policy=policy.default)
    assert (letter["To"], letter["Subject"]) == ("noor@example.org", "Clean the pump filter")
    assert "anticlockwise" in letter.get_content()
    assert (tmp_path / "ticket-1.json").read_text(encoding="utf-8") == "older"
    assert json.loads((tmp_path / "ticket-2.json").read_text(encoding="utf-8"))["customer"] == "noor@example.org"


def test_a_subject_cannot_smuggle_in_a_header(tmp_path: Path) -> None:
    """A subject of two lines is an error for the model, and nothing is written."""
    with pytest.raises(ValueError, match=r"newline|linefeed"):
        load("outbox").Outbox(tmp_path).put_email("a@b.example", "Hello\nBcc: everybody@example.org", "Hi")
    assert not list(tmp_path.iterdir())
