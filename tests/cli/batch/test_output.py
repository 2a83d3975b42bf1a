"""Where the lines of `aswarm batch` go, and what a file that has lines is good for."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import threading
from pathlib import Path

import pytest
from click.exceptions import Exit

from aswarm import CompletionError, Response
from aswarm.cli._exits import Failure, Mistake
from aswarm.cli.batch import _lock, _output
from aswarm.cli.batch._outcomes import encoded, error_of, status_of
from aswarm.cli.batch._output import Output, open_output
from aswarm.cli.batch._records import Entry

pytestmark = pytest.mark.usefixtures("folder")
OUT = "out.jsonl"


def line(key: str | int, status: str = "answer", text: str = "") -> bytes:
    """A line of an output."""
    return encoded({"id": key, "status": status, "text": text})


def add(output: Output, key: str, line: bytes) -> None:
    """As a batch does it."""
    asyncio.run(output.add(key, line))


def ids(path: str = OUT) -> list[tuple[str | int, str]]:
    """What is in an output: ids and statuses."""
    return [(found["id"], found["status"]) for found in map(json.loads, Path(path).read_bytes().splitlines())]


def test_lines_are_there_at_once() -> None:
    """A line that was written is read by others before the file is closed."""
    with open_output(OUT, io.StringIO(), resume=False) as output:
        add(output, "1", line(1))
        assert ids() == [(1, "answer")]
        output.tidy()


def test_a_file_that_has_lines_is_not_written_over() -> None:
    """It says how to go on; what is there stays. An empty file will do."""
    Path(OUT).write_bytes(line(1))
    with pytest.raises(Mistake, match="has lines already"):
        open_output(OUT, io.StringIO(), resume=False)
    assert ids() == [(1, "answer")]
    Path(OUT).write_bytes(b"")
    open_output(OUT, io.StringIO(), resume=False).close()


def test_going_on() -> None:
    """What is there need not run again, but for failures; the line of a failure goes once there is a new one."""
    before = line(1, "error") + line("b") + line(3, "max_turns") + line(4, "error")
    Path(OUT).write_bytes(before)
    Path(OUT).chmod(0o640)
    with open_output(OUT, io.StringIO(), resume=True) as output:
        assert [output.has(Entry(1, key, "Hi")) for key in (1, "b", "3", 4)] == [False, True, True, False]
        assert output.counts == {"answer": 1, "max_turns": 1}
        add(output, "1", line(1))
        assert Path(OUT).read_bytes() == before + line(1)  # until the end nothing is taken away
        output.tidy()
    assert ids() == [("b", "answer"), (3, "max_turns"), (4, "error"), (1, "answer")]
    assert [path.name for path in Path().iterdir()] == [OUT]
    assert Path(OUT).stat().st_mode & 0o777 == 0o640


def test_going_on_after_a_process_that_was_killed() -> None:
    """Half a line is cut off; of two lines for an item, the better one stays."""
    lines = [line(1, "error"), line(1), line(2), line(2, "error"), line(3, "error"), line(3, "error", "x")]
    Path(OUT).write_bytes(b"".join(lines) + b'{"id": 4, "sta')
    with open_output(OUT, io.StringIO(), resume=True) as output:
        assert [output.has(Entry(1, key, "Hi")) for key in (1, 2, 3, 4)] == [True, True, False, False]
        add(output, "4", line(4))
        output.tidy()
    assert Path(OUT).read_bytes() == b"".join([lines[1], lines[2], lines[5], line(4)])


def test_an_output_of_other_items() -> None:
    """What was asked is noted on the line: another conversation of the same id is not skipped in silence."""
    entry = Entry(1, 7, "Hi", {"user": 1})
    Path(OUT).write_bytes(encoded({"id": 7, "status": "answer", "input_digest": entry.digest}))
    with open_output(OUT, io.StringIO(), resume=True) as output:
        assert output.has(Entry(5, "7", "Hi", {"user": 1}, "other metadata"))
        for other in (Entry(5, 7, "Ho", {"user": 1}), Entry(5, 7, "Hi")):
            with pytest.raises(
                Mistake, match="line 5: the output has another conversation with the id 7; name another"
            ):
                output.has(other)


def test_a_link_stays_one() -> None:
    """What it points to is written."""
    Path("real.jsonl").write_bytes(line(1, "error"))
    Path(OUT).symlink_to("real.jsonl")
    with open_output(OUT, io.StringIO(), resume=True) as output:
        add(output, "1", line(1))
        output.tidy()
    assert Path(OUT).is_symlink()
    assert ids("real.jsonl") == [(1, "answer")]


@pytest.mark.parametrize("key", ['a\\"b', -12])
def test_what_is_left_of_a_line_that_was_broken_off(key: str | int) -> None:
    """It is cut off, wherever it was broken; only where nothing but the end of the line is missing, that is added."""
    whole = line(key, "max_turns")
    for size in range(1, len(whole)):
        Path(OUT).write_bytes(line(1) + whole[:size])
        open_output(OUT, io.StringIO(), resume=True).close()
        assert Path(OUT).read_bytes() == line(1) + (whole if size == len(whole) - 1 else b"")


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
        '{"id": 1, "name": "Ann"',
        '{"id": "a", "name": "Ann"',
        '{"id": {"a": 1}',
    ],
    ids=lambda content: content[:30],
)
def test_a_file_of_others_is_left_alone(content: str) -> None:
    """What is not of a batch is not gone on with."""
    Path(OUT).write_text(content)
    with pytest.raises(Mistake, match=r"line 1 of .*out.jsonl is not of a batch"):
        open_output(OUT, io.StringIO(), resume=True)
    assert Path(OUT).read_text() == content


def test_where_nothing_can_be_written() -> None:
    """A mistake, before anything is asked for."""
    with pytest.raises(Mistake, match="cannot be written: No such file or directory"):
        open_output("none/out.jsonl", io.StringIO(), resume=True)


def test_streams() -> None:
    """Standard output, pipes and devices get the lines; there is nothing to go on with."""
    stdout = io.TextIOWrapper(io.BytesIO())
    with open_output("-", stdout, resume=True) as output:
        add(output, "1", line(1))
        output.tidy()
    assert stdout.buffer.getvalue() == line(1)  # type: ignore[attr-defined]
    os.mkfifo("pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_bytes()))
    reader.start()
    with open_output("pipe", stdout, resume=False) as output:
        add(output, "1", line(1))
    reader.join()
    assert read == [line(1)]


def test_one_at_a_time() -> None:
    """Two batches would write every line twice. What is put in the file's place at the end is free again."""
    Path(OUT).write_bytes(line(1, "error"))
    with open_output(OUT, io.StringIO(), resume=True) as output:
        with pytest.raises(Mistake, match=r"out.jsonl is being written by another batch; wait for its end"):
            open_output(OUT, io.StringIO(), resume=True)
        add(output, "1", line(1))
        output.tidy()
    open_output(OUT, io.StringIO(), resume=True).close()
    assert ids() == [(1, "answer")]


