"""An API key that cannot be sent, for example because it ends in a line break, is shown nowhere."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, RunError, Swarm
from aswarm.errors import StreamInterrupted
from aswarm.sources import CompletionRequest, completion_error
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.cli.cli_runs import AGENTS, ended, model, started
from tests.support.providers.loopback import Reply, serve, sse, whole

SECRET = "sk-SECRET"
# Keys of users: `echo` and mounted secrets, Windows, a key that was wrapped by an editor.
UNSENDABLE = [f"{SECRET}\n", f"{SECRET}\r\n", f"{SECRET} ", f"sk-\n{SECRET}"]
QUOTED = f"Illegal header value b'Bearer {SECRET}\\n'"


def answer(body: Mapping[str, Any]) -> Reply:
    """A correct answer."""
    return sse(ScriptedAnswer("Hi")) if body.get("stream") else whole(ScriptedAnswer("Hi"))


async def read(swarm: AsyncSwarm, *, deltas: bool) -> None:
    """Run to the end."""
    async with swarm.stream(Agent(), "Hi", deltas=deltas) as run:
        async for _ in run:
            pass


@pytest.mark.parametrize(
    "options",
    [*({"api_key": key} for key in UNSENDABLE), {"api_key": "x", "default_headers": {"x-token": f"{SECRET}\n"}}],
)
@pytest.mark.parametrize("deltas", [True, False])
async def test_a_client_with_a_header_that_cannot_be_sent_does_not_show_it(options: Any, deltas: bool) -> None:
    """The transport quotes the key or another header: neither the text of the error nor its traceback with all causes has it."""
    async with (
        serve(answer) as server,
        openai.AsyncOpenAI(**options, base_url=server.base_url, max_retries=0) as client,
    ):
        with pytest.raises(CompletionError, match=r"header value \(hidden.*line break") as caught:
            await read(AsyncSwarm(client), deltas=deltas)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_blocking_client_does_not_show_its_key() -> None:
    """The client of `Swarm` fails in another thread; its error has no key either."""
    with (
        model("Hi") as server,
        openai.OpenAI(api_key=f"{SECRET}\n", base_url=server.base_url, max_retries=0) as client,
        pytest.raises(CompletionError) as caught,
    ):
        Swarm(client).run(Agent(), "Hi")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.asyncio
async def test_a_run_in_a_tool_does_not_log_the_key(caplog: pytest.LogCaptureFixture) -> None:
    """The log record of a tool that failed has the traceback of the inner run's error, with its causes and no key."""

    async def ask() -> str:
        async with (
            serve(answer) as server,
            openai.AsyncOpenAI(api_key=f"{SECRET}\n", base_url=server.base_url, max_retries=0) as client,
        ):
            return (await AsyncSwarm(client).run(Agent(), "Hi")).text

    swarm = AsyncSwarm(ScriptedModel([call("ask"), "Sorry."]).client())
    with caplog.at_level(logging.INFO, "aswarm"):
        response = await swarm.run(Agent(functions=[ask]), "Hi")
    assert "LocalProtocolError" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in str(response.messages)


