"""The lines of the input of `aswarm batch`."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

from aswarm import Approve
from aswarm.cli.commands.batch.readers import BadLine, InputFormat, InputRecord, count, format_of, read, records_in

MESSAGES = [{"role": "user", "content": "Hi"}]
JSON = InputFormat()
CSV = InputFormat("csv", "text")


def entries(data: bytes | str, input_format: InputFormat = JSON) -> list[InputRecord | BadLine]:
    """Return the records of the lines."""
    return list(read(io.BytesIO(data.encode() if isinstance(data, str) else data), input_format))


def one(**record: Any) -> InputRecord | BadLine:
    """Return the record of one line of JSON."""
    [entry] = entries(json.dumps(record))
    return entry


def test_a_line_has_a_text_or_messages() -> None:
    """The conversation is under `input`, `question` or `messages`; null counts as absent, and other keys are ignored."""
    assert one(input="Hi") == InputRecord(1, 1, "Hi")
    assert one(question="Hi", input=None, price=3) == InputRecord(1, 1, "Hi")
    assert one(messages=MESSAGES) == InputRecord(1, 1, MESSAGES)


RESUMES: list[tuple[Any, Any, str]] = [
    (None, False, "f87e5be4ba04c2dd"),
    (False, False, "f87e5be4ba04c2dd"),
    (True, True, "783744768fa2ac81"),
    ({}, {}, "783744768fa2ac81"),
    ("approve_all", Approve.all(), "2c200d97e467053c"),
    ({"c": True}, {"c": True}, "af0a28603a4d8005"),
]


@pytest.mark.parametrize(("given", "resume", "digest"), RESUMES, ids=str)
def test_what_happens_to_open_calls(given: Any, resume: Any, digest: str) -> None:
    """A line may resume. The hash of "approve_all" is the hash of true in older versions, where true approved all calls."""
    asked = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [asked]}]
    entry = one(id="a", messages=history, resume=given)
    assert entry == InputRecord(1, "a", history, resume=resume)
    assert isinstance(entry, InputRecord)
    assert entry.digest == digest


def test_ids() -> None:
    """An id is a text or a whole number, by default the number of the line."""
    found = entries('{"id": 7, "input": "a"}\n\n{"id": "", "input": "b"}\r\n{"id": "8", "input": "c"}')
    assert [(entry.line, entry.id) for entry in found if isinstance(entry, InputRecord)] == [(1, 7), (3, 3), (4, "8")]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes (column 2)"),
        ("[1]", "expected a JSON object, not [1]"),
        ("{}", "there is no 'messages' or 'input' or 'question'"),
        ('{"input": "a", "question": "b"}', "there are 'input' and 'question': give only one of them"),
        ('{"input": " "}', "'input' must be a text, not ' '"),
        ('{"input": 7}', "'input' must be a text, not 7"),
        ('{"messages": []}', "'messages' must be a list of messages, not []"),
        ('{"messages": ["Hi"]}', "'messages' must be a list of messages, not ['Hi']"),
        ('{"messages": "Hi"}', "'messages' must be a list of messages, not 'Hi'"),
        ('{"input": "a", "context_variables": [1]}', "'context_variables' must be an object, not [1]"),
        ('{"input": "a", "id": true}', "'id' must be a text or a whole number, not True"),
        ('{"input": "a", "id": 1.5}', "'id' must be a text or a whole number, not 1.5"),
        ('{"input": "a", "id": "\\ud800"}', "'id' contains half a surrogate pair: '\\ud800'"),
    ],
)
def test_bad_lines(line: str, error: str) -> None:
    """A bad line has the reason and its text; the next line is read as usual."""
    bad, good = entries(f'{line}\n{{"input": "good"}}\n')
    assert bad == BadLine(1, error, line)
    assert good == InputRecord(2, 2, "good")


def test_a_line_that_is_nested_too_deeply() -> None:
    """A line that cannot be read or written because of its depth is a bad line."""
    [bad] = entries("[" * 100_000)
    assert isinstance(bad, BadLine)
    assert bad.error == "nested more than 100 levels deep"
    nested = '{"input": "a", "metadata": %s}'
    bad, good = entries("\n".join(nested % ("[" * levels + '{"a": 1}' + "]" * levels) for levels in (500, 90)))
    assert isinstance(bad, BadLine)
    assert bad.error == "nested more than 100 levels deep"
    assert isinstance(good, InputRecord)


def test_bytes_that_are_not_utf_8() -> None:
    """The text of bytes that are not UTF-8 can be encoded to the same bytes."""
    [bad] = entries(b'{"input": "\xff"}\n')
    assert isinstance(bad, BadLine)
    assert bad.error == "not UTF-8"
    assert bad.text.encode(errors="surrogateescape") == b'{"input": "\xff"}'


def test_an_id_that_comes_twice() -> None:
    """A second line with an id is bad. The id 7 is the same as "7" and as the number of line 7."""
    _, *bad = entries('{"id": "2", "input": "a"}\n{"input": "b"}\n{"id": 2, "input": "c"}\n')
    assert [(line.line, getattr(line, "error", "")) for line in bad] == [
        (2, "an earlier line has the same id 2"),
        (3, "an earlier line has the same id 2"),
    ]


def test_a_byte_order_mark() -> None:
    """A byte order mark is not a part of the first line."""
    assert entries('\ufeff{"input": "a"}\n{"input": "b"}') == [InputRecord(1, 1, "a"), InputRecord(2, 2, "b")]


# --- CSV ---


def test_csv() -> None:
    """A record of CSV has the number of its first line, and blank lines are skipped. The other columns are its metadata."""
    data = '\ufeffid,text,price\na1,"Hello,\n""world""",3\n\n,ä,4\n'
    assert entries(data, CSV) == [
        InputRecord(2, "a1", 'Hello,\n"world"', metadata={"price": "3"}),
        InputRecord(5, 5, "ä", metadata={"price": "4"}),
    ]
    assert entries("text,metadata,messages\nHi,,x\n", CSV)[0].metadata == {"metadata": "", "messages": "x"}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter(delimiter: str) -> None:
    """The delimiter is the comma, semicolon or tab that gives the column of the text."""
    assert entries(f'id{delimiter}text\n1{delimiter}"a,;\tb"\n', CSV) == [InputRecord(2, "1", "a,;\tb")]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("1,a,b", "expected 2 fields, as in the first line, not 3"),
        ("1", "expected 2 fields, as in the first line, not 1"),
        ("1,", "there is no 'text'"),
        ("1, ", "'text' must be a text, not ' '"),
        ('1,"a"b', "not CSV: ',' expected after '\"'"),
    ],
)
def test_bad_lines_of_csv(line: str, error: str) -> None:
    """A bad line has the reason and its text, as in JSON."""
    assert entries(f"id,text\n{line}\n2,good\n", CSV) == [BadLine(2, error, line), InputRecord(3, "2", "good")]


