"""`Swarm` in programs of its own: `exit()`, real Ctrl-C, forks, and the end with something left open. All are silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.blocking.blocking import keeping_server
from tests.support.sampling import every, listed

pytestmark = pytest.mark.processes

BEGIN = """
import asyncio, os, sys, threading, time
from aswarm import Agent, Swarm, ToolCallStarted, tool
from aswarm.testing import ScriptedAnswer, call
from tests.support.blocking.plain_client import BlockingClient

def place(work):
    if {place!r} == "script":
        return work()
    async def cell():
        return work()
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(cell())
    finally:
        loop.close()
"""
every_place = pytest.mark.parametrize("place", ["script", "notebook"])
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
# From 3.14 on, asyncio takes the running loop away from the child of a fork, and a task there cannot end any more.
in_notebook = pytest.param("notebook", marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="asyncio hangs"))
every_place_that_forks = pytest.mark.parametrize("place", ["script", in_notebook])


def start(place: str, code: str, **environment: str) -> subprocess.Popen[str]:
    """A program whose warnings are errors."""
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore:Swarm blocks the event loop",
            "-c",
            BEGIN.replace("{place!r}", repr(place)) + code,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )


def ends(program: subprocess.Popen[str]) -> tuple[int, str]:
    """Return its exit code and its stdout; it may not print to stderr."""
    out, err = program.communicate(timeout=120)
    assert not err
    return program.returncode, out


@pytest.mark.parametrize(("kind", "place"), every(4, ["def", "async def"], ["script", "notebook"], first=1))
def test_exit_in_a_function(kind: str, place: str) -> None:
    """The program ends with that code, and open calls are cleaned up on the way."""
    code = f"""
{kind} leave():
    exit(7)

async def beside():
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaned")

agent = Agent(functions=[leave, beside])
swarm = Swarm(BlockingClient([call("beside"), call("leave")]))
try:
    place(lambda: swarm.run(agent, "Go"))
finally:
    print("finally")
"""
    expected = "cleaned\nfinally\n" if kind == "async def" else "finally\n"
    if kind == "def":  # plain functions run alone, so nothing would run beside it
        code = code.replace('[call("beside"), call("leave")]', 'call("leave")')
    assert ends(start(place, code)) == (7, expected)


@pytest.mark.heavy
@every_place
def test_the_end_with_streams_left_open(place: str) -> None:
    """Half read, in the middle of a function, or never read: nothing is printed, nothing hangs, all is closed."""
    code = """
class Source:
    async def complete(self, request):
        try:
            yield {"choices": [{"delta": {"role": "assistant", "content": "Hi"}}]}
            await asyncio.Event().wait()
        finally:
            print("closed")

async def hang():
    try:
        await asyncio.Event().wait()
    finally:
        print("cancelled")

def main():
    swarm, tools = Swarm(Source()), Swarm(BlockingClient(call("hang")))
    half = swarm.run(Agent(), "Go", stream=True)
    next(half), next(half)
    middle = tools.stream(Agent(functions=[hang]), "Go")
    middle.__enter__()
    while not isinstance(next(middle), ToolCallStarted):
        pass
    unread = tools.run(Agent(), "Go", stream=True)
    return swarm, tools, half, middle, unread

kept = place(main)
print("end")
"""
    status, out = ends(start(place, code))
    assert (status, sorted(out.splitlines())) == (0, ["cancelled", "closed", "end"])


@pytest.mark.heavy
def test_the_thread_of_the_event_loop() -> None:
    """It starts with the first run, not before; it is a daemon; and it is the only one, however many runs there are."""
    code = """
def others():
    return [(thread.name, thread.daemon) for thread in threading.enumerate() if thread is not threading.main_thread()]

async def quick():
    return "quick"

swarm = Swarm(BlockingClient(*[call("quick"), "Done"] * 2))
print(others())
for _ in range(2):
    swarm.run(Agent(functions=[quick]), "Go")
    print(others())
"""
    thread = "[('aswarm event loop', True)]"
    assert ends(start("script", code)) == (0, f"[]\n{thread}\n{thread}\n")


@pytest.mark.heavy
def test_runs_at_the_end_of_the_program() -> None:
    """A function may run agents before the end of the loop; after it, the error has the reason."""
    code = """
import atexit

def run(name):
    try:
        print(name, swarm.run(Agent(), "Go").text)
    except RuntimeError as error:
        print(name, error)

swarm = Swarm(BlockingClient("Hi", "Hi"))
atexit.register(run, "after")
run("main")
atexit.register(run, "before")
"""
    expected = "main Hi\nbefore Hi\nafter the program is ending, and cannot run agents any more\n"
    assert ends(start("script", code)) == (0, expected)


@pytest.mark.heavy
def test_a_thread_that_outlives_the_main_thread() -> None:
    """A thread that is no daemon goes on running agents after the end of the main thread."""
    code = """