class QuotingSource:
    """A completion source whose transport quotes a header. It passes the exception on as it is."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        raise ValueError(QUOTED)
        yield {}


@pytest.mark.asyncio
async def test_an_exception_of_a_source_does_not_show_a_header() -> None:
    """An exception that is not a `CompletionError` ends the run as a RunError, whose text has no header value."""
    with pytest.raises(RunError, match=r"header value \(hidden") as caught:
        await AsyncSwarm(QuotingSource()).run(Agent(), "Hi")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "text",
    [
        QUOTED,
        f'Illegal header value b"Bearer {SECRET}"',
        f"Illegal header value b'Bearer \\'{SECRET}\"'",
        f"Invalid header value b'{SECRET}\\n'",
        f"Invalid leading whitespace, reserved character(s), or return character(s) in header value: '{SECRET}\\n'",
        f"Received header value surrounded by whitespace b'{SECRET} '",
    ],
)
def test_the_texts_of_known_transports(text: str) -> None:
    """h11, http.client, requests and h2 quote a header value in these words."""
    error = ValueError(text)
    error.__context__ = again = ValueError(text, 7)
    again.__context__ = error
    assert SECRET not in str(completion_error(error))
    assert SECRET not in str(error)
    assert SECRET not in str(again)
    assert again.args[1] == 7


def test_a_header_value_in_a_group_of_errors_is_not_shown() -> None:
    """Task groups of tools and transports raise groups: their parts, and the causes of these, are found too."""
    part = ValueError(QUOTED)
    part.__cause__ = ValueError(QUOTED)
    completion_error(ExceptionGroup("all failed", [OSError("?"), ExceptionGroup("one", [part])]))
    assert SECRET not in f"{part} {part.__cause__}"


@pytest.mark.parametrize(
    "text",
    ["missing header value 'x-id'; ask for 'y' and see https://docs, it's easy", "the header value of 'x-id' is 'y'"],
)
def test_other_texts_with_a_header_value_stay(text: str) -> None:
    """Only the words of transports count: a tool may write of headers, and the model reads its text."""
    error = ValueError(text)
    completion_error(error)
    assert str(error) == text


def test_what_follows_a_quoted_header_value_stays() -> None:
    """The value ends at its own quotation mark, and other quoted texts follow it."""
    error = ValueError(f"{QUOTED}; it's in 'x-id'")
    completion_error(error)
    assert SECRET not in str(error)
    assert str(error).endswith("; it's in 'x-id'")


@pytest.mark.asyncio
async def test_a_stream_that_breaks_does_not_show_a_header() -> None:
    """The same holds for an error in the middle of an answer."""

    class Broken:
        """A client whose stream fails."""

        class chat:
            class completions:
                @staticmethod
                async def create(**_: Any) -> AsyncGenerator[Any, None]:
                    async def chunks() -> AsyncGenerator[Any, None]:
                        yield {"choices": [{"delta": {"content": "H"}}]}
                        raise ValueError(QUOTED)

                    return chunks()

    with pytest.raises(StreamInterrupted) as caught:
        await AsyncSwarm(Broken()).run(Agent(), "Hi")
    assert SECRET not in str(caught.value)


# --- clients that are made from the environment -----------------------------------------------------------------------


async def of_async_swarm() -> openai.AsyncOpenAI:
    """The client that `AsyncSwarm` makes."""
    async with AsyncSwarm() as swarm:
        client: openai.AsyncOpenAI = swarm.client
        return client


def of_swarm() -> openai.OpenAI:
    """The client that `Swarm` makes."""
    with Swarm() as swarm:
        client: openai.OpenAI = swarm.client
        return client


@pytest.mark.asyncio
async def test_a_key_from_the_environment_is_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mounted secret ends in a line break: the clients that a swarm makes send it without."""
    monkeypatch.setenv("OPENAI_API_KEY", f" {SECRET}\r\n")
    assert (await of_async_swarm()).api_key == SECRET
    assert of_swarm().api_key == SECRET


@pytest.mark.asyncio
@pytest.mark.parametrize("key", [f"sk-\n{SECRET}", f"“{SECRET}”", f"{SECRET}\x7f{SECRET}"])
async def test_a_key_that_no_header_may_have_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the caller's mistake, found before any request, and the text does not quote the key."""
    monkeypatch.setenv("OPENAI_API_KEY", os.fsdecode(key.encode()))  # as a shell sets it, also without UTF-8
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY has a character") as caught:
        await of_async_swarm()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY has a character") as caught:
        of_swarm()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.asyncio
async def test_a_key_of_white_space_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file that was mounted: the error names the variable, which is set but empty."""
    monkeypatch.setenv("OPENAI_API_KEY", "\n")
    with pytest.raises(ConfigurationError, match="contains only white space"):
        await of_async_swarm()
    with pytest.raises(ConfigurationError, match="contains only white space"):
        of_swarm()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `agents` in the current directory, lines for a batch, and a case for `aswarm eval`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents.py").write_text(AGENTS, encoding="utf-8")
    (tmp_path / "in.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n', encoding="utf-8")
    cases = '{"agent": "agents:orders", "cases": [{"conversation": "Hi", "function": null}]}'
    (tmp_path / "cases.json").write_text(cases, encoding="utf-8")
    return tmp_path


COMMANDS = {
    "run": ["run", "agents:orders", "Hi"],
    "run --debug": ["run", "agents:orders", "Hi", "--debug", "--no-stream"],
    "batch": ["batch", "agents:orders", "in.jsonl", "-o", "out.jsonl"],
    "eval": ["eval", "cases.json"],
}
# Each is a process of a second or more.
FEW_COMMANDS = [
    pytest.param(command, id=name, marks=[] if name == "run" else pytest.mark.heavy)
    for name, command in COMMANDS.items()
]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("command", FEW_COMMANDS)
def test_a_command_sends_the_key_without_its_line_break(command: list[str]) -> None:
    """With `OPENAI_API_KEY=$(cat secret; echo x)` and the like, the command works, and nothing it writes has the key."""
    with model("Hi") as server:
        code, stdout, stderr = ended(started(*command, server=server, OPENAI_API_KEY=f"{SECRET}\n"))
    assert (code, len(server.requests)) == (0, 1), stderr
    assert SECRET not in stdout + stderr


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("command", FEW_COMMANDS)
def test_a_command_refuses_a_key_with_a_line_break_inside(command: list[str], project: Path) -> None:
    """It ends before any request, with exit code 2, and the key is nowhere."""
    with model("Hi") as server:
        code, stdout, stderr = ended(started(*command, server=server, OPENAI_API_KEY=f"sk-\n{SECRET}"))
    assert (code, server.requests) == (2, [])
    assert "OPENAI_API_KEY has a character" in stderr
    assert SECRET not in stdout + stderr
    written = [path.read_text(encoding="utf-8") for path in project.iterdir() if path.is_file()]
    assert SECRET not in "".join(written)
