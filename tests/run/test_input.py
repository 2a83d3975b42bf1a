"""Open calls at the end of the messages are resumed on request, and a run changes nothing that the caller passes."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.ways_to_run import cancel_when

USER = {"role": "user", "content": "Hi"}
Json = dict[str, Any]


def asked(*calls: tuple[str, int]) -> Json:
    """Return an assistant message with calls of `look`: their ids and numbers."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": "look", "arguments": json.dumps({"n": n})}}
            for call_id, n in calls
        ],
    }


def told(call_id: str, content: str, **more: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


async def other(n: int) -> str:
    """Another."""
    return f"other {n}"


AGENT = Agent(name="A", functions=[look, other])


async def resumed(*history: Json, steps: Sequence[Any] = ("Done.",), resume: bool = True) -> tuple[list[Any], Response]:
    """Return the contents of the messages of the last request, without the instructions, and the response."""
    model = ScriptedModel(steps)
    response = await AsyncSwarm(model.client()).run(AGENT, list(history), resume=resume)
    check_history(model.requests[-1].messages)
    return [message["content"] for message in model.requests[-1].messages[1:]], response


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ("abcde", "'a', 'b', 'c', 'd', 'e'"),
        ("abcdefg", "'a', 'b', 'c', 'd', 'e', and 2 more"),
        (["x" * 50], f"'{'x' * 36}..."),
    ],
)
async def test_of_many_open_calls_the_first_are_named(ids: Sequence[str], named: str) -> None:
    """The error names five ids, and cuts a long id, because the history may come from a browser."""
    with pytest.raises(ConfigurationError) as caught:
        await resumed(USER, asked(*((each, 1) for each in ids)), resume=False)
    assert str(caught.value) == (
        f"messages end with open calls ({named}). Pass resume={{{named.split(',')[0]}: True}} with your decisions, resume=True to "
        "run the calls that need none, or, for a history from storage that you trust, resume=Approve.all() to run all. Or append "
        "their results"
    )


async def test_resume_with_nothing_open_is_a_run() -> None:
    """`resume=True` with nothing to resume is an ordinary run."""
    sent, response = await resumed(USER, asked(("c", 1)), told("c", "seen"))
    assert (sent, response.text) == (["Hi", None, "seen"], "Done.")


async def test_a_finished_call_is_never_run_again_for_its_open_twin() -> None:
    """If the second of two calls with one id and name has finished, a resumed run does not run it again."""
    ran: list[int] = []

    async def look(n: int) -> str:
        ran.append(n)
        if n == 1:
            await anyio.sleep_forever()
        return f"seen {n}"

    agent = Agent(functions=[look])
    swarm = AsyncSwarm(ScriptedModel([[call("look", call_id="x", n=1), call("look", call_id="x", n=2)]]).client())
    response = await cancel_when(lambda: len(ran) == 2, swarm, agent, "run")
    history = [USER, *response.messages]
    await AsyncSwarm(ScriptedModel(["Done."]).client()).run(agent, history, resume=True)
    assert ran.count(2) == 1


async def test_messages_and_context_of_the_caller_stay() -> None:
    """A run changes neither the messages nor the containers of the context that it gets."""

    def change(context_variables: Json) -> str:
        context_variables["list"][1]["deep"].add(4)
        context_variables["dict"]["a"].append(5)
        return "changed"

    history = [USER, asked(("1", 1)), told("1", "seen", tool_name="look"), USER]
    history[1]["tool_calls"][0]["function"]["arguments"] = ""
    context = {"list": [1, {"deep": {2}}], "dict": {"a": [3]}, "shared": ([1],)}
    before = copy.deepcopy((history, context))
    swarm = AsyncSwarm(ScriptedModel([call("change"), "Done."]).client())
    response = await swarm.run(Agent(functions=[change]), history, context)
    assert (history, context) == before
    assert response.context_variables == {"list": [1, {"deep": {2, 4}}], "dict": {"a": [3, 5]}, "shared": ([1],)}
    assert response.context_variables["shared"] is context["shared"]


@pytest.mark.parametrize("kind", [MappingProxyType, UserDict, OrderedDict])
async def test_a_mapping_that_is_no_dict_is_copied_as_deeply(kind: Callable[[Json], Mapping[str, Any]]) -> None:
    """The context may be any Mapping; the run copies the containers in it too."""

    def see(context_variables: Json) -> str:
        context_variables["seen"].append(1)
        return "ok"

    inner: list[int] = []
    context: Any = kind({"seen": inner})
    await AsyncSwarm(ScriptedModel([call("see"), "Done."]).client()).run(Agent(functions=[see]), "Go", context)
    assert inner == []
