"""What a line of `aswarm batch`'s input means."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from aswarm.cli._exits import Mistake
from aswarm.cli.batch._readers import count, kind_of, lines_of, read
from aswarm.cli.batch._records import BadLine, Entry, Form

MESSAGES = [{"role": "user", "content": "Hi"}]
JSON = Form()
CSV = Form("csv", "text")


def entries(data: bytes | str, form: Form = JSON) -> list[Entry | BadLine]:
    """What the lines mean."""
    return list(read(io.BytesIO(data.encode() if isinstance(data, str) else data), form))


def one(**record: Any) -> Entry | BadLine:
    """What one line of JSON means."""
    [entry] = entries(json.dumps(record))
    return entry


def test_a_line_has_a_text_or_messages() -> None:
    """Under `input`, `question` or `messages`; null is as good as nothing. What else is there is left alone."""
    assert one(input="Hi") == Entry(1, 1, "Hi")
    assert one(question="Hi", input=None, price=3) == Entry(1, 1, "Hi")
    assert one(messages=MESSAGES) == Entry(1, 1, MESSAGES)


def test_what_a_line_may_have_beside_it() -> None:
    """An id, context variables and metadata."""
    entry = one(id="T-1", input="Hi", context_variables={"user": 7}, metadata=["x"])
    assert entry == Entry(1, "T-1", "Hi", {"user": 7}, ["x"])


def test_ids() -> None:
    """Text and whole numbers stay what they are; without one, it is the number of the line, blank ones counted."""
    found = entries('{"id": 7, "input": "a"}\n\n{"id": "", "input": "b"}\r\n{"id": "8", "input": "c"}')
    assert [(entry.line, entry.id) for entry in found if isinstance(entry, Entry)] == [(1, 7), (3, 3), (4, "8")]


def test_a_column_may_be_named_in_json_too() -> None:
    """Then it alone has the text."""
    form = Form(column="ticket", id_column="number")
    assert entries('{"ticket": "Hi", "input": 3, "number": 9}', form) == [Entry(1, 9, "Hi")]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes (column 2)"),
        ("[1]", "expected a JSON object, not [1]"),
        ("{}", "has no 'messages' or 'input' or 'question'"),
        ('{"input": "a", "question": "b"}', "has 'input' and 'question': one will do"),
        ('{"input": " "}', "'input' is no text: ' '"),
        ('{"input": 7}', "'input' is no text: 7"),
        ('{"messages": []}', "'messages' is no list of messages: []"),
        ('{"messages": ["Hi"]}', "'messages' is no list of messages: ['Hi']"),
        ('{"messages": "Hi"}', "'messages' is no list of messages: 'Hi'"),
        ('{"input": "a", "context_variables": [1]}', "'context_variables' is no object: [1]"),
        ('{"input": "a", "id": true}', "'id' is neither text nor a whole number: True"),
        ('{"input": "a", "id": 1.5}', "'id' is neither text nor a whole number: 1.5"),
        ('{"input": "a", "id": "\\ud800"}', "'id' has half a surrogate pair: '\\ud800'"),
    ],
)
def test_bad_lines(line: str, error: str) -> None:
    """They say what is wrong, keep the text as it was, and the next line goes on."""
    bad, good = entries(f'{line}\n{{"input": "good"}}\n')
    assert bad == BadLine(1, error, line)
    assert good == Entry(2, 2, "good")


def test_a_line_that_is_nested_too_deeply() -> None:
    """It is a bad line, and no end: where it cannot be read, and where it could not be written again."""
    [bad] = entries("[" * 100_000)
    assert isinstance(bad, BadLine)
    assert "recursion" in bad.error
    nested = '{"input": "a", "metadata": %s}'
    bad, good = entries("\n".join(nested % ("[" * levels + '{"a": 1}' + "]" * levels) for levels in (500, 90)))
    assert isinstance(bad, BadLine)
    assert bad.error == "is nested more than 100 levels deep"
    assert isinstance(good, Entry)


def test_bytes_that_are_no_text() -> None:
    """They are kept: what was read can be had back."""
    [bad] = entries(b'{"input": "\xff"}\n')
    assert isinstance(bad, BadLine)
    assert bad.error == "not UTF-8"
    assert bad.text.encode(errors="surrogateescape") == b'{"input": "\xff"}'


def test_an_id_that_comes_twice() -> None:
    """The second line is bad: 7 and "7" are one id, and so is the number of a line."""
    _, *bad = entries('{"id": "2", "input": "a"}\n{"input": "b"}\n{"id": 2, "input": "c"}\n')
    assert [(line.line, getattr(line, "error", "")) for line in bad] == [
        (2, "another line before has the id 2 too"),
        (3, "another line before has the id 2 too"),
    ]


def test_a_byte_order_mark() -> None:
    """It is no part of the first line."""
    assert entries('\ufeff{"input": "a"}\n{"input": "b"}') == [Entry(1, 1, "a"), Entry(2, 2, "b")]


# --- CSV ---


def test_csv() -> None:
    """A record may have several lines; its number is that of the first one. Blank lines are none."""
    data = '\ufeffid,text,price\na1,"Hello,\n""world""",3\n\n,ä,4\n'
    assert entries(data, CSV) == [Entry(2, "a1", 'Hello,\n"world"'), Entry(5, 5, "ä")]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_is_between_the_columns(delimiter: str) -> None:
    """Comma, semicolon or tabulator: that with which the column is there."""
    assert entries(f'id{delimiter}text\n1{delimiter}"a,;\tb"\n', CSV) == [Entry(2, "1", "a,;\tb")]


