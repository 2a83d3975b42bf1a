"""Real processes: killed at random moments, and two that work on one conversation."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.conversations import Conflict, SQLiteStore
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.conversations.stores import user

pytestmark = pytest.mark.processes


@pytest.mark.heavy
@pytest.mark.slow
def test_a_process_that_is_killed_leaves_valid_conversations() -> None:
    """A process may be killed at any moment; `conversation_kills 500 1` does it more often."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.conversations.conversation_kills", "12", "3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("12 kills")


OTHER = """
import asyncio, sys
from aswarm import Agent, AsyncSwarm
from aswarm.conversations import SQLiteStore

class Source:
    async def complete(self, request):
        yield {"choices": [{"message": {"role": "assistant", "content": "From elsewhere."}}]}

async def main():
    async with SQLiteStore(sys.argv[1]) as store:
        chat = store.conversation("a", AsyncSwarm(Source()), agent=Agent())
        print((await chat.run("And I am here too")).text)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.asyncio
async def test_two_processes_with_one_conversation(tmp_path: Path) -> None:
    """The run that writes second ends with Conflict, which has both histories; both processes can continue."""
    path = tmp_path / "chats.sqlite"

    async def ask_elsewhere() -> str:
        """Start another process that talks to the same conversation."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OTHER, str(path), stdout=subprocess.PIPE, env=dict(os.environ)
        )
        output, _ = await process.communicate()
        return output.decode().strip()

    model = ScriptedModel([call("ask_elsewhere", call_id="c1"), "Next."])
    async with SQLiteStore(path) as store:
        chat = store.conversation("a", AsyncSwarm(model.client()), agent=Agent(functions=[ask_elsewhere]))
        with pytest.raises(Conflict) as caught:
            await chat.run("Hi")
        stored = await chat.load()
        assert caught.value.stored == stored
        assert [each["content"] for each in stored.messages] == [
            "Hi",
            None,
            "cancelled; its outcome is unknown",
            "And I am here too",
            "From elsewhere.",
        ]
        assert [each["content"] for each in caught.value.messages] == ["Hi", None, "From elsewhere."]
        assert (await chat.run("Next")).text == "Next."
        check_history((await chat.load()).messages)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.asyncio
async def test_many_processes_with_one_file(tmp_path: Path) -> None:
    """Each writes its own conversations, and nothing is lost."""
    path = tmp_path / "chats.sqlite"
    script = OTHER.replace('"a"', "sys.argv[2]")
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(path), str(number), stdout=subprocess.PIPE, env=dict(os.environ)
        )
        for number in range(4)
    ]
    for process in processes:
        output, _ = await process.communicate()
        assert output.decode().strip() == "From elsewhere."
    async with SQLiteStore(path) as store:
        found = [await store.load(each.id) for each in await store.list()]
    assert len(found) == 4
    assert all(each and each.messages[0] == user("And I am here too") and len(each.messages) == 2 for each in found)


def test_importing_conversations_imports_no_database() -> None:
    """A database is imported once a store is opened, and `import aswarm` does not import conversations."""
    heavy = ("sqlite3", "psycopg", "openai", "httpx", "aswarm.conversations")
    code = f"""
import sys, aswarm
print([name for name in {heavy!r} if name in sys.modules])
import aswarm.conversations
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['aswarm.conversations']"]
