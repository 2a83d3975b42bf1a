"""Properties of every run with an output type, for any type and any answers of the model."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, Output, OutputError, Response
from aswarm.middleware import CompletionRequest
from aswarm.testing import ScriptedCall, ScriptedModel, check_history


class Trip(BaseModel):
    city: str


class Hotel(BaseModel):
    stars: int


async def look() -> str:
    return "seen"


def accept(answer: Any) -> None:
    """Read the answer, and accept it."""
    repr(answer)


KINDS = st.sampled_from([Trip, Hotel, Trip | Hotel, Trip | str, int, list[int], dict[str, int], bool | None, str])
JSON_TEXTS = st.sampled_from(
    [
        json.dumps(value)
        for value in ({"city": "Rome"}, {"stars": 3}, {"value": 7}, {"value": [1]}, {"a": 1}, [1], 7, None)
    ]
)
TEXTS = JSON_TEXTS | st.sampled_from(["", "Rome", "```json\n7\n```", '{"city": '])
CALLS = st.one_of(
    JSON_TEXTS.map(lambda text: ("final_answer", text)),
    st.sampled_from([("look", "{}"), ("transfer_to_other", "{}"), ("nothing", "{}"), ("final_answer", "{")]),
)
STEPS = st.lists(TEXTS | st.lists(CALLS, min_size=1, max_size=3), max_size=6)
OUTPUTS = st.builds(
    Output,
    KINDS,
    mode=st.sampled_from(["auto", "tool", "prompt"]),
    retries=st.integers(0, 2),
    check=st.sampled_from([None, accept]),
)


def as_step(drawn: Any, number: int) -> Any:
    if isinstance(drawn, str):
        return drawn
    return [ScriptedCall(name, text, f"c{number}_{index}") for index, (name, text) in enumerate(drawn)]


@given(
    output=OUTPUTS,
    own=KINDS | st.none(),
    steps=STEPS,
    has_functions=st.booleans(),
    way=st.sampled_from(["run", "agent"]),
)
def test_every_run_with_a_type(output: Any, own: Any, steps: list[Any], has_functions: bool, way: str) -> None:
    """The attempts are bounded, each exit leaves a valid history, and `output` is an answer of the type or an error."""
    model = ScriptedModel([*(as_step(step, number) for number, step in enumerate(steps)), *["no"] * 9])
    other = Agent(name="Other", output=own)
    functions = [look, other] if has_functions else []
    agent = Agent(name="A", functions=functions, output=output if way == "agent" else None)
    response, error = anyio.run(ended, AsyncSwarm(model.client()), agent, output if way == "run" else None)
    for request in model.requests:
        assert not (request.tool_names and "response_format" in request.body)
    check_history([{"role": "user", "content": "Go"}, *response.messages])
    assert json.loads(json.dumps(response.messages)) == response.messages
    if way == "run":
        assert asked_again(response) <= output.retries
        assert asked_again(response) == output.retries or error is None
    if error is None and response.stop == "answer" and way == "run":
        assert Response[output.type](messages=response.messages).output == response.output
    elif error is not None:
        with pytest.raises(OutputError):
            _ = response.output


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Written:
    """A source that sends a text one character at a time."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        for character in self.text:
            yield {"choices": [{"index": 0, "delta": {"content": character}, "finish_reason": None}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@given(value=st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=4), fence=st.booleans(), ascii=st.booleans())
def test_a_partial_answer_never_goes_back(value: dict[str, Any], fence: bool, ascii: bool) -> None:
    """Each partial value is a prefix of the next one, and the last value is the answer."""
    text = json.dumps(value, ensure_ascii=ascii)
    source = Written(f"```json\n{text}\n```" if fence else text)
    seen: list[Any] = []

    async def main() -> Any:
        output = Output(dict[str, Any], mode="prompt")
        async with AsyncSwarm(source).stream(Agent(), "Go", output=output) as run:
            async for _ in run:
                seen.append(run.partial_output)  # noqa: PERF401 - read between two events
        return run.response.output

    answer = anyio.run(main)
    assert answer == seen[-1] == value
    for earlier, later in pairwise(seen):
        assert is_prefix(earlier, later), (earlier, later)


def is_prefix(earlier: Any, later: Any) -> bool:
    """Return whether a longer text can turn the earlier value into the later one."""
    match earlier, later:
        case None, _:
            return True
        case str(), str():
            return later.startswith(earlier)
        case list(), list():
            return len(earlier) <= len(later) and all(map(is_prefix, earlier, later))
        case dict(), dict():
            return all(key in later and is_prefix(each, later[key]) for key, each in earlier.items())
        case _:
            return bool(earlier == later)


def asked_again(response: Response) -> int:
    """Return how many wrong answers were followed by another attempt."""
    faults = 0
    blocks: list[list[Any]] = []
    for message in response.messages:
        if message["role"] == "assistant":
            blocks.append([])
        elif message["role"] == "user":
            faults += 1
        else:
            blocks[-1].append(message)
    for block in blocks:
        told = [message["content"] for message in block if message["tool_name"] == "final_answer"]
        handed_off = any('"assistant"' in message["content"] for message in block)
        if (
            any(text.startswith("Error: ") and "not found" not in text for text in told)
            and "accepted" not in told
            and not handed_off
        ):
            faults += 1
    # The last fault of a run that ends with an error is not answered by another attempt.
    ends_with_call = bool(blocks and blocks[-1] and response.messages[-1]["role"] == "tool")
    return faults - (1 if response.stop == "error" and ends_with_call else 0)


async def ended(swarm: AsyncSwarm, agent: Agent, output: Any) -> tuple[Response, OutputError | None]:
    try:
        return await swarm.run(agent, "Go", output=output, max_turns=12), None
    except OutputError as error:
        return error.response or Response(), error
