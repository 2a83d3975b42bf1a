"""Drawn runs with typed views have the same context and history as the same programs with plain dicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Hold, Result, agent_tool, current_call, tool
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, Step, call, check_history
from tests.support.run.typed_desk import Seen, SeenItems, SeenModel, Shop, ShopItems, ShopModel, get, put

pytestmark = pytest.mark.slow
USER = {"role": "user", "content": "Go"}
START = {"customer": "Ada", "points": 0, "cart": [], "box": {"items": []}, "other": {"kept": [1]}}
WRITERS = (Shop, ShopModel, ShopItems)
READERS = (Seen, SeenModel, SeenItems)
# The ways in which a call ends, and the ways in which a function runs.
ENDS = ("return", "return", "raise", "time out", "hold", "result", "hand off")
WAYS = ("async", "async", "thread", "loop", "own thread", "approve")
NAMES = ("write", "write", "read", "look", "transfer_to_other", "inner")

_calls = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "end": st.sampled_from(ENDS),
        "way": st.sampled_from(WAYS),
        "write": st.sampled_from(("points", "cart", "box", "customer", "nothing", "replace")),
        "number": st.integers(0, 3),
        "type": st.integers(0, 2),
    }
)
_turns = st.lists(st.lists(_calls, max_size=4), min_size=1, max_size=4)


def write(context: Any, what: str, number: int) -> None:
    if what == "points":
        put(context, "points", get(context, "points") + number)
    elif what == "cart":
        get(context, "cart").append(f"thing {number}")
    elif what == "box":
        get(get(context, "box"), "items").append(number)
    elif what == "customer":
        put(context, "customer", f"customer {number}")
    elif what == "replace":
        put(context, "cart", [*get(context, "cart"), str(number)][-3:])


def seen(context: Any) -> str:
    return json.dumps([get(context, "customer"), get(context, "points"), list(get(context, "cart"))])


def hinted(function: Callable[..., Any], hint: Any) -> Callable[..., Any]:
    function.__annotations__["context_variables"] = hint
    return function


def functions(*, is_typed: bool, other: Agent, inner: Agent) -> list[Any]:
    """Return a function for each kind of call. With `is_typed`, they declare types; else a dict or a Mapping."""
    made: list[Any] = [agent_tool(inner, name="inner", context="share"), other]
    for place in range(3):
        writer, reader = (WRITERS[place], READERS[place]) if is_typed else (dict[str, Any], Mapping[str, Any])

        def start(what: str, number: int, end: str, context_variables: Any) -> Any:
            if end == "hold" and not current_call().is_approved:
                raise Hold("May I?")
            write(context_variables, what, number)
            if end == "raise":
                raise ValueError(seen(context_variables))
            if end == "result":
                return Result(value=seen(context_variables), context_variables={"points": -number})
            return other if end == "hand off" else seen(context_variables)

        async def asynchronous(what: str, number: int, end: str, context_variables: Any) -> Any:
            value = start(what, number, end, context_variables)
            await anyio.lowlevel.checkpoint()
            if end == "time out":
                await anyio.sleep_forever()
            return value

        def plain(what: str, number: int, end: str, context_variables: Any) -> Any:
            return start(what, number, end, context_variables)

        async def read(context_variables: Any) -> str:
            await anyio.lowlevel.checkpoint()
            return seen(context_variables)

        ways = {
            "async": tool(name=f"write_async_{place}")(hinted(asynchronous, writer)),
            # Only a function that never ends has a timeout: on a busy machine, others would reach it too.
            "timed": tool(timeout=0.01, name=f"write_timed_{place}")(asynchronous),
            "thread": tool(name=f"write_thread_{place}")(hinted(plain, writer)),
            "loop": tool(name=f"write_loop_{place}", thread=False)(plain),
            "own thread": tool(name=f"write_own_thread_{place}", timeout=30)(plain),
            "approve": tool(name=f"write_approve_{place}", approve=True)(plain),
        }
        made += [*ways.values(), tool(name=f"read_{place}")(hinted(read, reader))]
    return made


async def look() -> str:
    return "looked"


def model_of(turns: list[list[dict[str, Any]]]) -> ScriptedModel:
    """Return a model that makes the calls of these turns, whichever agent asks. The agent inside makes one call."""

    def answer(request: Request) -> Step:
        number = sum(message["role"] == "assistant" for message in request.messages)
        if request.messages[0]["content"] == "inner":
            arguments = {"what": "cart", "number": 9, "end": "return"}
            return (
                "asked"
                if number
                else ScriptedAnswer(calls=[call("write_thread_0", call_id=f"inner {number}", **arguments)])
            )
        if number >= len(turns) or not turns[number]:
            return "Done."
        return ScriptedAnswer(calls=[_call(made, f"{number} {place}") for place, made in enumerate(turns[number])])

    return ScriptedModel(answer)


def _call(made: dict[str, Any], key: str) -> Any:
    name, way = made["name"], made["way"]
    if name == "inner":
        return call(name, call_id=key, request="Do it.")
    if name == "read":
        return call(f"read_{made['type']}", call_id=key)
    if name != "write":
        return call(name, call_id=key)
    way = "timed" if made["end"] == "time out" else way
    name = f"write_{way.replace(' ', '_')}_{made['type']}"
    return call(name, call_id=key, what=made["write"], number=made["number"], end=made["end"])


async def carried_out(
    turns: list[list[dict[str, Any]]], *, is_typed: bool, eager: Any, denied: set[int], through_json: bool
) -> tuple[Any, ...]:
    """Return the context, the agent and the history of the program, after all its decisions."""
    inner = Agent(name="Inner", instructions="inner")
    other = Agent(name="Other")
    inner.functions = functions(is_typed=is_typed, other=other, inner=inner)[2:]
    first = Agent(name="First", functions=[look, *functions(is_typed=is_typed, other=other, inner=inner)])
    other.functions = [*first.functions[:2], *first.functions[3:], first]
    swarm = AsyncSwarm(model_of(turns).client(), eager_tools=eager)
    response = await swarm.run(first, [USER], START)
    history, waits = [USER, *response.messages], list[tuple[str, ...]]()
    while response.stop == "waiting":
        waits.append(tuple(each.id for each in response.open_calls))
        if len(waits) > 20:
            break
        context = response.context_variables
        if through_json:
            history, context = json.loads(json.dumps([history, context]))
        decisions = {each.id: len(waits) not in denied for each in response.open_calls}
        response = await swarm.run(response.agent, history, context, resume=decisions)
        history += response.messages
    check_history(history, allow_open=True, ordered=False)
    return response.context_variables, response.agent.name, response.stop, history, waits


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.heavy)])
@given(_turns, st.sampled_from([False, True, "always"]), st.sets(st.integers(1, 3)), st.booleans())
def test_a_program_with_types_has_the_same_end_as_with_dicts(
    backend: str, turns: list[list[dict[str, Any]]], eager: Any, denied: set[int], through_json: bool
) -> None:
    """Context, agent, history and waiting calls are the same, through exceptions, holds, resumed runs and handoffs."""

    async def both() -> None:
        options: dict[str, Any] = {"eager": eager, "denied": denied, "through_json": through_json}
        with_dicts = await carried_out(turns, is_typed=False, **options)
        assert await carried_out(turns, is_typed=True, **options) == with_dicts

    anyio.run(both, backend=backend)
