"""The ends of spans: an error after a failure, and no error after a run that was left."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import anyio.from_thread
import pytest

from aswarm import Agent, AsyncSwarm, Budget, ToolError, tool
from aswarm.middleware import Handlers, retry
from aswarm.testing import Failure, RawAnswer, call
from tests.support.leaving.run_scenes import until
from tests.support.otel.traces import Traces, attributes, has_failed
from tests.support.providers.sources import script_of
from tests.support.run.ways_to_run import consume
from tests.support.runtime.virtual_time import virtual_backend


async def fail() -> str:
    raise KeyError("x")


def failed(traces: Traces) -> list[tuple[str, Any]]:
    """Return the names of the failed spans, with the type of the error."""
    return [(span.name, attributes(span).get("error.type")) for span in traces.begun if has_failed(span)]


async def test_a_failure_of_the_provider_is_an_error_of_the_completion_and_the_run(traces: Traces) -> None:
    """The type of the error is the HTTP status."""
    swarm = AsyncSwarm(script_of([Failure(404, "no such model")]).client(), middleware=[traces.middleware()])
    with pytest.raises(Exception, match="no such model"):
        await swarm.run(Agent(), "Hi")
    assert [(has_failed(span), attributes(span)["error.type"]) for span in traces.begun] == [(True, "404")] * 2
    assert attributes(traces.one("invoke_agent"))["aswarm.stop"] == "error"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ([b'data: {"choices": [{"delta": {"content": "He"}}]}\n\n', b"data: [DONE]\n\n"], "StreamInterrupted"),
        ([b'data: {"error": {"message": "overloaded", "code": 503}}\n\n'], "503"),
        ([b'data: {"choices": [{"delta": {"content": "He"}}]}\n\n', b'data: {"choices": 7}\n\n'], "CompletionError"),
    ],
)
async def test_an_answer_that_is_no_completion_is_an_error(traces: Traces, answer: list[bytes], kind: str) -> None:
    """The handler has only passed it on, and the run finds the fault later."""
    swarm = AsyncSwarm(script_of([RawAnswer(answer)]).client(), middleware=[traces.middleware()])
    with pytest.raises(Exception):  # noqa: B017 - the type is that of the run
        await consume(swarm, Agent(), "stream", [])
    assert [attributes(span).get("error.type") for span in traces.begun] == [kind, kind]
    assert all(map(has_failed, traces.begun))


async def test_an_error_in_an_answer_is_found_if_another_middleware_reads_more(traces: Traces) -> None:
    """`retry` reads a whole answer to its end before it passes on the first chunk."""

    class Source:
        async def complete(self, request: object) -> Any:
            yield {"error": {"message": "overloaded", "code": 503}}
            yield {"error": {"message": "again", "code": 500}}

    with pytest.raises(Exception, match="overloaded"):
        await AsyncSwarm(Source(), middleware=[retry(1), traces.middleware()]).run(Agent(), "Hi")
    assert attributes(traces.one("chat"))["error.type"] == "503"


async def test_an_error_of_other_code_is_named_by_its_class(traces: Traces) -> None:
    """The RunError around it is not the type."""

    def fail(handlers: Handlers) -> Handlers:
        raise ZeroDivisionError("secret")

    swarm = AsyncSwarm(script_of([]).client(), middleware=[fail, traces.middleware()])
    with pytest.raises(Exception, match="secret"):
        await swarm.run(Agent(), "Hi")
    (span,) = traces.begun
    assert attributes(span)["error.type"] == "ZeroDivisionError"


async def test_a_call_that_fails_is_an_error_of_the_call_and_not_of_the_run(traces: Traces) -> None:
    """The model reads it, and the run continues."""

    async def refuse() -> str:
        raise ToolError("No.")

    model = script_of([[call("refuse"), call("fail"), call("gone")], "Done."])
    swarm = AsyncSwarm(model.client(), middleware=[traces.middleware()])
    await swarm.run(Agent(functions=[refuse, fail]), "Hi")
    assert dict(failed(traces)) == {
        "execute_tool refuse": "ToolError",
        "execute_tool fail": "KeyError",
        "execute_tool gone": "ToolNotFound",
    }


async def test_a_call_that_waits_is_no_error(traces: Traces) -> None:
    """`aswarm.stop` of the call and of the run is "waiting"."""

    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    swarm = AsyncSwarm(script_of([call("pay")]).client(), middleware=[traces.middleware()])
    response = await swarm.run(Agent(functions=[pay]), "Hi")
    assert response.stop == "waiting"
    assert attributes(traces.one("execute_tool pay"))["aswarm.stop"] == "waiting"
    assert attributes(traces.one("invoke_agent"))["aswarm.stop"] == "waiting"
    assert not any(map(has_failed, traces.begun))


async def test_an_error_that_ends_the_run_in_a_call_is_an_error_of_both(traces: Traces) -> None:
    """An error of `tool_error` ends the run."""

    def stop(_: object) -> str:
        raise LookupError("no")

    swarm = AsyncSwarm(script_of([call("fail")]).client(), middleware=[traces.middleware()], tool_error=stop)
    with pytest.raises(Exception, match="no"):
        await swarm.run(Agent(functions=[fail]), "Hi")
    assert failed(traces) == [("invoke_agent Agent", "LookupError"), ("execute_tool fail", "LookupError")]


async def test_leaving_early_is_no_error(traces: Traces) -> None:
    """`aswarm.stop` is "cancelled"."""
    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[traces.middleware()])
    async with swarm.stream(Agent(), "Hi") as run:
        await anext(run)
        await anext(run)
    assert [attributes(span)["aswarm.stop"] for span in traces.begun] == ["cancelled"] * 2
    assert not any(map(has_failed, traces.begun))


@pytest.mark.parametrize(
    "anyio_backend", [virtual_backend("asyncio"), virtual_backend("trio")], ids=["asyncio", "trio"]
)
async def test_a_run_that_its_budget_ends_is_no_error(traces: Traces, anyio_backend: Any) -> None:
    """The call that is cut is cancelled, and the run has the reason of its end."""

    async def wait() -> str:
        await anyio.sleep_forever()
        return "never"

    class Source:
        async def complete(self, request: object) -> Any:
            made = {"id": "call_1", "type": "function", "function": {"name": "wait", "arguments": "{}"}}
            message = {"role": "assistant", "content": None, "tool_calls": [made]}
            yield {"choices": [{"message": message, "finish_reason": "tool_calls"}]}

    swarm = AsyncSwarm(Source(), middleware=[traces.middleware()])
    response = await swarm.run(Agent(functions=[wait]), "Hi", budget=Budget(seconds=60))
    assert response.stop == "budget"
    assert attributes(traces.one("invoke_agent"))["aswarm.stop"] == "budget"
    assert attributes(traces.one("execute_tool"))["aswarm.stop"] == "cancelled"
    assert not any(map(has_failed, traces.begun))


async def test_a_stream_that_is_dropped_ends_its_spans(traces: Traces) -> None:
    """The spans end when the event loop has closed the stream."""
    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[traces.middleware()])

    async def read_two() -> None:
        stream = swarm.run(Agent(), "Hi", stream=True)
        await anext(stream)
        await anext(stream)

    await read_two()
    gc.collect()
    await until(lambda: len(traces.ended) == 2)


async def test_a_retry_inside_is_one_span_and_outside_is_two(traces: Traces) -> None:
    """A middleware after `otel` is inside its spans, and one before it is around them."""
    for inside in (True, False):
        swarm_middleware = [traces.middleware(), retry(2)] if inside else [retry(2), traces.middleware()]
        steps = [Failure(500, headers={"retry-after-ms": "1"}), "Hello."]
        await AsyncSwarm(script_of(steps).client(), middleware=swarm_middleware).run(Agent(), "Hi")
    assert [has_failed(span) for span in traces.named("chat")] == [False, True, False]
