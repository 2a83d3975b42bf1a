"""One conversation over three APIs, with edits between the requests: each request is valid, and valid thinking is kept.

A scripted Claude signs its thinking with the request before it, and refuses a block behind a changed prefix. It also checks each
body by the types of Anthropic's package. The bodies for OpenAI's APIs are checked by the types of openai's package.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from aswarm import Agent, File, Image
from aswarm._values.wire_messages import to_wire, without_items
from aswarm._wire.anthropic_blocks import THINKING, message_of
from aswarm._wire.anthropic_request import anthropic_request, betas_of
from aswarm._wire.request import CompletionRequest, RequestSettings, build_request
from aswarm._wire.responses_items import message_of as message_of_items
from tests.support.anthropic_rules import AnthropicRules, text, thinking, use
from tests.support.values.histories import Message, answer, asking, made_call
from tests.support.wire.response_bodies import TYPES_ARE_COMPLETE, check_body, read_to_end, said

_CHAT: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
_PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OLD, NEW, BINDING, STORY = "claude-sonnet-4-5", "claude-opus-4-8", "claude-opus-5-5", "claude-fable-5-1"
MODELS = (OLD, NEW, BINDING, STORY)
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "sky"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
CITED = {
    "type": "text",
    "text": "Blue.",
    "citations": [
        {
            "type": "web_search_result_location",
            "cited_text": "blue",
            "encrypted_index": "x",
            "title": "Sky",
            "url": "https://sky.example",
        }
    ],
}
ANSWERS: tuple[tuple[Any, ...], ...] = (
    (text("Hello."),),
    (thinking("Hm."), text("Hello.")),
    ({"type": "redacted_thinking", "data": ""}, text("Hello.")),
    (thinking("A tool."), use("f", x=1)),
    (thinking("Two."), text("Wait."), use("f", x=1), use("g", x=2)),
    (thinking("Search."), SEARCH, FOUND, text("The sky is "), CITED),
    (thinking("Cut."),),
)


def function(name: str) -> Message:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": _PARAMETERS}}


class Conversation:
    """A conversation that several providers continue. `history`: as it is recorded."""

    def __init__(self) -> None:
        self.history: list[Message] = [{"role": "user", "content": "Hi"}]
        self.instructions = "Be kind."
        self.tools = [function("f"), function("g")]
        self.server = AnthropicRules(lambda _: self._next)
        self._next: Any = ()
        self._calls = 0

    def request(self, model: str) -> CompletionRequest:
        more = {"thinking": {"type": "enabled", "budget_tokens": 2048}} if model == OLD else {}
        agent = Agent(model=model, model_settings=more)
        wire = to_wire(self.history)
        return build_request(agent, self.instructions, wire, self.tools, None, RequestSettings(stream=False))

    def claude(self, model: str, kind: int, is_claude_api: bool = False) -> dict[str, Any]:
        """Let Claude answer. Return the body of the request."""
        body, origin = anthropic_request(self.request(model), is_claude_api=is_claude_api)
        self._next = [self._numbered(block) for block in ANSWERS[kind]]
        reply = self.server.reply(copy.deepcopy(body), frozenset(betas_of(body)))
        assert reply.status.startswith("200"), self.server.refused[-1][1]
        blocks = json.loads(b"".join(reply.pieces))["content"]
        self._record(message_of(blocks, origin))
        return body

    def _numbered(self, block: dict[str, Any]) -> dict[str, Any]:
        if block["type"] != "tool_use":
            return block
        self._calls += 1
        return {**block, "id": f"toolu_{self._calls}"}

    def _record(self, message: Message) -> None:
        self.history.append({"content": None, **message, "sender": "A"})
        for call in message.get("tool_calls") or ():
            self.history.append(answer(call["id"], "result", tool_name="f"))

    # --- the other providers, and edits ---

    def responses(self) -> None:
        """Let a model of OpenAI answer over the Responses API."""
        body = self.request("gpt-6-sol").responses_body()
        check_body({**body, "input": [_as_made_by_model(item) for item in body["input"]]})
        reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "x"}
        call = {"type": "function_call", "id": "fc_1", "call_id": "call.1", "name": "f", "arguments": '{"x": 1}'}
        self._record(message_of_items([reasoning, call]))

    def chat(self) -> None:
        """Let a model of another provider answer over Chat Completions, with an id that it repeats."""
        body = self.request("gpt-4.1").chat_body()
        if TYPES_ARE_COMPLETE:
            assert read_to_end(_CHAT.validate_python(body)) == body
        self._record(asking(made_call("functions.f:0", "f", '{"x": 1'), made_call("functions.f:0", "g", "{}")))

    def user(self) -> None:
        parts = [
            Image(b"png").part,
            File(b"pdf", name="a.pdf").part,
            File(b"a,b", name="a.csv", media_type="text/csv").part,
        ]
        self.history.append(
            {"role": "user", "content": [{"type": "text", "text": "See."}, *parts, {"type": "text", "text": ""}]}
        )

    def developer(self) -> None:
        self.history.append({"role": "developer", "content": "Speak Spanish."})

    def hand_off(self) -> None:
        self.instructions = f"{self.instructions} Be brief."

    def load_tool(self) -> None:
        self.tools = [*self.tools, function(f"loaded_{len(self.tools)}")]

    def trim(self) -> None:
        at = next((at for at, message in enumerate(self.history) if message["role"] == "user" and at), 0)
        self.history = self.history[at:]

    def edit(self) -> None:
        """A user edits the first answer, as in a browser."""
        for message in self.history:
            if message["role"] == "assistant" and message["content"]:
                message["content"] += "!"
                break

    def redact(self) -> None:
        first = {**self.history[0], "content": "[redacted]"} if self.history[0]["role"] == "user" else self.history[0]
        self.history[:] = [*without_items([first, *self.history[1:2]]), *self.history[2:]]

    def copy(self) -> None:
        """A fork, through a database that sorts keys."""
        self.history = json.loads(json.dumps(self.history, sort_keys=True))


def _as_made_by_model(item: Any) -> Any:
    # The SDK's types allow a text of the assistant only in the form of `said`.
    return said(item["content"]) if item.get("role") == "assistant" and isinstance(item["content"], str) else item


def thinking_in(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for message in body["messages"] for block in message["content"] if block["type"] in THINKING]


EDITS = ("responses", "chat", "user", "developer", "hand_off", "load_tool", "trim", "edit", "redact", "copy")
steps = st.one_of(
    st.sampled_from(EDITS), st.tuples(st.sampled_from(MODELS), st.integers(0, len(ANSWERS) - 1), st.booleans())
)


@pytest.mark.slow
@given(st.lists(steps, min_size=1, max_size=8))
@example([(BINDING, 3, False), "responses", "user", (BINDING, 4, False), "chat", (BINDING, 1, False)])
@example([(STORY, 3, False), "hand_off", (STORY, 3, False), "hand_off", (STORY, 1, True)])
@example([(OLD, 3, False), "chat", (OLD, 3, False), (OLD, 1, False)])
@example([(BINDING, 3, False), "developer", (BINDING, 6, False), "user"])
@example([(BINDING, 4, False), "developer", (BINDING, 5, False), "trim", (BINDING, 1, False)])
def test_each_request_of_a_conversation_over_three_apis_is_valid(drawn: list[Any]) -> None:
    """No request is refused, also by a server that drops no blocks itself."""
    conversation = Conversation()
    for step in drawn:
        if isinstance(step, str):
            getattr(conversation, step)()
        else:
            conversation.claude(*step)
    for model in MODELS:
        conversation.claude(model, 0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "between", [Conversation.copy, Conversation.user, lambda _: None], ids=["fork", "user", "loop"]
)
def test_all_thinking_is_sent_back_while_nothing_before_it_changes(
    model: str, between: Callable[[Conversation], None]
) -> None:
    """In a loop of calls, in the next turn, and in a fork through a database that sorts keys."""
    conversation = Conversation()
    for kind in (3, 4, 5, 1):
        conversation.claude(model, kind)
        between(conversation)
    sent = thinking_in(conversation.claude(model, 0))
    assert [block["thinking"] for block in sent] == ["A tool.", "Two.", "Search.", "Hm."]
    assert all(block["signature"] for block in sent)


@pytest.mark.parametrize("change", ["hand_off", "load_tool", "trim", "edit", "redact"])
def test_a_change_drops_only_the_thinking_behind_it(change: str) -> None:
    """The newer model binds its thinking to all that is before it. What it thinks after the change stays valid."""
    conversation = Conversation()
    for kind in (1, 1, 3):
        conversation.user()
        conversation.claude(BINDING, kind)
    getattr(conversation, change)()
    before = thinking_in(conversation.claude(BINDING, 3))
    after = thinking_in(conversation.claude(BINDING, 1))
    assert before == []
    assert [block["thinking"] for block in after] == ["A tool."]


def test_an_older_model_gets_its_thinking_also_behind_a_change() -> None:
    """Only newer models check the prefix."""
    conversation = Conversation()
    conversation.claude(NEW, 1)
    conversation.hand_off()
    assert len(thinking_in(conversation.claude(NEW, 0))) == 1


def test_only_the_server_of_anthropic_is_asked_to_drop_blocks() -> None:
    """And only if there are blocks, for a model that binds them. The history of another program has no digests."""
    conversation = Conversation()
    assert "thinking" not in conversation.claude(BINDING, 1, is_claude_api=True)
    del conversation.history[-1]["anthropic_origin"]
    body = conversation.claude(BINDING, 1, is_claude_api=True)
    assert body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert "thinking" not in conversation.claude(BINDING, 1)


def test_a_request_that_is_repeated_without_thinking_is_remembered() -> None:
    """Thinking that the API has refused is not sent again, and thinking of the answer is."""
    conversation = Conversation()
    conversation.claude(BINDING, 1)
    conversation.user()
    body, origin = anthropic_request(conversation.request(BINDING), thinking=False)
    assert thinking_in(body) == []
    made = {"type": "thinking", "thinking": "Again.", "signature": "s"}
    conversation.history.append({**message_of([made, text("Yes.")], origin), "sender": "A"})
    conversation.user()
    body, _ = anthropic_request(conversation.request(BINDING))
    assert thinking_in(body) == [made]
