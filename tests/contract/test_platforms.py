"""Windows, as far as this machine can show it: no module needs a part of Python that only POSIX systems have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import aswarm

pytestmark = pytest.mark.processes

# Imports the packages of others first, because theirs is another question; then aswarm, without the parts that Windows lacks.
PROGRAM = """
import asyncio, importlib, os, pkgutil, signal, socket, sys
import aswarm

def load(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert not (error.name or "").startswith("aswarm"), error

names = ["aswarm", *(each.name for each in pkgutil.walk_packages(aswarm.__path__, "aswarm.", onerror=lambda _: None))]
names = [name for name in names if name != "aswarm.__main__"]
for name in names:
    load(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "aswarm"]:
    del sys.modules[name]
for name in ("fcntl", "termios", "tty", "pty", "resource", "pwd", "grp"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "O_CLOEXEC", "O_NONBLOCK", "getuid", "geteuid", "killpg", "fchmod", "mkfifo"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGWINCH", "SIGALRM", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)

def no_handlers(self, *_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = no_handlers
for name in names:
    load(name)
"""

USES = {
    "a batch with a journal": """
from aswarm import Agent, AsyncSwarm
from aswarm.batch import Item
from aswarm.testing import ScriptedModel

async def main():
    async with AsyncSwarm(ScriptedModel(["Done."]).client()) as swarm:
        async with swarm.batch(Agent(), [Item("Hi")], journal="journal.sqlite") as outcomes:
            async for outcome in outcomes:
                print(outcome.response.text)

asyncio.run(main())
""",
    "a conversation in a file": """
from aswarm import Agent, AsyncSwarm
from aswarm.conversations import SQLiteStore
from aswarm.testing import ScriptedModel

async def main():
    async with SQLiteStore("chats.sqlite") as store, AsyncSwarm(ScriptedModel(["Done."]).client()) as swarm:
        print((await store.conversation("c", swarm, agent=Agent()).run("Hi")).text)

asyncio.run(main())
""",
    "signals of a worker": """
from aswarm.cli._server import received

async def main():
    with received(signal.SIGTERM, signal.SIGINT) as signals:
        signal.raise_signal(signal.SIGTERM)
        assert await anext(signals) == signal.SIGTERM
    print("Done.")

asyncio.run(main())
""",
    "a batch command": """
from aswarm.cli.commands.batch.command import run_until_sigterm as run

async def main():
    print("Done.")

run(main())
""",
    "a file that is replaced": """
from pathlib import Path
from aswarm._runtime.files import replacing

Path("a").write_text("old")
with replacing(Path("a")) as file:
    file.write(b"Done.")
print(Path("a").read_text())
""",
    "the echo of a terminal": """
from aswarm.repl._rich import Echo

echo = Echo()
echo.off()
echo.restore()
print("Done.")
""",
}


REFUSAL = """
os.name = "nt"
from aswarm import ConfigurationError
from aswarm._sql.processes import FileLocks

try:
    FileLocks("runs.sqlite")
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.slow
def test_nothing_but_runs_in_a_shared_file_needs_a_part_of_posix(tmp_path: Path) -> None:
    """Each use runs where modules, functions and signals of POSIX are missing, and the event loop takes no signal handlers.

    Without locks of files, a process could not know whether the owner of a run is alive, so these runs are refused.
    """
    program = "".join([PROGRAM, *USES.values(), REFUSAL])
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    *lines, refusal = done.stdout.splitlines() or [""]
    assert (lines, done.returncode) == (["Done."] * len(USES), 0), done.stderr
    assert refusal.endswith("needs a POSIX system; use PostgreSQL here")


def test_no_pattern_has_possessive_quantifiers() -> None:
    """Possessive quantifiers match wrongly before Python 3.11.5, and Debian 12 has 3.11.2: https://github.com/python/cpython/issues/106052"""
    for path in Path(aswarm.__file__).parent.rglob("*.py"):
        for call in re.findall(
            r"re\.(?:compile|match|fullmatch|search|sub|finditer|findall)\(.*", path.read_text(encoding="utf-8")
        ):
            assert not re.search(r"[*+?}]\+|\(\?>", call), f"{path.name}: {call}"