swarm = Swarm(BlockingClient("Hi", "Hi"))
print(swarm.run(Agent(), "Go").text)

def later():
    threading.main_thread().join()
    print(swarm.run(Agent(), "Go").text)

threading.Thread(target=later).start()
"""
    assert ends(start("script", code)) == (0, "Hi\nHi\n")


@pytest.mark.parametrize("place", listed(["script", "notebook"], ["notebook"]))
def test_ctrl_c(place: str) -> None:
    """A real SIGINT, wherever the run waits; each time the swarm goes on to work."""
    code = """
def ready(*_):
    print("ready", flush=True)

async def waits():
    ready()
    await asyncio.Event().wait()

def sleeps():
    ready()
    time.sleep(60)

class Client(BlockingClient):
    def _create(self, **request):
        sleeps()

def run(name):
    client = Client() if name == "client" else BlockingClient(call(name))
    agent = Agent(functions=[] if name == "client" else [globals()[name]])
    with Swarm(client) as swarm:
        try:
            swarm.run(agent, "Go")
        except KeyboardInterrupt as interrupt:
            print(name, interrupt.response.stop)
        swarm.client = BlockingClient("Still here")
        print(swarm.run(Agent(), "Go").text, flush=True)

for name in ("waits", "sleeps", "client"):
    place(lambda: run(name))
"""
    program = start(place, code)
    assert program.stdout is not None
    said: list[str] = []
    for line in program.stdout:
        said.append(line.strip())
        if said[-1] == "ready":
            program.send_signal(signal.SIGINT)
    names = ["waits", "sleeps", "client"]
    assert said == [line for name in names for line in ("ready", f"{name} cancelled", "Still here")]
    assert ends(program) == (0, "")


@pytest.mark.heavy
@forks
@every_place_that_forks
def test_a_function_that_forks_and_returns(place: str) -> None:
    """In the child the run is over: it belongs to the parent, where it goes on."""
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork, where there are threads

def forks():
    child = os.fork()
    return str(os.waitpid(child, 0)[1] >> 8) if child else "never told"

async def beside():
    await asyncio.Event().wait()

swarm, other = Swarm(BlockingClient(call("forks"), "Done")), Swarm(BlockingClient(call("beside")))
stream = other.stream(Agent(functions=[beside]), "Go").__enter__()
while not isinstance(next(stream), ToolCallStarted):
    pass
try:
    print(place(lambda: [message["content"] for message in swarm.run(Agent(functions=[forks]), "Go").messages]))
except RuntimeError as error:
    print(error, flush=True)
    sys.exit(4)
"""
    refused = "this run belongs to the process that started it, not to its fork"
    assert ends(start(place, code)) == (0, f"{refused}\n[None, '4', 'Done']\n")


@pytest.mark.heavy
@forks
@pytest.mark.parametrize(
    ("client", "place"),
    [
        ("None", "notebook"),
        ("OpenAI()", "script"),
        pytest.param("None", "script", marks=pytest.mark.heavy),
        pytest.param("AsyncOpenAI()", "notebook", marks=pytest.mark.heavy),
    ],
)
def test_a_fork(client: str, place: str) -> None:
    """Both processes go on with the same Swarm. It makes a client for each; one that was passed in, the child remakes."""
    code = f"""
import gc, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork, where there are threads
warnings.simplefilter("ignore", ResourceWarning)  # of a client that was passed in and is not closed
from openai import AsyncOpenAI, OpenAI
swarm = Swarm({client})
def ask(who): return place(lambda: swarm.run(Agent(), who).text)
before = ask("before")
stream = Swarm(BlockingClient("Hi")).run(Agent(), "Go", stream=True)
place(lambda: next(stream))
child = os.fork()
who = "parent" if child else "child"
if not child:
    swarm.client = {client}
    gc.collect()
texts = [ask(who) for _ in range(5)]
if not child:
    try:
        next(stream)
    except RuntimeError as error:
        texts.append(str(error))
    stream.close()
    del stream
    gc.collect()
    print(texts, flush=True)
    sys.exit(5)
ended = 0
while not ended:
    ended, status = os.waitpid(child, os.WNOHANG)
    ask("parent")  # otherwise its client closes the connection after five seconds
print(texts, ask("after"), place(lambda: len(list(stream))), status >> 8, flush=True)
"""
    with keeping_server() as (url, seen):
        status, out = ends(start(place, code, OPENAI_API_KEY="k", OPENAI_BASE_URL=url))
    refused = "this run belongs to the process that started it, not to its fork"
    child, parent = ["child"] * 5, ["parent"] * 5
    assert (status, out) == (0, f"{[*child, refused]}\n{parent} after 4 5\n")
    ports = {text: {port for port, said in seen if said == text} for text in ("before", "parent", "child", "after")}
    assert ports["before"] == ports["parent"] == ports["after"], "the parent keeps its connection"
    assert len(ports["child"]) == 1, "the child keeps one too"
    assert ports["child"].isdisjoint(ports["parent"])
