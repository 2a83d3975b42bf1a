"""Where the lines that `aswarm batch` cannot use are kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aswarm.cli.commands.batch.output import RejectedLines, rejected_path
from aswarm.cli.commands.batch.readers import BadLine

pytestmark = pytest.mark.usefixtures("folder")


def test_rejected_lines_are_kept() -> None:
    """The file has number, reason and text of each line; a line that is there already is not added again."""
    bad = [BadLine(3, "not JSON", "{"), BadLine(5, "not UTF-8", "\udcff")]
    for _ in range(2):
        rejected = RejectedLines(Path("out.rejected.jsonl"))
        rejected.close()
        for each in bad:
            rejected.add(each)
        rejected.close()
        assert rejected.count == 2
    lines = [json.loads(text) for text in Path("out.rejected.jsonl").read_text("utf-8").splitlines()]
    assert lines == [
        {"line": 3, "error": "not JSON", "text": "{"},
        {"line": 5, "error": "not UTF-8", "text": "\udcff"},
    ]


def test_a_rejected_line_that_was_cut_off() -> None:
    """The next one starts on a new line."""
    path = Path("out.rejected.jsonl")
    path.write_bytes(b'{"line": 1}\n{"line": 2, "err')
    for _ in range(2):
        rejected = RejectedLines(path)
        rejected.add(BadLine(3, "not JSON", "{"))
        rejected.close()
    assert [line[:10] for line in path.read_bytes().splitlines()] == [b'{"line": 1', b'{"line": 2', b'{"line": 3']


def test_where_rejected_lines_are_kept() -> None:
    """The file is beside the output; for a stream it is in the current directory."""
    os.mkfifo("pipe")
    assert rejected_path("a/out.jsonl") == Path("a/out.rejected.jsonl")
    assert rejected_path("-") == rejected_path("pipe") == Path("batch.rejected.jsonl")
