"""Answers of Claude that a reader of Chat Completions would read in another way."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm._wire.anthropic_events import AnthropicReader
from tests.support.anthropic_rules import Answer, AnthropicRules, text, thinking, use

Json = dict[str, Any]


def usage_of(begun: Json, ended: Json) -> Json:
    """The usage of a stream whose first and last event report these counts."""
    reader = AnthropicReader({})
    message = {"role": "assistant", "content": [], "usage": begun}
    for event in (
        {"type": "message_start", "message": message},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": ended},
        {"type": "message_stop"},
    ):
        reader.read(event)
    (last,) = reader.finish()
    usage: Json = last["usage"]
    return usage


@pytest.mark.parametrize(
    ("ended", "prompt", "cached"),
    [
        ({"output_tokens": 8}, 155, 55),
        ({"output_tokens": 8, "input_tokens": 0, "cache_read_input_tokens": 0}, 155, 55),
        ({"output_tokens": 8, "input_tokens": None, "cache_read_input_tokens": None}, 155, 55),
        ({"output_tokens": 8, "input_tokens": 181}, 236, 55),
        ({"output_tokens": 8, "input_tokens": 181, "cache_read_input_tokens": 0}, 181, 0),
        ({"output_tokens": 8, "input_tokens": 0, "cache_read_input_tokens": 60}, 60, 60),
    ],
)
def test_the_last_counts_of_a_prompt(ended: Json, prompt: int, cached: int) -> None:
    """If the last event counts the prompt, its counts are those of the answer, also a 0: a compaction on the server is counted
    separately. Otherwise the counts of the first event are."""
    usage = usage_of({"input_tokens": 100, "cache_read_input_tokens": 55, "output_tokens": 1}, ended)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, 8)
    assert usage["prompt_tokens_details"]["cached_tokens"] == cached


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("details", [None, {"category": "cyber", "explanation": "Blocked."}])
async def test_a_refusal_without_an_explanation(details: Json | None, stream: bool) -> None:
    """A refusal without an explanation gets a text; its finish reason is "content_filter", and its blocks are not kept."""
    answer = Answer("", stop_reason="refusal", extra={"stop_details": details})
    async with AsyncSwarm(AnthropicRules([answer]).client()).stream(
        Agent(model="claude-opus-5"), "Hi", deltas=stream
    ) as run:
        async for _ in run:
            pass
    message = run.response.messages[0]
    assert message["refusal"] == (details["explanation"] if details else "The model refused to answer.")
    assert "anthropic_output" not in message


async def test_a_text_after_another_block() -> None:
    """A text after another block starts a new paragraph; texts that follow each other are one, because citations divide a text."""
    blocks = [thinking("A"), text("One"), text(" two."), thinking("B"), text("Three."), use("look")]
    for stream in (False, True):
        swarm = AsyncSwarm(AnthropicRules([blocks]).client())
        async with swarm.stream(Agent(model="claude-opus-5"), "Hi", deltas=stream, execute_tools=False) as run:
            async for _ in run:
                pass
        message = run.response.messages[0]
        assert (message["content"], message["reasoning_content"]) == ("One two.\n\nThree.", "A\n\nB")
