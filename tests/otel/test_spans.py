"""The spans of a run: their names, their parents, and the functions in which they are current."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from contextlib import aclosing
from typing import Any

import anyio
import anyio.from_thread
import pytest
from opentelemetry import trace

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, Swarm, agent_tool, tool
from aswarm.otel import otel
from aswarm.testing import call, check_middleware
from tests.support.middleware.middlewares import WAYS_TO_START, functions_that_run
from tests.support.otel.traces import Traces, attributes, has_failed
from tests.support.providers.sources import script_of
from tests.support.run.ways_to_run import FACES, consume


async def look(city: str) -> str:
    """Look."""
    return "sunny"


def tree(traces: Traces) -> list[tuple[str, str | None]]:
    """Return each span with the name of its parent, in the order of their starts."""
    return [(span.name, traces.parent_name(span)) for span in traces.begun]


@pytest.mark.parametrize("face", FACES)
async def test_a_run_is_a_span_with_spans_of_its_completions_and_calls(traces: Traces, face: str) -> None:
    """A name has the operation, and the agent, the model or the function."""
    model = script_of([call("look", city="Oslo"), "Sunny."])
    swarm = AsyncSwarm(model.client(), middleware=[traces.middleware()], model="m")
    await consume(swarm, Agent(name="Desk", functions=[look]), face, [])
    run = "invoke_agent Desk"
    assert tree(traces) == [(run, None), ("chat m", run), ("execute_tool look", run), ("chat m", run)]
    assert not any(map(has_failed, traces.begun))


async def test_a_function_may_name_the_conversation(traces: Traces) -> None:
    """It gets the `RunInfo`; None is no conversation."""
    named = traces.middleware(conversation=lambda run: run.context_variables.get("thread"))
    swarm = AsyncSwarm(script_of(["Hi."] * 2).client(), middleware=[named])
    await swarm.run(Agent(), "Hi", {"thread": "t1"})
    await swarm.run(Agent(), "Hi", {"conversation_id": "c"})
    found = [attributes(span).get("gen_ai.conversation.id") for span in traces.named("chat")]
    assert found == ["t1", None]


def test_a_conversation_of_another_kind_is_a_mistake() -> None:
    """The error describes the right kinds."""
    with pytest.raises(ConfigurationError, match="the name of a context variable, or a function"):
        otel(conversation=7)  # type: ignore[arg-type]


async def test_a_run_is_below_the_span_of_its_caller(traces: Traces) -> None:
    """The span of a web request stays current for the reader."""
    swarm = AsyncSwarm(script_of([call("look", city="Oslo"), "Sunny."]).client(), middleware=[traces.middleware()])
    with traces.tracer.start_as_current_span("request") as request:
        async with swarm.stream(Agent(name="Desk", functions=[look]), "Hi") as run:
            async for _ in run:
                assert trace.get_current_span() is request
    assert tree(traces)[1] == ("invoke_agent Desk", "request")


async def test_a_handoff_is_an_event_of_the_run(traces: Traces) -> None:
    """The event has both agents; the completions and calls have the active agent."""
    model = script_of([call("transfer_to_b"), call("look", city="Oslo"), "Sunny."])
    swarm = AsyncSwarm(model.client(), middleware=[traces.middleware()])
    await swarm.run(Agent(name="a", functions=[Agent(name="b", functions=[look])]), "Hi")
    (event,) = traces.one("invoke_agent").events
    assert event.name == "aswarm.handoff"
    assert dict(event.attributes or {}) == {"aswarm.handoff.source": "a", "aswarm.handoff.target": "b"}
    agents = [attributes(span)["gen_ai.agent.name"] for span in traces.begun[1:]]
    assert agents == ["a", "a", "b", "b", "b"]


async def test_a_handoff_after_which_nothing_is_asked_is_an_event_too(traces: Traces) -> None:
    """The run ends with the agent that took over."""
    swarm = AsyncSwarm(script_of([call("transfer_to_b")]).client(), middleware=[traces.middleware()])
    response = await swarm.run(Agent(name="a", functions=[Agent(name="b")]), "Hi", max_turns=1)
    assert response.stop == "max_turns"
    assert [event.name for event in traces.one("invoke_agent").events] == ["aswarm.handoff"]


@pytest.mark.parametrize("kind", WAYS_TO_START)
async def test_a_run_that_a_function_starts_is_below_its_call(traces: Traces, kind: str) -> None:
    """Each kind of function may start it, also with its own swarm; the conversation comes from the outer run."""
    client, middleware = script_of(["inner"] * 3).client(), [traces.middleware()]
    inner = AsyncSwarm(client, middleware=middleware)
    function = functions_that_run(inner, lambda: Swarm(client, middleware=middleware))[kind]
    swarm = AsyncSwarm(script_of([call("go"), "Done."]).client(), middleware=middleware)
    await swarm.run(Agent(functions=[tool(name="go")(function)]), "Hi", {"conversation_id": 7}, run_id="r")
    span = traces.one("invoke_agent inner")
    assert traces.parent_name(span) == "execute_tool go"
    assert attributes(span)["gen_ai.conversation.id"] == "7"
    assert attributes(traces.begun[0])["aswarm.run.id"] == "r"


@pytest.mark.parametrize("face", FACES)
async def test_functions_see_the_span_of_their_call(traces: Traces, face: str) -> None:
    """The span is current in the event loop and in threads, before and after an await."""
    seen: dict[str, set[str]] = {}

    def note(name: str) -> None:
        seen.setdefault(name, set()).add(getattr(trace.get_current_span(), "name", "none"))

    async def first() -> str:
        note("first")
        await anyio.sleep(0.01)
        note("first")
        return "1"

    async def second() -> str:
        note("second")
        await anyio.sleep(0.005)
        await anyio.to_thread.run_sync(lambda: note("second"))
        return "2"

    def third() -> str:
        note("third")
        return "3"

    @tool(timeout=30)
    def fourth() -> str:
        note("fourth")
        return "4"

    functions = [first, second, third, fourth]
    model = script_of([[call(name) for name in ("first", "second", "third", "fourth")], "Done."])
    swarm = AsyncSwarm(model.client(), middleware=[traces.middleware()])
    await consume(swarm, Agent(functions=functions), face, [])
    assert seen == {name: {f"execute_tool {name}"} for name in ("first", "second", "third", "fourth")}


@pytest.mark.parametrize("stream", [False, True])
def test_functions_of_swarm_see_the_span_of_their_call(traces: Traces, stream: bool) -> None:
    """They run in the thread of the caller, whose own span is current again afterwards."""
    seen: list[str] = []

    def note() -> str:
        seen.append(trace.get_current_span().name)  # type: ignore[attr-defined]
        return "noted"

    swarm = Swarm(script_of([call("note"), "Done."]).client(), middleware=[traces.middleware()])
    agent = Agent(name="Desk", functions=[note])
    with traces.tracer.start_as_current_span("request") as request:
        if stream:
            for _ in swarm.run(agent, "Hi", stream=True):
                assert trace.get_current_span() is request
        else:
            swarm.run(agent, "Hi")
        assert trace.get_current_span() is request
    assert seen == ["execute_tool note"]
    assert traces.parent_name(traces.one("invoke_agent Desk")) == "request"


async def test_an_instrumented_source_is_below_its_completion(traces: Traces) -> None:
    """The span of the completion is current in the source, and never for the reader."""

    class Source:
        async def complete(self, request: object) -> Any:
            with traces.tracer.start_as_current_span("POST"):
                await anyio.sleep(0.001)
            for text in ("Hel", "lo"):
                seen.append(trace.get_current_span().name)  # type: ignore[attr-defined]
                yield {"choices": [{"delta": {"content": text}}]}
                await anyio.sleep(0.001)
            yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}

    seen: list[str] = []
    async with AsyncSwarm(Source(), middleware=[traces.middleware()], model="m").stream(Agent(), "Hi") as run:
        async for _ in run:
            assert trace.get_current_span() is trace.INVALID_SPAN
    assert traces.parent_name(traces.one("POST")) == "chat m"
    assert seen == ["chat m", "chat m"]


@pytest.mark.parametrize("face", ["run(stream=True)", "stream"])
async def test_a_span_that_a_source_holds_across_its_chunks_is_not_left_to_the_reader(
    traces: Traces, face: str
) -> None:
    """The reader has the span from before; the source ends its span in its own context."""

    class Source:
        async def complete(self, request: object) -> Any:
            with traces.tracer.start_as_current_span("POST"):
                for text in ("Hel", "lo"):
                    yield {"choices": [{"delta": {"content": text}}]}

    swarm = AsyncSwarm(Source(), middleware=[traces.middleware()], model="m")
    with traces.tracer.start_as_current_span("request") as request:
        if face == "stream":
            async with swarm.stream(Agent(), "Hi") as run:
                await anext(run)
                await anext(run)
        else:
            async with aclosing(swarm.run(Agent(), "Hi", stream=True)) as stream:
                await anext(stream)
                await anext(stream)
        assert trace.get_current_span() is request
    assert traces.parent_name(traces.one("POST")) == "chat m"


async def test_fifty_runs_at_once_have_their_own_spans(traces: Traces) -> None:
    """They have calls, runs inside calls, and functions in threads."""

    async def wait(city: str) -> str:
        await anyio.sleep(0.001)
        return city

    def plain(city: str) -> str:
        return city

    def answer(request: Any) -> Any:
        said = request.messages[-1]
        if said["role"] == "user" and said["content"].startswith("City"):
            city = said["content"]
            return [call("wait", city=city), call("plain", city=city), call("inner", request=f"Inner {city}")]
        return "Done."

    swarm = AsyncSwarm(script_of(answer).client(), middleware=[traces.middleware()])
    agent = Agent(name="outer", functions=[wait, plain, agent_tool(Agent(name="inner"))])
    left: list[Response] = []

    async def run(number: int) -> None:
        variables = {"conversation_id": f"c{number}"}
        left.append(await swarm.run(agent, f"City {number}", variables, run_id=f"r{number}"))

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(run, number)
    assert len(left) == 50
    assert len(traces.begun) == 50 * 8
    for number in range(50):
        spans = [span for span in traces.begun if attributes(span)["gen_ai.conversation.id"] == f"c{number}"]
        assert len({span.context.trace_id for span in spans}) == 1
        assert len(spans) == 8


@pytest.mark.parametrize("content", [False, True])
def test_the_rules_of_middleware_hold(content: bool) -> None:
    """Runs with it can be left at any moment, and no span is left open."""
    traces = Traces()
    check_middleware(traces.middleware(content=content))
    traces.check()
    assert len(traces.begun) > 100


@pytest.mark.processes
def test_without_an_sdk_nothing_happens() -> None:
    """The API alone makes spans that record nothing, and nothing is printed."""
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from aswarm import Agent, Swarm\n"
        "from aswarm.otel import otel\n"
        "from aswarm.testing import ScriptedModel\n"
        "print(Swarm(ScriptedModel(['Hi.']).client(), middleware=[otel(content=True)]).run(Agent(), 'Hi').text)\n"
    )
    assert _output(code) == ("Hi.\n", "")


def test_a_part_of_the_package_that_is_missing_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause is the missing part."""
    for name in [name for name in sys.modules if name.startswith("aswarm.otel")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigurationError, match="needs opentelemetry-api") as caught:
        importlib.import_module("aswarm.otel")
    assert isinstance(caught.value.__cause__, ImportError)


def _output(code: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    return done.stdout, done.stderr