def test_csv_that_is_not_utf_8_or_has_no_end() -> None:
    """A bad record of CSV has its text."""
    bad, open_end = entries(b'text\n\xff\n"no end\nat all\n', CSV)
    assert bad == BadLine(2, "not UTF-8", "\udcff")
    words = "not CSV: unexpected end of data (in a record of 2 lines: is a quote not closed?)"
    assert open_end == BadLine(3, words, '"no end\nat all')


def test_a_quote_that_is_closed_by_the_next_one() -> None:
    """The error of an open quote has the number of its lines."""
    bad, other, good = entries('id,text\n1,"open\n2,a\n3,"b"\n4,"open\n5,a",c\n6,good\n', CSV)
    assert [getattr(line, "error", "").partition(" (")[2] for line in (bad, other)] == [
        "in a record of 3 lines: is a quote not closed?)",
        "in a record of 2 lines: is a quote not closed?)",
    ]
    assert good == InputRecord(7, "6", "good")


@pytest.mark.parametrize(
    ("data", "columns"), [("a;b\n", "'a', 'b'"), ("", "none"), ("x\n", "'x'"), ("a,b;c\n", "'a', 'b;c'")]
)
def test_csv_without_the_column(data: str, columns: str) -> None:
    """The error of a missing column names the existing columns."""
    with pytest.raises(ClickException, match=f"there is no column 'text'; the columns are: {columns}"):
        entries(data, CSV)


# --- files ---


def test_files(folder: Path) -> None:
    """The lines of a file are counted, and the lines of a pipe are not."""
    Path("a.jsonl").write_text('{"input": "a"}\n\n{\n', encoding="utf-8")
    Path("a.csv").write_text('text\n"a\nb"\nc,d\n', encoding="utf-8")
    os.mkfifo("pipe")
    assert count("a.jsonl", JSON) == 2
    assert count("a.csv", CSV) == 2
    assert count("pipe", JSON) is None
    assert count("-", JSON) is None
    assert len(list(records_in("a.jsonl", JSON))) == 2


def test_files_that_cannot_be_read(folder: Path) -> None:
    """A file that cannot be read is a usage error."""
    with pytest.raises(ClickException, match=r"there is no file 'none\.jsonl'"):
        count("none.jsonl", JSON)
    Path("a.csv").write_text("a\n")
    with pytest.raises(ClickException, match="there is no column"):
        count("a.csv", CSV)
    with pytest.raises(ClickException, match="cannot be read: Is a directory"):
        list(records_in(str(folder), JSON))


def test_the_format_of_a_name() -> None:
    """The ending of a name decides between CSV and JSON Lines."""
    assert [format_of(name) for name in ("a.csv", "b.TSV", "c.jsonl", "-")] == ["csv", "csv", "jsonl", "jsonl"]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipe to standard input."""
    ends = os.pipe()
    with os.fdopen(ends[0], encoding="utf-8") as stdin, os.fdopen(ends[1], "w", encoding="utf-8") as writing:
        monkeypatch.setattr("sys.stdin", stdin)
        yield writing


def test_standard_input(piped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of standard input are read as they come, and standard input stays open."""
    lines = records_in("-", JSON)
    for text in ("a", "b"):
        piped.write(f'{{"input": "{text}"}}\n')
        piped.flush()
    piped.close()
    assert [entry.id for entry in lines if isinstance(entry, InputRecord)] == [1, 2]
    assert os.fstat(0)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"input": "a"}')))
    assert list(records_in("-", JSON)) == [InputRecord(1, 1, "a")]


def test_a_line_of_a_durable_run_has_no_decisions() -> None:
    """The error names the command that answers a waiting run."""
    (line,) = entries('{"input": "a", "resume": true}', InputFormat(takes_decisions=False))
    assert isinstance(line, BadLine)
    assert "aswarm runs answer" in line.error
