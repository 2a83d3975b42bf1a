"""The form of what a journal records: context variables, calls, completions; other values are refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aswarm import (
    Agent,
    AsyncSwarm,
    CompletionError,
    ConfigurationError,
    Response,
    Result,
    ToolError,
)
from aswarm._record.journal import Journal
from aswarm._record.outcomes import recorded_outcome
from aswarm._run.options import RunOptions
from aswarm._wire.accumulator import as_one_chunk
from tests.support.record.journaled import BATCH, Died, Json, Script, calls, dies, noting, rerun, says
from tests.support.run.one_turn import contents

UNKNOWN = "cancelled; its outcome is unknown"


@pytest.mark.anyio
async def test_context_changes_are_replayed(path: Path) -> None:
    """The changes that calls made to the context are made again without them: written, removed, returned."""
    seen: list[Json] = []

    async def change(context_variables: Json) -> Result:
        context_variables["count"] = context_variables.get("count", 0) + 1
        context_variables.pop("old", None)
        return Result(value="changed", context_variables={"last": [1.5, None, {"a": True}]})

    async def look(context_variables: Mapping[str, Any]) -> str:
        seen.append({**context_variables})
        return "seen"

    agent = Agent(functions=[change, look])
    with pytest.raises(Died):
        await rerun(path, Script(calls("change"), calls("change"), dies()), agent, context={"old": 1})
    await rerun(path, Script(calls("look"), says("Done")), agent, context={"old": 1})
    assert seen == [{"count": 2, "last": [1.5, None, {"a": True}]}]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("value", "text"),
    [({1, 2}, r"cart was set to \{1, 2\}"), ({"pens": [1, (2,)]}, r"cart\['pens'\]\[1\] was set"), ({1: 2}, "its key")],
)
async def test_a_value_that_json_cannot_hold_is_refused_when_it_is_recorded(path: Path, value: Any, text: str) -> None:
    """The item ends with an error that names the context variable; the partial response has the result of the call."""

    async def change(context_variables: Json) -> str:
        context_variables["cart"] = value
        return "changed"

    agent = Agent(functions=[change])
    with pytest.raises(ConfigurationError, match=text) as caught:
        await rerun(path, Script(calls("change")), agent)
    assert caught.value.response is not None
    assert contents(caught.value.response) == ["changed"]
    assert contents(await rerun(path, Script(says("Done")), agent)) == [UNKNOWN]


@pytest.mark.anyio
async def test_what_a_result_changes_must_be_json_too(path: Path) -> None:
    """The same holds for `Result.context_variables`, and for the context at the end of an item."""

    async def change() -> Result:
        return Result(context_variables={"when": object()})

    async def reach(context_variables: Mapping[str, Any]) -> str:
        context_variables["held"].append(object())
        return "reached"

    agent = Agent(functions=[change, reach])
    with pytest.raises(ConfigurationError, match="variable when"):
        await rerun(path, Script(calls("change")), agent)
    with pytest.raises(ConfigurationError, match=r"variable held\[0\]") as caught:
        await rerun(path.with_name("other"), Script(calls("reach"), says("Done")), agent, context={"held": []})
    assert caught.value.response is not None
    assert caught.value.response.text == "Done"


def asking_without_ids() -> Json:
    asked = calls("one", "one")
    for call in asked["tool_calls"]:
        del call["id"]
    return asked


@pytest.mark.anyio
async def test_calls_without_ids_have_the_same_ids_again(path: Path) -> None:
    """The id that is made for a call without one is recorded: a resumed history is the same."""
    notes: list[str] = []
    agent = Agent(functions=[noting(notes, "one")])
    model = Script(asking_without_ids(), dies())
    with pytest.raises(Died):
        await rerun(path, model, agent)
    response = await rerun(path, Script(says("Done")), agent)
    made = [call["id"] for call in response.messages[0]["tool_calls"]]
    assert made == [call["id"] for call in model.asked[1].body["messages"][2]["tool_calls"]]
    assert len(set(made)) == 2


@pytest.mark.anyio
async def test_open_calls_at_the_start_are_recorded_too(path: Path) -> None:
    """The calls that a resumed history begins with run once."""
    notes: list[str] = []
    agent = Agent(functions=[noting(notes, "one")])
    history = [{"role": "user", "content": "Hi"}, calls("one")]

    async def attempt(model: Script) -> Response:
        async with Journal(path, BATCH) as journal:
            return await journal.run("a", RunOptions(agent, history, resume=True), AsyncSwarm(client=model)._run_to_end)

    with pytest.raises(Died):
        await attempt(Script(dies()))
    assert contents(await attempt(Script(says("Done")))) == ["done"]
    assert notes == ["one"]


@pytest.mark.anyio
async def test_the_record_of_a_completion_is_what_the_provider_said(path: Path) -> None:
    """A recorded completion gives the same message: parts, refusals, reasoning, odd calls, unknown keys, no usage."""
    odd = [
        {"id": "c", "type": "function", "function": {"name": "", "arguments": ""}},
        {"id": "c", "type": "function", "function": {"name": "one", "arguments": "{"}},
        {"id": "c", "type": "custom", "custom": {"name": "two", "input": "x"}, "index": 7},
    ]
    messages = [
        says(""),
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}, {"type": "image", "url": "u"}],
            "x": {"y": [1]},
        },
        {"role": "assistant", "content": None, "refusal": "No", "reasoning_details": [{"index": 0, "text": "a"}]},
        {"role": "assistant", "content": "t \ud83d", "tool_calls": odd, "reasoning_content": "r"},
    ]
    asked: list[Any] = []

    class Recording(Script):
        """Keeps the messages of its last request."""

        async def complete(self, request: Any) -> AsyncGenerator[Mapping[str, Any], None]:
            asked.append(request.body["messages"])
            async for chunk in super().complete(request):
                yield chunk

    for number, message in enumerate(messages):
        steps = [message, *([dies()] if message.get("tool_calls") else [])]
        file = path.with_name(f"{number}.sqlite")
        if message.get("tool_calls"):
            with pytest.raises(Died):
                await rerun(file, Recording(*steps), Agent())
            await rerun(file, Recording(says("Done")), Agent())
            assert asked[-1] == asked[-2]
        else:
            response = await rerun(file, Recording(message), Agent())
            assert await rerun(file, Recording(), Agent()) == response
    without_ids = {"choices": [{"message": asking_without_ids()}]}
    assert all(call["id"] for call in as_one_chunk([without_ids])["choices"][0]["message"]["tool_calls"])


def test_the_error_of_a_recorded_call_is_a_tool_error() -> None:
    """Its text has the type and the message of the original error."""
    outcome = recorded_outcome({"content": "Error: ValueError: no ink", "error": "ValueError: no ink"}, {}, None)
    assert isinstance(outcome.error, ToolError)
    assert (str(outcome.error), outcome.content) == ("ValueError: no ink", "Error: ValueError: no ink")


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "overloaded"}},
        {"object": "error"},
        {"choices": []},
        {"choices": [{"index": 1, "message": says("Hi")}]},
        {"choices": [{"message": {}}]},
        {"choices": ["Hi"]},
        {"choices": [{"message": says("Hi"), "finish_reason": "error"}]},
        {"choices": [{"message": {**says("Hi"), "tool_calls": 7}}]},
    ],
)
@pytest.mark.asyncio
async def test_an_answer_that_is_no_completion_is_not_recorded(path: Path, answer: Json) -> None:
    """The loop refuses it, and a rerun requests the completion again."""

    class Odd:
        async def complete(self, request: Any) -> AsyncGenerator[Json, None]:
            yield answer

    with pytest.raises(CompletionError):
        await rerun(path, Odd(), Agent())
    assert (await rerun(path, Script(says("Done")), Agent())).text == "Done"
