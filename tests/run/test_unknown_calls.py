"""Unknown calls: a response lists each call whose outcome is unknown, and a repeatable call runs again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response, Result, ToolError, tool
from aswarm.middleware import Handlers, Middleware, Started, ToolCall, ToolOutcome
from aswarm.testing import ScriptedModel, call, check_history
from aswarm.tools import function_tool
from aswarm.types import UnknownCall
from tests.support.run.ways_to_run import FACES, USER, answers, cancel_when

UNKNOWN = "cancelled; its outcome is unknown"


class Shop:
    """Functions that hang until their run is cancelled, and functions that return. `hung`: the calls that hang."""

    def __init__(self) -> None:
        self.hung: list[Any] = []
        self.ran: list[Any] = []

        @tool(repeatable=True)
        async def search(n: int = 0) -> str:
            return await self.hang("search", n)

        async def pay(n: int = 0) -> str:
            return await self.hang("pay", n)

        async def look(text: str = "seen") -> str:
            return text

        async def leave() -> Result:
            self.ran.append("leave")
            return Result(value="over", agent=Agent(name="Other"))

        self.agent = Agent(name="Buyer", functions=[search, pay, look, leave])

    async def hang(self, name: str, n: int) -> str:
        if n > 0:
            self.ran.append(n)
            return "found"
        self.hung.append(name)
        await anyio.sleep_forever()
        return ""

    async def cancelled(
        self, *calls: Any, until: Callable[[], object], middleware: list[Middleware] | None = None
    ) -> Response:
        """Return the response of a run that is cancelled in its first turn."""
        swarm = AsyncSwarm(ScriptedModel([calls]).client(), middleware=middleware or [])
        response = await cancel_when(until, swarm, self.agent, "stream")
        check_history([USER, *response.messages], allow_open=True)
        return response


def unknown(*ids: str, name: str = "pay") -> list[UnknownCall]:
    return [UnknownCall(call_id, name, "{}", "Buyer") for call_id in ids]


def told(response: Response) -> list[tuple[str, str]]:
    return [(m["tool_call_id"], m["content"]) for m in response.messages if m["role"] == "tool"]


def answering(outcomes: dict[str, ToolOutcome]) -> Middleware:
    """Return a middleware that answers the calls with these ids, as a store of calls does."""

    def middleware(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            return outcomes.get(call.id) or await handlers.call_tool(call, context, started)

        return replace(handlers, call_tool=call_tool)

    return middleware


# --- what is listed ---


async def test_a_call_that_was_cut_is_unknown() -> None:
    """A call that has started without an outcome is listed with the arguments of the model; other calls are not."""

    def change(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            if call.id == "2":
                call.arguments = '{"n": -1}'
            return await handlers.call_tool(call, context, started)

        return replace(handlers, call_tool=call_tool)

    shop = Shop()
    shop.agent.functions.append(tool(name="alone", concurrent=False)(shop.hang))
    calls = [call("look", call_id="1"), call("pay", '{"n": 0}', call_id="2"), call("alone", name="", n=0)]
    response = await shop.cancelled(*calls, until=lambda: shop.hung, middleware=[change])
    assert response.unknown_calls == [UnknownCall("2", "pay", '{"n": 0}', "Buyer")]


@pytest.mark.parametrize("name", ["search", "pay"])
async def test_unknown_calls_of_earlier_turns_stay_listed(name: str) -> None:
    """The list has all unknown calls of the run, in call order; an outcome of a middleware may be unknown too."""
    outcomes = {
        "1": ToolOutcome("It may have been paid.", unknown=True),
        "2": ToolOutcome("timed out", still_running=True),
        "3": ToolOutcome("found"),
        "4": ToolOutcome("perhaps", unknown=True),
    }
    steps = [[call(name, call_id=key) for key in "123"], call(name, call_id="4"), call("leave"), "Done."]
    swarm = AsyncSwarm(ScriptedModel(steps).client(), middleware=[answering(outcomes)])
    response = await swarm.run(Shop().agent, "Hi")
    assert response.unknown_calls == unknown("1", "2", "4", name=name)
    assert response.stop == "answer"


@pytest.mark.parametrize("hook", [False, True])
async def test_a_function_that_was_left_behind_is_unknown(hook: bool) -> None:
    """A function in a thread may still run after its timeout, also if `tool_error` then ends the run."""
    released = threading.Event()

    @tool(timeout=0.01)
    def work() -> str:
        released.wait(120)
        return ""

    def end(_: object) -> str:
        raise ToolError("over")

    swarm = AsyncSwarm(ScriptedModel([call("work"), "Done."]).client(), tool_error=end if hook else None)
    try:
        response: Any = await swarm.run(Agent(functions=[work]), "Hi")
    except Exception as error:
        response = getattr(error, "response", None)
    assert [made.name for made in response.unknown_calls] == ["work"]
    released.set()


# --- repeatable ---


async def test_a_repeatable_call_that_was_cut_stays_open() -> None:
    """A repeatable call is unknown but not answered, so that a resumed run can run it again."""
    shop = Shop()
    response = await shop.cancelled(
        call("search", call_id="1"), call("pay", call_id="2"), until=lambda: len(shop.hung) == 2
    )
    assert told(response) == [("2", UNKNOWN)]
    assert response.unknown_calls == [*unknown("1", name="search"), *unknown("2")]


@pytest.mark.parametrize("last", ['{"n": 0}', '{"n": 1}', '{"n'], ids=["running", "answered", "refused"])
async def test_calls_of_one_id_and_name(last: str) -> None:
    """A cut call before an answered call of its id is answered too, or a resumed run would take the later answer for it."""
    shop = Shop()
    calls = [call("search", arguments, call_id="1") for arguments in ("{}", "{}", last)]
    is_running = last == '{"n": 0}'
    response = await shop.cancelled(*calls, until=lambda: len(shop.hung) == 2 + is_running)
    assert [content for _, content in told(response)[:2]] == ([] if is_running else [UNKNOWN, UNKNOWN])
    assert len(response.unknown_calls) == 2 + is_running


@pytest.mark.parametrize("face", FACES)
async def test_a_resumed_run_runs_it_again(face: str) -> None:
    """A repeatable call that was cut runs again in the resumed run, its result is recorded, and nothing is unknown."""
    started = anyio.Event()
    runs: list[int] = []

    async def look(city: str) -> str:
        runs.append(len(runs))
        started.set()
        if len(runs) == 1:
            await anyio.sleep_forever()
        return f"sunny in {city}"

    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    made = function_tool(look, name="look", description="", parameters=schema, repeatable=True)
    agent = Agent(functions=[made])
    model = ScriptedModel([call("look", city="Oslo"), "Sunny."])
    response = await cancel_when(started.is_set, AsyncSwarm(model.client()), agent, face)
    assert answers(response) == {}
    assert [made.name for made in response.unknown_calls] == ["look"]
    end = await AsyncSwarm(model.client()).run(agent, [USER, *response.messages], resume=True)
    assert (answers(end), end.text, runs) == ({"look": "sunny in Oslo"}, "Sunny.", [0, 1])
    assert end.unknown_calls == []
