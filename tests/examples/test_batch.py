"""`examples/batch`: the program and the command route each ticket once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.examples.transcripts import EXAMPLES, run_offline

TICKETS = [json.loads(line) for line in (EXAMPLES / "batch" / "tickets.jsonl").read_text("utf-8").splitlines()]
README = (EXAMPLES / "batch" / "README.md").read_text("utf-8")


def routed(path: Path) -> dict[str, dict[str, Any]]:
    """The outcomes of the command, by ticket; each has one."""
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert sorted(line["id"] for line in found) == sorted(ticket["id"] for ticket in TICKETS)
    return {line["id"]: line for line in found}


def test_the_command_routes_the_same_tickets(tmp_path: Path) -> None:
    """`aswarm batch` writes the outcomes of the README; with the same journal, a second batch has nothing to do."""
    output, journal = tmp_path / "routed.jsonl", tmp_path / "tonight.sqlite"
    options = ["command.py", "--output", str(output), "--concurrency", "20", "--store", str(journal)]
    done = run_offline("batch", *options)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert re.search(r"^60 items in .*: 60 answered$", done.stderr, re.MULTILINE)
    urgent = [line for line in routed(output).values() if line["context_variables"]["urgency"] == "high"]
    assert len(urgent) == 5
    shown = json.dumps(routed(output)["T-2006"]["context_variables"])
    assert f'"context_variables": {shown}' in README
    again = run_offline("batch", *options)
    assert again.returncode == 0, again.stderr
    assert "60 items done before" in again.stderr
    routed(output)
