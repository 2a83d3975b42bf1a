"""The records of a journal: context variables, calls and completions; values without a JSON form are refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, CompletionError, ConfigurationError, Result
from tests.support.record.journaled import Died, Json, Script, calls, dies, entries_of, noting, rerun, says
from tests.support.run.one_turn import contents

UNKNOWN = "cancelled; its outcome is unknown"


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


async def test_the_changes_of_a_result_are_recorded_once(path: Path) -> None:
    """The next call, which sees them in the context, has only its own writes in its record."""

    async def give() -> Result:
        return Result(value="given", context_variables={"a": 1})

    async def write(context_variables: Json) -> str:
        context_variables["b"] = context_variables["a"] + 1
        return "written"

    await rerun(path, Script(calls("give", "write"), says("Done")), Agent(functions=[give, write]))
    outcomes = [entry["_outcome"] for entry in entries_of(path) if "_outcome" in entry]
    assert outcomes == [{"context": {"a": 1}}, {"written": {"b": 2}}]


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1, 2}, r"cart is \{1, 2\}"),
        ({"pens": [1, (2,)]}, r"cart\['pens'\]\[1\] is \(2,\)"),
        ({1: 2}, "cart has the key 1, which is not a str"),
        (LOOP, "cart is nested too deeply, or contains itself"),
    ],
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


async def test_the_changes_of_a_result_must_be_json_too(path: Path) -> None:
    """The same holds for `Result.context_variables`, and for the context at the end of an item."""

    async def change() -> Result:
        return Result(context_variables={"when": object()})

    async def reach(context_variables: Mapping[str, Any]) -> str:
        context_variables["held"].append(object())
        return "reached"

    agent = Agent(functions=[change, reach])
    with pytest.raises(ConfigurationError, match="but when is"):
        await rerun(path, Script(calls("change")), agent)
    with pytest.raises(ConfigurationError, match=r"but held\[0\] is") as caught:
        await rerun(path.with_name("other"), Script(calls("reach"), says("Done")), agent, context={"held": []})
    assert caught.value.response is not None
    assert caught.value.response.text == "Done"


def asking_without_ids() -> Json:
    asked = calls("one", "one")
    for call in asked["tool_calls"]:
        del call["id"]
    return asked


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


async def test_a_recorded_completion_is_the_answer_of_the_provider(path: Path) -> None:
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
    for number, message in enumerate(messages):
        file, first, again = path.with_name(f"{number}.sqlite"), Script(message, dies()), Script(says("Done"))
        if message.get("tool_calls"):
            with pytest.raises(Died):
                await rerun(file, first, Agent())
            await rerun(file, again, Agent())
            assert again.asked[-1].body["messages"] == first.asked[-1].body["messages"]
        else:
            response = await rerun(file, first, Agent())
            assert await rerun(file, again, Agent()) == response


@pytest.mark.parametrize("answer", [{"object": "error"}, {"choices": [{"message": {}}]}])
async def test_an_answer_that_is_no_completion_is_not_recorded(path: Path, answer: Json) -> None:
    """The loop refuses it, and a rerun requests the completion again."""

    class Odd:
        async def complete(self, request: Any) -> AsyncGenerator[Json, None]:
            yield answer

    with pytest.raises(CompletionError):
        await rerun(path, Odd(), Agent())
    assert (await rerun(path, Script(says("Done")), Agent())).text == "Done"
