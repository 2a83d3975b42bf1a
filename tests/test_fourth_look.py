"""What a review by fresh eyes found, each a test that failed before."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import PrivateAttr

from aswarm import Agent, AsyncSwarm, CompletionError
from aswarm._files import replacing
from aswarm.evals import Case, evaluate
from aswarm.testing import ScriptedModel, call
from loopback import Reply, serve
from wire_cases import end, sse, text


@pytest.mark.asyncio
async def test_an_answer_that_ended_is_whole_even_where_the_server_hangs_up_uncleanly():
    """What follows [DONE] is ignored: the last chunk of HTTP that does not come, too."""

    def cut(_: object) -> Reply:
        body = b"".join(sse(*text("hello"), *end()))
        framed = b"%x\r\n%b\r\n" % (len(body), body)  # and no chunk of length 0
        return Reply([framed], headers={"transfer-encoding": "chunked"})

    async with serve(cut) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        async with client, AsyncSwarm(client).stream(Agent(), "Hi") as run:
            async for _ in run:
                pass
    assert run.response.text == "hello"
    assert run.response.stop == "answer"


PROGRAM = """
import asyncio
from contextlib import aclosing
from aswarm import Agent, AsyncSwarm

def delta(text):
    return {"choices": [{"index": 0, "delta": {"content": text}}]}

class Other:
    async def complete(self, request):
        try:
            for _ in range(3):
                yield delta("a")
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)

class Fallback:
    async def complete(self, request):
        yield delta("x")
        async with aclosing(Other().complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk

async def main():
    global kept
    kept = AsyncSwarm(Fallback()).run(Agent(), "Hi", stream=True)
    for _ in range(4):
        await anext(kept)

asyncio.run(main())
print("clean")
"""


def test_a_source_may_begin_generators_between_its_chunks(tmp_path: Path) -> None:
    """The end of the loop finds an open stream, closes it once, and prints nothing."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("clean\n", "")


@pytest.mark.skipif(int(openai.__version__.partition(".")[0]) < 3, reason="openai 2.0 on httpx 0.27 sends them")
@pytest.mark.asyncio
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_numbers_that_json_has_not_are_never_sent(number: float):
    """It is the SDK that says so."""
    model = ScriptedModel(["never"])
    with pytest.raises(CompletionError, match="not JSON compliant"):
        await AsyncSwarm(model.client()).run(Agent(model_settings={"temperature": number}), "Hi")
    assert model.requests == []


@pytest.mark.asyncio
async def test_a_text_may_speak_of_such_numbers():
    """Only the way in which it is sent is another."""
    model = ScriptedModel(["No."])
    await AsyncSwarm(model.client()).run(Agent(), "Is NaN more than Infinity?")
    assert model.requests[0].messages[-1]["content"] == "Is NaN more than Infinity?"


@pytest.mark.asyncio
async def test_an_agent_may_have_a_private_attribute_of_that_name():
    """What a run remembers of an agent is in nobody's way."""

    def look() -> str:
        return "seen"

    class Mine(Agent):
        _toolbox: list[str] = PrivateAttr(default_factory=lambda: ["hammer"])

    agent = Mine(functions=[look])
    response = await AsyncSwarm(ScriptedModel([call("look"), "Done."]).client()).run(agent, "Hi")
    assert response.text == "Done."
    assert agent._toolbox == ["hammer"]


@pytest.mark.asyncio
async def test_a_report_that_cannot_be_written_is_not_lost(tmp_path: Path):
    """Its attempts were paid for: the error has it."""
    folder = tmp_path / "results"

    def check(_: object) -> bool:
        folder.rmdir()
        return True

    swarm = AsyncSwarm(ScriptedModel(["Hello"]).client())
    with pytest.raises(FileNotFoundError) as caught:
        await evaluate(Agent(), [Case("Hi", check=check)], swarm=swarm, results=folder / "all.json")
    assert caught.value.report.passed == 1  # type: ignore[attr-defined]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """What was there stays, and nothing else is left in the folder."""
    place = tmp_path / "taken"
    place.mkdir()
    with pytest.raises(OSError, match="taken"), replacing(place) as file:
        file.write(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(("private", "expected"), [(False, 0o640), (True, 0o600)])
def test_a_file_that_is_replaced_keeps_its_mode_unless_it_is_private(
    tmp_path: Path, private: bool, expected: int
) -> None:
    """Results are for whoever could read them; a conversation is for its owner only."""
    place = tmp_path / "kept.json"
    place.write_text("old", encoding="utf-8")
    place.chmod(0o640)
    with replacing(place, private=private) as file:
        [fresh] = set(tmp_path.iterdir()) - {place}
        assert fresh.stat().st_mode & 0o777 == expected  # before anything is in it
        file.write(b"new")
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"new", expected)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
