"""Only one process at a time can use a journal, also if the tools of the batch read its file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aswarm import Agent, ConfigurationError
from tests.support.batch.batches import Echo, outcomes_of, text_of

pytestmark = pytest.mark.processes

# A batch whose only tool reads the file of the journal or forks, prints "done", and then waits.
HOLDER = """
import asyncio, hashlib, os, shutil, sys, time
from aswarm import Agent, AsyncSwarm

path, deed = sys.argv[1:]

def back_up() -> str:
    if deed == "copy":
        shutil.copy(path, path + ".copy")
    elif deed == "checksum":
        with open(path, "rb") as file:
            hashlib.sha256(file.read())
    elif os.fork() == 0:  # the child lives longer than the batch
        time.sleep(60)
        os._exit(0)
    print("done", flush=True)
    time.sleep(60)
    return "backed up"

class Model:
    async def complete(self, request):
        call = {"id": "c", "type": "function", "function": {"name": "back_up", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

async def main():
    swarm = AsyncSwarm(client=Model())
    async with swarm.batch(Agent(functions=[back_up]), ["Hi"], journal=path) as outcomes:
        async for outcome in outcomes:
            raise SystemExit(str(outcome))

asyncio.run(main())
"""


@contextmanager
def holding(path: Path, deed: str) -> Iterator[subprocess.Popen[str]]:
    """Yield another process that runs a batch with this journal, after its tool has printed "done"."""
    command = [sys.executable, "-c", HOLDER, str(path), deed]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "done\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run_batch(path: Path) -> str:
    """Run the same batch in this process. Returns the text of the answer."""

    def back_up() -> str:
        raise AssertionError("the call was started in the other process")

    [outcome] = asyncio.run(outcomes_of(Echo(), ["Hi"], Agent(functions=[back_up]), journal=path))
    return text_of(outcome)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="only locks of POSIX can be lost")
@pytest.mark.parametrize("deed", ["copy", "checksum", "fork"])
def test_a_tool_that_reads_the_file_does_not_lose_the_lock(tmp_path: Path, deed: str) -> None:
    """A second process is refused, and can continue after the first process was killed."""
    path = tmp_path / "run.sqlite"
    with holding(path, deed) as holder:
        with pytest.raises(ConfigurationError, match=r"run\.sqlite is in use: another batch has it open; wait until"):
            run_batch(path)
        holder.kill()  # a child of it may still run
        holder.wait()
        assert run_batch(path) == "cancelled; its outcome is unknown"
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.endswith(".copy")) == ["run.sqlite"]


@pytest.mark.slow
def test_a_second_path_of_the_file_has_the_same_lock(tmp_path: Path) -> None:
    """A symbolic link to the journal has the lock of the journal."""
    path, link = tmp_path / "run.sqlite", tmp_path / "link.sqlite"
    link.symlink_to(path)
    with holding(path, "copy"), pytest.raises(ConfigurationError, match=r"link\.sqlite is in use"):
        run_batch(link)
