"""The facts of a run in middleware, and the id of a run in all places."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import aswarm
from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, RunError, Swarm, ToolError, tool
from aswarm.middleware import (
    CompletionHandler,
    CompletionRequest,
    Handlers,
    RunInfo,
    Started,
    ToolCall,
    ToolHandler,
    ToolOutcome,
    retry,
)
from aswarm.testing import Failure, call
from tests.support.middleware.middlewares import (
    WAYS_TO_START,
    Chunks,
    around_calls,
    around_completions,
    functions_that_run,
)
from tests.support.providers.sources import script_of
from tests.support.run.ways_to_run import FACES, cancel_when, consume

LOGGING = {"debug", "info", "warning", "error", "exception", "log"}


async def look() -> str:
    """Look."""
    return "sunny"


class Infos:
    """A middleware that keeps the `RunInfo` of each run."""

    def __init__(self) -> None:
        self.runs: list[RunInfo] = []

    def __call__(self, handlers: Handlers) -> Handlers:
        self.runs.append(handlers.run)
        return handlers


async def test_the_agent_is_the_active_one() -> None:
    """`run.agent` follows a handoff; `request.agent` is the agent that asks."""
    seen: list[tuple[str, str]] = []
    b = Agent(name="B")
    infos = Infos()

    def note(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        seen.append((infos.runs[0].agent.name, request.agent.name))
        return inner(request)

    middleware = [around_completions(note), infos]
    swarm = AsyncSwarm(script_of([call("transfer_to_b"), "I am B."]).client(), middleware=middleware)
    response = await swarm.run(Agent(name="A", functions=[b]), "Hi")
    assert seen == [("A", "A"), ("B", "B")]
    assert infos.runs[0].agent is b is response.agent


async def test_the_context_can_be_read_and_not_written() -> None:
    """`run.context_variables` shows the changes of tools, and refuses an assignment."""
    infos = Infos()
    seen: list[dict[str, Any]] = []

    async def note(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        seen.append(dict(infos.runs[0].context_variables))
        outcome = await inner(call, context, started)
        seen.append(dict(infos.runs[0].context_variables))
        return outcome

    def write(context_variables: dict[str, Any]) -> str:
        context_variables["city"] = "Oslo"
        return "done"

    given = {"user": 1}
    swarm = AsyncSwarm(script_of([call("write"), "Done."]).client(), middleware=[infos, around_calls(note)])
    await swarm.run(Agent(functions=[write]), "Hi", given)
    assert seen == [{"user": 1}, {"user": 1, "city": "Oslo"}]
    assert given == {"user": 1}
    view: Any = infos.runs[0].context_variables
    with pytest.raises(TypeError):
        view["user"] = 2
    with pytest.raises(AttributeError):
        infos.runs[0].agent = Agent()  # type: ignore[misc]


@pytest.mark.parametrize("kind", WAYS_TO_START)
async def test_a_run_inside_a_tool_knows_the_call(kind: str) -> None:
    """`run.tool_call` is the call whose function has started the run, in each kind of function."""
    infos, outer = Infos(), Infos()
    client = script_of(["inner"]).client()
    inner = AsyncSwarm(client, middleware=[infos])
    function = functions_that_run(inner, lambda: Swarm(client, middleware=[infos]))[kind]
    swarm = AsyncSwarm(script_of([call("go", call_id="the call"), "Done."]).client(), middleware=[outer])
    response = await swarm.run(Agent(name="outer", functions=[tool(name="go")(function)]), "Hi")
    assert [message["content"] for message in response.messages if message["role"] == "tool"] == ["inner"]
    (run,) = infos.runs
    assert run.tool_call is not None
    assert (run.tool_call.id, run.tool_call.name, run.tool_call.agent.name) == ("the call", "go", "outer")
    assert outer.runs[0].tool_call is None
    assert run.run_id != response.run_id


async def test_each_run_inside_knows_its_own_call() -> None:
    """Runs inside calls of one group, and two calls deep, know their own calls."""
    infos = Infos()
    leaf = AsyncSwarm(script_of(lambda request: "leaf").client(), middleware=[infos])

    async def deep(number: int) -> str:
        return (await leaf.run(Agent(), "Hi", run_id=f"leaf {number}")).text

    middle_script = script_of(
        lambda request: (
            "middle"
            if request.messages[-1]["role"] == "tool"
            else call("deep", number=int(request.messages[-1]["content"]))
        )
    )
    middle = AsyncSwarm(middle_script.client(), middleware=[infos])

    async def ask(number: int) -> str:
        return (await middle.run(Agent(functions=[deep]), str(number), run_id=f"middle {number}")).text

    calls = [call("ask", number=number, call_id=f"ask {number}") for number in range(3)]
    await AsyncSwarm(script_of([calls, "Done."]).client()).run(Agent(functions=[ask]), "Hi")
    around = {run.run_id: run.tool_call for run in infos.runs}
    assert len(around) == 6
    for number in range(3):
        in_middle, in_leaf = around[f"middle {number}"], around[f"leaf {number}"]
        assert in_middle is not None
        assert in_middle.id == f"ask {number}"
        assert in_leaf is not None
        assert in_leaf.name == "deep"
        assert in_leaf.arguments == f'{{"number": {number}}}'


async def test_a_run_after_a_tool_is_in_no_call() -> None:
    """A run in the consumer of a stream, or after a run, is in no call."""
    infos = Infos()
    swarm = AsyncSwarm(script_of(lambda request: "Done." if len(request.messages) > 2 else call("look")).client())
    other = AsyncSwarm(script_of(lambda request: "other").client(), middleware=[infos])
    async with swarm.stream(Agent(functions=[look]), "Hi") as run:
        async for _ in run:
            await other.run(Agent(), "Hi")
    await other.run(Agent(), "Hi")
    assert len(infos.runs) > 3
    assert all(info.tool_call is None for info in infos.runs)


@pytest.mark.parametrize("given", ["order 7", None])
async def test_every_way_to_run_shows_the_id(given: str | None) -> None:
    """The middleware, the stream and the response have the given id, or else a new one."""
    infos = Infos()
    swarm = AsyncSwarm(script_of(lambda request: "Hi").client(), middleware=[infos])
    shown = [(await swarm.run(Agent(), "Hi", run_id=given)).run_id]
    classic = swarm.run(Agent(), "Hi", stream=True, run_id=given)
    before = classic.run_id
    async for event in classic:
        if "response" in event:
            assert event["response"].run_id == before
    again = swarm.run_and_stream(Agent(), "Hi", run_id=given)
    async for _ in again:
        pass
    async with swarm.stream(Agent(), "Hi", run_id=given) as typed:
        assert typed.response.run_id == typed.run_id
        async for _ in typed:
            pass
    shown += [classic.run_id, again.run_id, typed.response.run_id]
    assert shown == [run.run_id for run in infos.runs]
    assert shown == [given] * 4 if given else len(set(shown)) == 4
    assert all(shown)


@pytest.mark.parametrize("wrong", ["", 7, b"id", ["id"], True], ids=repr)
async def test_a_wrong_id_is_refused_at_once(wrong: Any) -> None:
    """An id must be a str that is not empty, and the error comes before a request."""
    swarm = AsyncSwarm(script_of([]).client())
    for start in (swarm.stream, swarm.run_and_stream, swarm.run):
        with pytest.raises(ConfigurationError, match="run_id must be a str that is not empty, not "):
            start(Agent(), "Hi", run_id=wrong)


@pytest.mark.parametrize("face", FACES)
async def test_a_failed_and_a_cancelled_run_have_their_id(face: str) -> None:
    """The partial response of a run that stopped early has its id."""
    left: list[Response] = []
    with pytest.raises(RunError) as caught:
        await consume(AsyncSwarm(script_of([]).client()), Agent(), face, left, run_id="mine")
    assert caught.value.response is not None
    assert caught.value.response.run_id == left[0].run_id == "mine"

    waits = anyio.Event()

    async def wait() -> str:
        waits.set()
        await anyio.sleep(60)
        return ""

    slow = AsyncSwarm(script_of([call("wait")]).client())
    assert (await cancel_when(waits.is_set, slow, Agent(functions=[wait]), face, run_id="mine")).run_id == "mine"


async def test_a_response_does_not_depend_on_the_id() -> None:
    """Two runs with equal messages are equal: the id is no part of `model_dump`."""
    swarm = AsyncSwarm(script_of(lambda request: "Hi").client())
    first, second = [await swarm.run(Agent(), "Hi", run_id=each) for each in ("one", "two")]
    assert first == second
    assert first.run_id != second.run_id
    assert first.model_dump() == second.model_dump()
    assert "run_id" not in first.model_dump()
    assert first.model_dump_json() == second.model_dump_json()
    assert first != first.model_copy(update={"stop": "error"})
    assert Response() == Response(run_id="x")
    assert Response().run_id == ""
    assert first != "Hi"
    assert Response.model_validate(first.model_dump()) == first


async def test_log_records_of_a_run_have_its_id(caplog: pytest.LogCaptureFixture) -> None:
    """Every record of the logger `aswarm` about a run has the attributes `run_id` and `agent`."""

    def fail() -> str:
        raise ValueError("no")

    async def refuse() -> str:
        raise ToolError("No.")

    steps = [Failure(500, headers={"retry-after-ms": "1"}), [call("fail"), call("refuse"), call("gone")], "Done."]
    swarm = AsyncSwarm(script_of(steps).client(), middleware=[retry(2)])
    with caplog.at_level(logging.DEBUG, logger="aswarm"):
        await swarm.run(Agent(name="Desk", functions=[fail, refuse]), "Hi", debug=True, run_id="mine")
    records = [record for record in caplog.records if record.name == "aswarm"]
    assert len(records) > 6
    assert {getattr(record, "run_id", None) for record in records} == {"mine"}
    assert {getattr(record, "agent", None) for record in records} == {"Desk"}
    assert {record.levelno for record in records} == {logging.DEBUG, logging.INFO, logging.ERROR}


async def test_a_middleware_logs_with_the_fields_of_its_run(caplog: pytest.LogCaptureFixture) -> None:
    """`run.log_fields` are the attributes of log records, with the active agent."""
    fields: list[dict[str, Any]] = []

    def note(handlers: Handlers) -> Handlers:
        fields.append(handlers.run.log_fields)
        handlers.run.on_end(lambda _response, _error: fields.append(handlers.run.log_fields))
        return handlers

    swarm = AsyncSwarm(script_of([call("transfer_to_b"), "I am B."]).client(), middleware=[note])
    await swarm.run(Agent(name="A", functions=[Agent(name="B")]), "Hi", run_id="r")
    assert fields == [{"run_id": "r", "agent": "A"}, {"run_id": "r", "agent": "B"}]


def test_every_log_call_names_its_run() -> None:
    """Each call of the logger in the package has `extra=` with both attributes."""
    missing: list[str] = []
    for path in Path(aswarm.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            is_log = ast.unparse(node.func.value) == "logger" and node.func.attr in LOGGING
            extra = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "extra"]
            if is_log and not (extra and ("agent" in extra[0] or not extra[0].startswith("{"))):
                missing.append(f"{path.name}, line {node.lineno}")
    assert missing == []
