"""The output of `aswarm batch`: its lines, and the finished items of an earlier output."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import threading
from pathlib import Path

import pytest
from click import ClickException

from aswarm.cli.commands.batch.output import (
    BatchOutput,
    RejectedLines,
    encoded,
    open_output,
    rejected_path,
)
from aswarm.cli.commands.batch.readers import BadLine, InputRecord

OUT = "out.jsonl"


def line(key: str | int, status: str = "answer", text: str = "") -> bytes:
    """Return a line of an output."""
    return encoded({"id": key, "status": status, "text": text})


def add(output: BatchOutput, line: bytes) -> None:
    """Add a line as a batch does."""
    asyncio.run(output.add(line))


def ids(path: str = OUT) -> list[tuple[str | int, str]]:
    """Return the ids and statuses in an output."""
    return [(found["id"], found["status"]) for found in map(json.loads, Path(path).read_bytes().splitlines())]


def done(output: BatchOutput, *keys: str | int) -> list[bool]:
    """Return whether these items are done."""
    return [output.has(InputRecord(1, key, "Hi")) for key in keys]


def test_the_last_line_of_an_id_counts() -> None:
    """The last line of an id decides whether its item is done."""
    Path(OUT).write_bytes(line(1, "error") + line(2) + line("1") + line(2, "error") + line(3, "refusal") + line(3))
    with open_output(OUT, io.StringIO(), resume=True) as output:
        assert done(output, 1, 2, 3) == [True, False, True]
        assert output.statuses == {"answer"}


@pytest.mark.parametrize("key", ['a\\"b', -12])
def test_a_line_that_was_cut_off(key: str | int) -> None:
    """A last line that a crash has cut anywhere does not count, and the next line is a new line."""
    whole = line(key, "max_turns")
    for size in range(1, len(whole) - 1):
        Path(OUT).write_bytes(line(1) + whole[:size])
        for _ in range(2):
            with open_output(OUT, io.StringIO(), resume=True) as output:
                assert done(output, 1, key) == [True, False]
        with open_output(OUT, io.StringIO(), resume=True) as output:
            add(output, whole)
        assert Path(OUT).read_bytes() == line(1) + whole[:size] + b"\n" + whole
        with open_output(OUT, io.StringIO(), resume=True) as output:
            assert done(output, 1, key) == [True, True]


def test_a_line_without_its_line_break() -> None:
    """A complete line without its line break counts, and gets its line break."""
    Path(OUT).write_bytes(line(1)[:-1])
    with open_output(OUT, io.StringIO(), resume=True) as output:
        assert done(output, 1) == [True]
        add(output, line(2))
    assert Path(OUT).read_bytes() == line(1) + line(2)


@pytest.mark.parametrize(
    "content",
    [
        "text\n",
        "[1]\n",
        '{"id": 1}\n',
        '{"id": 1, "status": 2}\n',
        '{"my": "precious data"}',
        "text",
        "[" * 100_000,
        '{"id": 1}',
        '{"id": 1, "status": 2}',
        '{"name": "Ann", "id": 1',
    ],
    ids=lambda content: content[:30],
)
def test_a_file_that_is_not_of_a_batch_is_left_alone(content: str) -> None:
    """A file with other lines is refused, and stays unchanged."""
    Path(OUT).write_text(content)
    with pytest.raises(ClickException, match=r"line 1 of .*out.jsonl was not written by aswarm batch"):
        open_output(OUT, io.StringIO(), resume=True)
    assert Path(OUT).read_text() == content


def test_streams() -> None:
    """Standard output and pipes get the lines, and have no earlier items."""
    stdout = io.TextIOWrapper(io.BytesIO())
    with open_output("-", stdout, resume=True) as output:
        add(output, line(1))
    assert stdout.buffer.getvalue() == line(1)  # type: ignore[attr-defined]
    os.mkfifo("pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_bytes()))
    reader.start()
    with open_output("pipe", stdout, resume=False) as output:
        add(output, line(1))
    reader.join()
    assert read == [line(1)]


def test_one_at_a_time() -> None:
    """A second batch cannot open the output before the end of the first batch."""
    Path(OUT).write_bytes(line(1, "error"))
    with (
        open_output(OUT, io.StringIO(), resume=True),
        pytest.raises(ClickException, match=r"out.jsonl is being written by another batch; wait for its end"),
    ):
        open_output(OUT, io.StringIO(), resume=True)
    open_output(OUT, io.StringIO(), resume=True).close()


def test_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks, as on some network file systems, two batches can open one output."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: Path("none").stat())
    with open_output(OUT, io.StringIO(), resume=False):
        open_output(OUT, io.StringIO(), resume=False).close()


@pytest.mark.parametrize(
    ("before", "written", "error", "stays"),
    [
        (None, None, ClickException("no"), False),
        (None, None, None, True),
        (None, line(1), ClickException("no"), True),
        (b"", None, ClickException("no"), True),
    ],
)
def test_a_batch_that_was_not_started_leaves_no_file(
    before: bytes | None, written: bytes | None, error: Exception | None, stays: bool
) -> None:
    """Only an empty file that the batch has made is removed."""
    if before is not None:
        Path(OUT).write_bytes(before)
    output = open_output(OUT, io.StringIO(), resume=False)
    if written is not None:
        add(output, written)
    output.__exit__(error and type(error), error, None)
    assert Path(OUT).exists() == stays


@pytest.mark.parametrize("blocks", [True, False])
def test_a_reader_that_pauses(blocks: bool) -> None:
    """A pause of the reader stops only the writing, and the lines come whole and in order."""
    reading, writing = os.pipe()
    os.set_blocking(writing, blocks)
    lines = [line(number, text="x" * 100_000) for number in range(3)]

    async def read() -> bytes:
        with open_output("-", stdout, resume=False) as output:
            adding = [asyncio.ensure_future(output.add(line)) for line in lines]
            await asyncio.sleep(0.05)
            assert not adding[0].done()
            with os.fdopen(reading, "rb") as pipe:
                found = await asyncio.to_thread(pipe.read, len(b"".join(lines)))
            await asyncio.gather(*adding)
            return found

    with os.fdopen(writing, "w") as stdout:
        assert asyncio.run(read()) == b"".join(lines)


def test_a_pipe_without_a_reader() -> None:
    """A broken pipe stays an exception, because it has its own exit code."""
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open_output("pipe", io.StringIO(), resume=False) as output:
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            add(output, line(1))


def test_any_text_can_be_written() -> None:
    """A line is UTF-8, and has escapes only for characters that UTF-8 cannot encode."""
    assert encoded({"a": "ä\n"}) == '{"a": "ä\\n"}\n'.encode()
    assert encoded({"a": "ä\udcff"}) == b'{"a": "\\u00e4\\udcff"}\n'


# --- rejected lines ---


def test_a_rejected_line_that_was_cut_off() -> None:
    """The line after a cut line starts on a new line."""
    path = Path("out.rejected.jsonl")
    path.write_bytes(b'{"line": 1}\n{"line": 2, "err')
    for _ in range(2):
        rejected = RejectedLines(path)
        rejected.add(BadLine(3, "not JSON", "{"))
        rejected.close()
    assert [line[:10] for line in path.read_bytes().splitlines()] == [b'{"line": 1', b'{"line": 2', b'{"line": 3']


def test_the_file_of_rejected_lines() -> None:
    """The file of rejected lines is beside the output, or in the current directory."""
    os.mkfifo("pipe")
    assert rejected_path("a/out.jsonl") == Path("a/out.rejected.jsonl")
    assert rejected_path("-") == rejected_path("pipe") == Path("batch.rejected.jsonl")
