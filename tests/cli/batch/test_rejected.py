"""Where the lines that `aswarm batch` cannot use are kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aswarm.cli.batch._records import BadLine
from aswarm.cli.batch._rejected import Aside, aside_of

pytestmark = pytest.mark.usefixtures("folder")


def test_bad_lines_are_kept_aside() -> None:
    """Number, reason and text of each; what is there already stays, and stays once."""
    bad = [BadLine(3, "not JSON", "{"), BadLine(5, "not UTF-8", "\udcff")]
    for _ in range(2):
        aside = Aside(Path("out.rejected.jsonl"))
        aside.close()
        for each in bad:
            aside.add(each)
        aside.close()
        assert aside.count == 2
    lines = [json.loads(text) for text in Path("out.rejected.jsonl").read_text("utf-8").splitlines()]
    assert lines == [
        {"line": 3, "error": "not JSON", "text": "{"},
        {"line": 5, "error": "not UTF-8", "text": "\udcff"},
    ]


def test_a_bad_line_that_was_broken_off() -> None:
    """The next one stands on a line of its own."""
    path = Path("out.rejected.jsonl")
    path.write_bytes(b'{"line": 1}\n{"line": 2, "err')
    for _ in range(2):
        aside = Aside(path)
        aside.add(BadLine(3, "not JSON", "{"))
        aside.close()
    assert [line[:10] for line in path.read_bytes().splitlines()] == [b'{"line": 1', b'{"line": 2', b'{"line": 3']


def test_where_bad_lines_are_kept() -> None:
    """Beside the output; here, where that is a stream."""
    os.mkfifo("pipe")
    assert aside_of("a/out.jsonl") == Path("a/out.rejected.jsonl")
    assert aside_of("-") == aside_of("pipe") == Path("batch.rejected.jsonl")
