"""A journal is for one process at a time, whatever the tools of the batch do with its file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, CompletionRequest, ConfigurationError

pytestmark = pytest.mark.processes

# A batch whose only tool does something with the file of the journal, says so, and then waits.
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


class Model:
    """Always answers."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        message = {"role": "assistant", "content": "Done."}
        yield {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


@contextmanager
def holding(path: Path, deed: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs a batch with this journal, once its tool has done the deed; killed at the end."""
    command = [sys.executable, "-c", HOLDER, str(path), deed]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "done\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run_batch(path: Path) -> str:
    """Run the same batch with this journal here; the text of the answer."""

    def back_up() -> str:
        raise AssertionError("the call has begun in the other process")

    async def main() -> str:
        agent = Agent(functions=[back_up])
        async with AsyncSwarm(client=Model()).batch(agent, ["Hi"], journal=path) as outcomes:
            (outcome,) = [outcome async for outcome in outcomes]
        assert outcome.response is not None
        return outcome.response.text

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the locks of POSIX are what is lost")
@pytest.mark.parametrize("deed", ["copy", "checksum", "fork"])
def test_a_tool_that_reads_the_file_does_not_lose_the_lock(tmp_path: Path, deed: str) -> None:
    """A second process is refused, with a text that says so; once the first one is killed, the second one continues."""
    path = tmp_path / "run.sqlite"
    with holding(path, deed) as holder:
        with pytest.raises(ConfigurationError, match=r"run\.sqlite is in use: another batch has it open; wait until"):
            run_batch(path)
        holder.kill()  # a child of it may still run
        holder.wait()
        assert run_batch(path) == "Done."
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.endswith(".copy")) == ["run.sqlite"]


@pytest.mark.slow
def test_a_second_path_of_the_file_has_the_same_lock(tmp_path: Path) -> None:
    """A symbolic link leads to the same lock."""
    path, link = tmp_path / "run.sqlite", tmp_path / "link.sqlite"
    link.symlink_to(path)
    with holding(path, "copy"), pytest.raises(ConfigurationError, match=r"link\.sqlite is in use"):
        run_batch(link)