def test_the_column_need_not_be_named() -> None:
    """Where it is `input` or `question`."""
    assert entries("question\nHi\n", Form("csv")) == [Entry(2, 2, "Hi")]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("1,a,b", "has 3 fields, and the first line 2"),
        ("1", "has 1 fields, and the first line 2"),
        ("1,", "has no 'text'"),
        ("1, ", "'text' is no text: ' '"),
        ('1,"a"b', "not CSV: ',' expected after '\"'"),
    ],
)
def test_bad_lines_of_csv(line: str, error: str) -> None:
    """As in JSON."""
    assert entries(f"id,text\n{line}\n2,good\n", CSV) == [BadLine(2, error, line), Entry(3, "2", "good")]


def test_csv_that_is_no_text_or_has_no_end() -> None:
    """What was read is kept."""
    bad, open_end = entries(b'text\n\xff\n"no end\nat all\n', CSV)
    assert bad == BadLine(2, "not UTF-8", "\udcff")
    words = "not CSV: unexpected end of data (in a record of 2 lines: is a quote not closed?)"
    assert open_end == BadLine(3, words, '"no end\nat all')


def test_a_quote_that_is_closed_by_the_next_one() -> None:
    """What it took with it is told, wherever that makes no record."""
    bad, other, good = entries('id,text\n1,"open\n2,a\n3,"b"\n4,"open\n5,a",c\n6,good\n', CSV)
    assert [getattr(line, "error", "").partition(" (")[2] for line in (bad, other)] == [
        "in a record of 3 lines: is a quote not closed?)",
        "in a record of 2 lines: is a quote not closed?)",
    ]
    assert good == Entry(7, "6", "good")


@pytest.mark.parametrize(
    ("data", "columns"), [("a;b\n", "'a', 'b'"), ("", "none"), ("x\n", "'x'"), ("a,b;c\n", "'a', 'b;c'")]
)
def test_csv_without_the_column(data: str, columns: str) -> None:
    """A mistake, which names those that there are."""
    with pytest.raises(Mistake, match=f"there is no column 'text'; columns are: {columns}"):
        entries(data, CSV)


# --- files ---


def test_files(folder: Path) -> None:
    """They are counted before they are read, where that can be done."""
    Path("a.jsonl").write_text('{"input": "a"}\n\n{\n', encoding="utf-8")
    Path("a.csv").write_text('text\n"a\nb"\nc,d\n', encoding="utf-8")
    os.mkfifo("pipe")
    assert count("a.jsonl", JSON) == 2
    assert count("a.csv", CSV) == 2
    assert count("pipe", JSON) is None
    assert count("-", JSON) is None
    assert len(list(lines_of("a.jsonl", JSON))) == 2


def test_files_that_cannot_be_read(folder: Path) -> None:
    """A mistake, before anything is asked for."""
    with pytest.raises(Mistake, match=r"there is no file 'none\.jsonl'"):
        count("none.jsonl", JSON)
    Path("a.csv").write_text("a\n")
    with pytest.raises(Mistake, match="there is no column"):
        count("a.csv", CSV)
    with pytest.raises(Mistake, match="cannot be read: Is a directory"):
        list(lines_of(str(folder), JSON))


def test_what_a_name_says() -> None:
    """CSV by its ending, else JSON Lines."""
    assert [kind_of(name) for name in ("a.csv", "b.TSV", "c.jsonl", "-")] == ["csv", "csv", "jsonl", "jsonl"]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Standard input is what is written here."""
    ends = os.pipe()
    with os.fdopen(ends[0], encoding="utf-8") as stdin, os.fdopen(ends[1], "w", encoding="utf-8") as writing:
        monkeypatch.setattr("sys.stdin", stdin)
        yield writing


def test_standard_input(piped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line by line, as they come; it belongs to others, and is not closed."""
    lines = lines_of("-", JSON)
    for text in ("a", "b"):
        piped.write(f'{{"input": "{text}"}}\n')
        piped.flush()
    piped.close()
    assert [entry.id for entry in lines if isinstance(entry, Entry)] == [1, 2]
    assert os.fstat(0)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"input": "a"}')))
    assert list(lines_of("-", JSON)) == [Entry(1, 1, "a")]
