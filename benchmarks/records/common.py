"""Helpers of all figures: agents, a model that answers at once, databases, processes, requests, table lines."""

from __future__ import annotations

import asyncio
import inspect
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from aswarm import Agent, AsyncSwarm
from aswarm.testing import ScriptedAnswer, call
from aswarm.testing._scripted_model import chunks

STORES = ("sqlite", "postgresql")
QUESTION = "What is the weather in Oslo, what time is it there, and what is new?"
ANSWER = "In Oslo it is sunny, it is noon, and a new bridge was opened."
_COMMAND = (sys.executable, str(Path(__file__).parent / "__main__.py"), "child")
_SECONDS = 1800  # the limit for a process


async def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


async def get_time(city: str) -> str:
    """Tell the time in a city."""
    return f"noon in {city}"


async def get_news(city: str) -> str:
    """Tell what is new in a city."""
    return f"a new bridge in {city}"


WEATHER = Agent(name="weather", functions=[get_weather])
"""Two completions and one call."""
GUIDE = Agent(name="guide", functions=[get_weather, get_time, get_news])
"""Four completions and three calls."""
AGENTS = [WEATHER, GUIDE]
_SCRIPTS = {
    "weather": [["get_weather"]],
    "guide": [["get_weather"], ["get_time"], ["get_news"]],
}


def words(text: str) -> list[str]:
    """Cut a text into the pieces of a stream."""
    return [f"{word} " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]


class Model:
    """A completion source that answers at once, by the position in the conversation.

    `name`: the agent whose script it follows. `on_start`: called with the text of the user at the first completion of a run.
    `answer`: the text of the last completion. `pause`: seconds before each chunk.
    """

    def __init__(
        self,
        name: str = "guide",
        *,
        on_start: Callable[[str], None] | None = None,
        answer: str = ANSWER,
        pause: float | None = None,
        cut: Callable[[str], Sequence[str]] = words,
    ) -> None:
        self._script = _SCRIPTS[name]
        self._on_start = on_start
        self._answer = answer
        self._pause = pause
        self._cut = cut

    async def complete(self, request: Any) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of the next completion of the script."""
        messages = request.chat_body()["messages"]
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        turn = sum(message["role"] == "assistant" for message in messages[last:])
        if turn == 0 and self._on_start is not None:
            self._on_start(messages[last]["content"])
        names = self._script[turn] if turn < len(self._script) else []
        answer = (
            ScriptedAnswer(calls=[call(each, city="Oslo") for each in names]) if names else ScriptedAnswer(self._answer)
        )
        for chunk in chunks(answer, self._cut):
            if self._pause is not None:
                await asyncio.sleep(self._pause)
            yield chunk


# --- the measured systems ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def durable(url: str, model: Any, **options: Any) -> AsyncIterator[Any]:
    """Open durable runs of `AGENTS`."""
    from aswarm.durable import DurableRuns  # noqa: PLC0415 - not every figure needs it

    async with (
        AsyncSwarm(client=model) as swarm,
        DurableRuns(swarm, agents=AGENTS, store=url, version="1", **options) as runs,
    ):
        yield runs


@asynccontextmanager
async def serving(path: Path, model: Any) -> AsyncIterator[Any]:
    """Yield a service of `AGENTS` with a SQLite file, as an ASGI application."""
    from aswarm.conversations import SQLiteStore  # noqa: PLC0415 - as above
    from aswarm.serve import LocalRuns, Service  # noqa: PLC0415 - as above

    async with AsyncSwarm(client=model) as swarm, SQLiteStore(path) as store:
        if "swarm" in inspect.signature(Service).parameters:
            service: Any = Service(swarm, agents=AGENTS, store=store, auth=lambda _: "user")
        else:  # a service over runs
            service = Service(LocalRuns(swarm, store, agents=AGENTS), auth=lambda _: "user")  # type: ignore[call-arg]
        async with service.lifespan():
            yield service


async def request(app: Any, method: str, path: str, body: Any = None) -> list[bytes]:
    """Send a request to an ASGI application. Returns the pieces of the body of its response, a stream of events."""
    headers = {"host": "localhost", "accept": "text/event-stream", "content-type": "application/json"}
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
        "server": ("localhost", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    sent = [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode(), "more_body": False}]
    never, received = asyncio.Event(), list[bytes]()

    async def receive() -> Any:
        if not sent:
            await never.wait()
        return sent.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:  # noqa: PLR2004 - HTTP
            raise RuntimeError(f"{method} {path} is answered with {message}")
        received.append(message.get("body", b""))

    await app(scope, receive, send)
    return received


# --- databases and processes ------------------------------------------------------------------------------------------


@contextmanager
def databases() -> Iterator[Any]:
    """Yield `Databases`, with their folder as the attribute `folder`."""
    from durable_runs import Databases  # noqa: PLC0415 - not every figure needs a server

    with tempfile.TemporaryDirectory() as name:
        made: Any = Databases(Path(name))
        made.folder = Path(name)
        try:
            yield made
        finally:
            made.close()


def child(name: str, *arguments: Any) -> Any:
    """Call a function, `module:function`, in another process. Returns its result."""
    done = subprocess.run(  # noqa: S603 - a command of this file
        [*_COMMAND, name, json.dumps(arguments)], capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{name}{arguments} has failed: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Running(NamedTuple):
    """A process, which stops when its input is closed, and its output."""

    process: subprocess.Popen[str]
    input: IO[str]
    output: IO[str]


@contextmanager
def running(name: str, *arguments: Any) -> Generator[Running]:
    """Run a process that calls a function and prints "ready" first, until the block ends."""
    with subprocess.Popen(  # noqa: S603 - as above
        [*_COMMAND, name, json.dumps(arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        input_, output = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        try:
            line = output.readline()
            if line != "ready\n":
                raise RuntimeError(f"{name}{arguments} has not started: {line}")
            yield Running(process, input_, output)
            input_.close()
            process.wait(_SECONDS)
        finally:
            process.kill()


async def until_input_ends() -> None:
    """Print that this process is ready, and return when its input is closed."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def worker(url: str, poll: float) -> None:
    """Execute durable runs until the input ends. Prints, for each run, its text and the time of its first model request."""

    def note(text: str) -> None:
        print(json.dumps([text, clock()]), flush=True)

    async with durable(url, Model("weather", on_start=note), poll_seconds=poll):
        await until_input_ends()


def clock() -> float:
    """Return the seconds of a clock that the processes of one machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def line(figure: str, values: Sequence[float], digits: int = 0) -> None:
    """Print a line of the table."""
    middle, low, high = statistics.median(values), min(values), max(values)
    print(f"| {figure} | {middle:.{digits}f} | {low:.{digits}f} to {high:.{digits}f} | {len(values)} |", flush=True)