def test_a_file_that_is_replaced_before_it_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be written to the old one would be lost."""

    def replaced(_: object) -> bool:
        Path("fresh").write_bytes(b"")
        Path("fresh").replace(OUT)
        return True

    monkeypatch.setattr(_output, "is_free", replaced)
    with pytest.raises(Mistake, match="is being written by another batch"):
        open_output(OUT, io.StringIO(), resume=True)


@pytest.mark.parametrize("missing", ["module", "support"])
def test_where_there_are_no_locks(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """On Windows, and on some file systems: it is done without."""
    if missing == "module":
        monkeypatch.setattr(_lock, "find_spec", lambda _: None)
    else:
        monkeypatch.setattr(fcntl, "flock", lambda *_: Path("none").stat())
    with open_output(OUT, io.StringIO(), resume=False):
        open_output(OUT, io.StringIO(), resume=False).close()


@pytest.mark.parametrize(
    ("before", "written", "error", "stays"),
    [
        (None, None, Mistake("no"), False),
        (None, None, Exit(130), True),
        (None, line(1), Mistake("no"), True),
        (b"", None, Mistake("no"), True),
    ],
)
def test_nothing_is_left_of_a_batch_that_was_not_begun(
    before: bytes | None, written: bytes | None, error: Exception, stays: bool
) -> None:
    """Only what it has made itself is taken away, and only where that is empty."""
    if before is not None:
        Path(OUT).write_bytes(before)
    output = open_output(OUT, io.StringIO(), resume=False)
    if written is not None:
        add(output, "1", written)
    output.__exit__(type(error), error, None)
    assert Path(OUT).exists() == stays


@pytest.mark.parametrize("blocks", [True, False])
def test_a_reader_that_pauses(blocks: bool) -> None:
    """It stops the writing and nothing else; the lines come whole and in order, once it goes on."""
    reading, writing = os.pipe()
    os.set_blocking(writing, blocks)
    lines = [line(number, text="x" * 100_000) for number in range(3)]

    async def read() -> bytes:
        with open_output("-", stdout, resume=False) as output:
            adding = [asyncio.ensure_future(output.add("", line)) for line in lines]
            await asyncio.sleep(0.05)
            assert not adding[0].done()
            with os.fdopen(reading, "rb") as pipe:
                found = await asyncio.to_thread(pipe.read, len(b"".join(lines)))
            await asyncio.gather(*adding)
            return found

    with os.fdopen(writing, "w") as stdout:
        assert asyncio.run(read()) == b"".join(lines)


def test_a_pipe_that_nobody_reads() -> None:
    """It breaks, which is no failure: the command ends with a code of its own."""
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open_output("pipe", io.StringIO(), resume=False) as output:
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            add(output, "1", line(1))


def test_a_disk_that_is_full() -> None:
    """The batch cannot go on."""
    with (
        open_output("/dev/full", io.StringIO(), resume=False) as output,
        pytest.raises(Failure, match="/dev/full cannot be written: No space left on device"),
    ):
        add(output, "1", line(1))


def test_statuses() -> None:
    """Why the run ended, but for refusals and errors."""
    refusal = Response(messages=[{"role": "assistant", "content": None, "refusal": "No."}])
    assert status_of(Response(messages=[{"role": "assistant", "content": "Hi"}]), None) == "answer"
    assert status_of(Response(stop="max_turns"), None) == "max_turns"
    assert status_of(refusal, None) == "refusal"
    assert status_of(None, None) == status_of(Response(), ValueError()) == "error"


def test_errors() -> None:
    """An object; what a provider's error has beside its words is in it."""
    assert error_of(None) is None
    assert error_of(ValueError("no")) == {"type": "ValueError", "message": "no"}
    assert error_of(CompletionError("busy", status_code=429, retryable=True)) == {
        "type": "CompletionError",
        "message": "busy",
        "status_code": 429,
        "retryable": True,
    }


def test_any_text_can_be_written() -> None:
    """UTF-8 as it is, and escapes where there is no other way."""
    assert encoded({"a": "ä\n"}) == '{"a": "ä\\n"}\n'.encode()
    assert encoded({"a": "ä\udcff"}) == b'{"a": "\\u00e4\\udcff"}\n'
