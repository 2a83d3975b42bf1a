"""A request of Chat Completions, in the form of Claude's Messages API."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from aswarm import Agent, ConfigurationError, File, Image
from aswarm._values.wire_messages import to_wire
from aswarm._wire.anthropic_blocks import BLOCKS, message_of
from aswarm._wire.anthropic_request import anthropic_request, betas_of, continued, needs_stream
from aswarm._wire.request import CompletionRequest, RequestSettings, build_request, requiring
from aswarm._wire.responses_request import KnownHistory
from tests.support.anthropic_checks import fault
from tests.support.values.histories import USER, Message, answer, asking, made_call

OLD, NEW, BINDING, HAIKU = "claude-sonnet-4-5", "claude-opus-4-8", "claude-sonnet-5-5", "claude-haiku-5-5"
MARK = {"cache_control": {"type": "ephemeral"}}
STRICT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
LOOSE = {"type": "object", "properties": {"x": {}}}
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
ORIGIN = {"model": OLD}


def offered(name: str = "f", parameters: Mapping[str, Any] = LOOSE, **extra: Any) -> Message:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters, **extra}}


def said(text: str, **extra: Any) -> Message:
    return {"type": "text", "text": text, **extra}


def request_of(*messages: Message, model: str = OLD, tools: Any = (), **more: Any) -> CompletionRequest:
    system, choice = more.pop("system", None), more.pop("tool_choice", None)
    agent = Agent(model=model, model_settings=more)
    return build_request(
        agent, system, to_wire(list(messages or [USER])), [*tools], choice, RequestSettings(stream=False)
    )


def body_of(*messages: Message, **options: Any) -> dict[str, Any]:
    """The body for these messages; the server must accept it, and the request must stay."""
    request = request_of(*messages, **options)
    before = copy.deepcopy(request.body)
    body = anthropic_request(request)[0]
    assert request.body == before
    assert fault(body, frozenset(betas_of(body))) is None
    return body


def sent(*messages: Message, **options: Any) -> list[Any]:
    """The messages that are sent, without cache points."""
    return [*body_of(*messages, cache_control=False, **options)["messages"]]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "chat", "expected"),
    [
        (OLD, {}, {"max_tokens": 64_000}),
        (NEW, {}, {"max_tokens": 128_000}),
        ("claude-3-5-haiku-latest", {}, {"max_tokens": 8_192}),
        ("claude-3-haiku-20240307", {}, {"max_tokens": 4_096}),
        ("claude-quartz", {}, {"max_tokens": 128_000}),
        ("minimax-m3", {}, {"max_tokens": 8_192}),
        (OLD, {"max_completion_tokens": 9}, {"max_tokens": 9}),
        (OLD, {"stop": "a"}, {"stop_sequences": ["a"]}),
        (OLD, {"stop": ["a", "b"]}, {"stop_sequences": ["a", "b"]}),
        (OLD, {"user": "u"}, {"metadata": {"user_id": "u"}}),
        (OLD, {"metadata": {"user_id": "u"}}, {"metadata": {"user_id": "u"}}),
        (OLD, {"store": True, "seed": None, "n": 1, "top_p": 0.96}, {"top_p": 0.96}),
        (NEW, {"reasoning_effort": "low"}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
        (
            NEW,
            {"reasoning_effort": "minimal", "output_config": {"effort": "max"}},
            {"output_config": {"effort": "max"}},
        ),
        (NEW, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        (BINDING, {"reasoning_effort": "none"}, {"thinking": {"type": "between_tools"}}),
        ("claude-opus-5-5", {"reasoning_effort": "none"}, {"output_config": {"effort": "low"}}),
        (OLD, {"reasoning_effort": "high"}, {"thinking": {"type": "enabled", "budget_tokens": 16_384}}),
        ("claude-opus-4-5", {"reasoning_effort": "high"}, {"output_config": {"effort": "high"}}),
        (
            OLD,
            {"reasoning_effort": "high", "max_tokens": 4_096},
            {"thinking": {"type": "enabled", "budget_tokens": 2_048}},
        ),
        (OLD, {"reasoning_effort": "low", "max_tokens": 100}, {"max_tokens": 100}),
        ("claude-opus-4-1", {"reasoning_effort": "high"}, {"max_tokens": 8_192 + 16_384}),
    ],
)
def test_settings_have_the_names_of_the_messages_api(model: str, chat: Any, expected: dict[str, Any]) -> None:
    """Each setting with an effect is sent; those that only OpenAI has are not."""
    body = body_of(model=model, **chat)
    assert {key: body[key] for key in expected} == expected
    assert body.keys() <= {"model", "max_tokens", "messages", "stream", *expected, "thinking"}


@pytest.mark.parametrize("chat", [{"seed": 1}, {"logit_bias": {"1": 2}}, {"n": 2}])
def test_a_setting_without_a_counterpart_is_an_error(chat: Any) -> None:
    """Otherwise, the setting would have no effect, and the user would not know."""
    with pytest.raises(ConfigurationError, match=f"model_settings has '{next(iter(chat))}'.*set it to None"):
        body_of(**chat)


def test_a_limit_has_one_name() -> None:
    """Two limits contradict each other."""
    with pytest.raises(ConfigurationError, match="which are one setting"):
        body_of(max_tokens=1, max_completion_tokens=2)


def test_a_long_answer_is_streamed() -> None:
    """The client's time limit ends a longer request."""
    assert needs_stream(body_of())
    assert not needs_stream(body_of(max_tokens=9))
    assert needs_stream({**body_of(max_tokens=9), "stream": True})


def test_a_paused_answer_is_continued_from_its_blocks() -> None:
    """The blocks of the answer so far follow the messages."""
    body = body_of(max_tokens=9)
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    assert continued(body, [search])["messages"] == [*body["messages"], {"role": "assistant", "content": [search]}]


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, None),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"type": "tool", "name": "f"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"parallel_tool_calls": False, "tool_choice": "required"}, {"type": "any", "disable_parallel_tool_use": True}),
        ({"parallel_tool_calls": False, "tool_choice": "none"}, {"type": "none"}),
        ({"parallel_tool_calls": True, "model": HAIKU, "tool_choice": "required"}, {"type": "any"}),
    ],
)
def test_a_choice_has_the_form_of_the_messages_api(options: Any, expected: Any) -> None:
    """The default needs no field."""
    assert body_of(tools=[offered()], **options).get("tool_choice") == expected


@pytest.mark.parametrize(
    ("model", "more", "role"),
    [(BINDING, {}, "system"), (OLD, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "user")],
)
@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("required", "Call one of the tools now."),
        ({"type": "function", "function": {"name": "f"}}, "Call the tool f now."),
    ],
)
def test_a_model_that_refuses_a_forced_call_gets_a_sentence(
    model: str, more: Any, role: str, choice: Any, sentence: str
) -> None:
    """New models refuse it, and older models while they think with a budget."""
    body = body_of(model=model, tools=[offered()], tool_choice=choice, **more)
    assert "tool_choice" not in body
    assert body["messages"][-1]["role"] == role
    assert sentence in body["messages"][-1]["content"][-1]["text"]


def test_a_typed_answer_is_forced_without_a_change_of_the_tools() -> None:
    """Other tools would invalidate the prompt cache and the thinking."""
    request = requiring(request_of(tools=[offered(), offered("final_answer")]), "final_answer")
    body, _ = anthropic_request(request)
    assert [tool["name"] for tool in body["tools"]] == ["f", "final_answer"]
    assert body["tool_choice"] == {"type": "tool", "name": "final_answer"}


def test_a_choice_of_some_tools_sends_only_these() -> None:
    """The API has no such choice."""
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    body = body_of(tools=[offered(), offered("g")], tool_choice=choice)
    assert [tool["name"] for tool in body["tools"]] == ["g"]
    assert body["tool_choice"] == {"type": "any"}


def test_tools_of_the_server_pass_through() -> None:
    """And a custom tool of OpenAI does not exist."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert body_of(tools=[search], cache_control=False)["tools"] == [search]
    with pytest.raises(ConfigurationError, match="custom tool of OpenAI"):
        body_of(tools=[{"type": "custom", "custom": {"name": "c"}}])


def test_parameters_are_an_object_at_the_top() -> None:
    """The API refuses a union there, which some MCP servers send; the server checks the arguments itself."""
    tools = [offered(parameters={"anyOf": [LOOSE], "properties": {}}), offered("g", {}), offered("h", description="")]
    first, second, third = body_of(tools=tools, cache_control=False)["tools"]
    assert first["input_schema"] == {"type": "object", "properties": {}}
    assert second == {"name": "g", "description": "d", "input_schema": {"type": "object", "properties": {}}}
    assert "description" not in third


def test_strict_tools_are_strict_where_the_model_has_them() -> None:
    """A schema that the API cannot compile is sent without `strict`, and so are too many schemas."""

    def strict_of(count: int = 1, parameters: Mapping[str, Any] = STRICT, model: str = OLD) -> list[bool]:
        tools = [offered(f"f{number}", parameters, strict=True) for number in range(count)]
        return [tool.get("strict", False) for tool in body_of(tools=tools, model=model)["tools"]]

    assert strict_of(20) == [True] * 20
    assert strict_of(21) == [False] * 21
    assert strict_of(parameters=LOOSE) == [False]
    assert strict_of(model="claude-sonnet-4-0") == [False]


# --- the format of the answer -----------------------------------------------------------------------------------------


def format_of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": False}}


def test_a_schema_is_the_output_format_also_beside_tools() -> None:
    """The API has both in one request. Many strict tools lose their schemas, and the answer keeps its own."""
    tools = [offered(f"f{number}", STRICT, strict=True) for number in range(21)]
    for offers in ((), tools[:1], tools):
        body = body_of(response_format=format_of(STRICT), tools=offers)
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": STRICT}}


@pytest.mark.parametrize(("model", "schema"), [(OLD, LOOSE), ("claude-sonnet-4-0", STRICT)])
def test_a_schema_that_the_api_cannot_express_is_in_the_system_prompt(model: str, schema: Any) -> None:
    """Or one for a model without formats."""
    body = body_of(response_format=format_of(schema), system="Be kind.", model=model)
    assert "output_config" not in body
    assert [block["text"][:30] for block in body["system"]] == ["Be kind.", "Write your final answer as JSO"]


def test_a_json_object_needs_no_format() -> None:
    """The instructions ask for JSON already, because OpenAI's API demands it."""
    assert "output_config" not in body_of(response_format={"type": "json_object"})


# --- messages ---------------------------------------------------------------------------------------------------------


def test_the_results_and_the_text_of_the_user_are_one_message() -> None:
    """The results are first, in the order of the calls. Ids of other providers get an accepted form."""
    calls = asking(made_call("a.1", "f", '{"x": 1}'), made_call("a.1", "g", "{cut"))
    history = [USER, calls, answer("a.1", "one"), answer("a.1", ""), {"role": "user", "content": "Go on."}]
    _, asked, results = sent(*history)
    assert asked["content"] == [
        {"type": "tool_use", "id": "a_1_1", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "a_1_2", "name": "g", "input": {}},
    ]
    assert results["content"] == [
        {"type": "tool_result", "tool_use_id": "a_1_1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "a_1_2"},
        said("Go on."),
    ]
    late = [USER, asking(made_call("a"), made_call("b")), answer("b"), answer("a")]
    assert [result["tool_use_id"] for result in sent(*late)[2]["content"]] == ["a", "b"]


def test_the_ids_of_all_calls_are_different() -> None:
    """Some servers repeat them in each answer. A replayed block keeps its id, so the later message loses its blocks."""
    plain, signed = (
        asking(made_call("t1")),
        message_of([SIGNED, {"type": "tool_use", "id": "t1", "name": "f", "input": {}}], ORIGIN),
    )
    turns = sent(USER, plain, answer("t1"), {**signed, "sender": "A"}, answer("t1"))
    assert [turn["content"][-1].get("id") or turn["content"][-1].get("tool_use_id") for turn in turns[1:]] == [
        "t1", "t1", "t1_2", "t1_2",
    ]  # fmt: skip
    assert anthropic_request(CompletionRequest(Agent(), {"model": OLD, "messages": [answer("no.call")]}))[0][
        "messages"
    ] == [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "no_call_1", "content": "done", **MARK}]}]


@pytest.mark.parametrize(
    ("model", "role", "text"), [(NEW, "system", "Hola."), (HAIKU, "user", "<system>\nHola.\n</system>")]
)
def test_a_late_developer_message_keeps_its_role_where_the_model_has_it(model: str, role: str, text: str) -> None:
    """It follows the turn of the user, because the API refuses it elsewhere."""
    late = {"role": "developer", "content": [said("Hola."), said(" ")]}
    turns = sent(
        USER, late, {"role": "user", "content": "Hi again"}, {"role": "assistant", "content": "Yes"}, late, model=model
    )
    assert (turns[0]["role"], turns[1 if role == "system" else 0]["content"][-1]) == ("user", said(text))
    assert turns[-1] == {"role": "user", "content": [said("<system>\nHola.\n</system>")]}


def test_the_first_instructions_are_the_system_prompt() -> None:
    """All of them, without the empty ones; media of a later developer message are media of the user."""
    first = [{"role": "developer", "content": "One."}, {"role": "system", "content": ""}]
    late = {"role": "developer", "content": [Image(b"p").part, said("See.")]}
    body = body_of(*first, USER, late, system="Zero.", model=NEW, cache_control=False)
    assert body["system"] == [said("Zero."), said("One.")]
    assert [block["type"] for block in body["messages"][0]["content"]] == ["text", "image"]


@pytest.mark.parametrize("model", [OLD, NEW])
def test_a_history_that_ends_with_an_answer(model: str) -> None:
    """An older model continues the text. A newer one gets a turn of the user, also between two answers."""
    history = [USER, {"role": "assistant", "content": "One"}, {"role": "assistant", "content": "Two \n"}]
    go_on = {"role": "user", "content": [said("Continue.")]}
    one, two = ({"role": "assistant", "content": [said(text)]} for text in ("One", "Two" if model == OLD else "Two \n"))
    assert sent(*history, model=model)[1:] == ([one, two] if model == OLD else [one, go_on, two, go_on])
    assert sent(*history, model=OLD, reasoning_effort="low")[-1] == go_on


def test_an_answer_with_nothing_to_send_leaves_no_gap() -> None:
    """Such as cut thinking. The messages around it are one turn, so that a system message is not before one of the user."""
    cut = {**message_of([SIGNED], {"model": "claude-opus-5-5"}), "sender": "A"}
    late = {"role": "developer", "content": "Hola."}
    turns = sent(
        USER, asking(made_call()), answer(), late, cut, {"role": "user", "content": "Go on."}, model="claude-opus-5-5"
    )
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "system"]
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result", "text"]


def test_a_history_without_messages_gets_a_turn_of_the_user() -> None:
    """The API refuses an empty history, and messages without content."""
    request = build_request(
        Agent(model=OLD), "Begin.", [{"role": "user", "content": " "}], [], None, RequestSettings(False)
    )
    assert anthropic_request(request)[0]["messages"][0]["content"] == [said("Continue.", **MARK)]


def test_answers_of_other_providers_are_text_and_calls() -> None:
    """Refusals and transcripts are text, a custom call has its input, and unknown roles are an error."""
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    spoken = {"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "Hear."}}
    custom = asking({"id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}})
    empty = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "responses_output": [{"type": "reasoning"}],
    }
    turns = sent(USER, refused, spoken, empty, custom, answer("c"))
    used = {"type": "tool_use", "id": "c", "name": "sql", "input": {"input": "SELECT"}}
    assert [turn["content"] for turn in turns if turn["role"] == "assistant"] == [
        [said("No.")],
        [said("Hear.")],
        [used],
    ]
    with pytest.raises(ConfigurationError, match="the role 'function'"):
        body_of(USER, {"role": "function", "name": "f", "content": "x"})


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (Image(b"p").part, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cA=="}}),
        (
            Image("data:image/jpg;base64,cA==").part,
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "cA=="}},
        ),
        (Image("https://a.b/c").part, {"type": "image", "source": {"type": "url", "url": "https://a.b/c"}}),
        (
            File(b"p", name="a.pdf").part,
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "cA=="},
                "title": "a.pdf",
            },
        ),
        (
            {**File(b"{}", name="", media_type="application/json").part, "citations": {"enabled": True}},
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "{}"},
                "citations": {"enabled": True},
            },
        ),
        (
            {"type": "input_file", "file_url": "https://a.b/c.pdf"},
            {"type": "document", "source": {"type": "url", "url": "https://a.b/c.pdf"}},
        ),
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
        ),
    ],
)
def test_a_part_becomes_a_block(part: Any, block: Any) -> None:
    """In a message of the user, and in the result of a call."""
    assert sent({"role": "user", "content": [part]}) == [{"role": "user", "content": [block]}]
    results = sent(USER, asking(made_call()), {**answer(), "content": [part, said("")]})[-1]["content"]
    assert results == [{"type": "tool_result", "tool_use_id": "c1", "content": [block]}]


def test_a_file_of_the_server_is_named_by_its_id() -> None:
    """The Files API is a beta, so the types of the package have it only there."""
    part = {"type": "file", "file": {"file_id": "file_1"}}
    (turn,) = sent({"role": "user", "content": [part]})
    assert turn["content"] == [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "input_audio", "input_audio": {}}, "that the Messages API does not have: .*input_audio"),
        ("text", "that the Messages API does not have: 'text'"),
        ({"type": "text", "text": 1}, "its text must be a str"),
        ({"type": "image_url", "image_url": {"url": "gs://a"}}, "an address that starts with"),
        ({"type": "file", "file": {}}, "file_url"),
        (File(b"z", name="a.zip", media_type="application/zip").part, "not 'application/zip'"),
    ],
)
def test_a_part_that_the_api_does_not_have_is_an_error(part: Any, text: str) -> None:
    """The error names the part."""
    with pytest.raises(ConfigurationError, match=text):
        body_of({"role": "user", "content": [part]})


# --- cache points and reuse -------------------------------------------------------------------------------------------


def test_cache_points_are_at_the_end_of_the_tools_the_system_prompt_and_the_history() -> None:
    """The user's setting is their value, `False` removes them, and own cache points replace them."""
    options: Any = {"tools": [offered(), offered("g")], "system": "Be kind."}
    assert _marks(body_of(**options)) == [MARK["cache_control"]] * 3
    hour = {"type": "ephemeral", "ttl": "1h"}
    assert _marks(body_of(cache_control=hour, **options)) == [hour] * 3
    assert _marks(body_of(cache_control=False, **options)) == []
    assert _marks(body_of({"role": "user", "content": [said("Hi", **MARK), said("you")]}, **options)) == [
        MARK["cache_control"]
    ]
    assert _marks(body_of(USER, {"role": "assistant", "content": "I"})) == []


def test_a_deferred_tool_gets_no_cache_point() -> None:
    """The API refuses it, and the tools that are loaded are in front of the deferred ones."""
    late = {**offered("g"), "defer_loading": True}
    tools = body_of(tools=[late, offered()])["tools"]
    assert [(tool["name"], "cache_control" in tool) for tool in tools] == [("f", True), ("g", False)]


def _marks(body: Mapping[str, Any]) -> list[Any]:
    blocks = [*body.get("tools", ()), *body.get("system", ()), *(b for m in body["messages"] for b in m["content"])]
    return [block["cache_control"] for block in blocks if "cache_control" in block]


def test_a_run_reuses_the_messages_of_its_earlier_request() -> None:
    """The result is the same as without the reuse. Other instructions or another model start anew."""
    known = KnownHistory(is_chat=True)
    wire = to_wire([USER, asking(made_call()), answer(), {"role": "assistant", "content": "One"}, USER])

    def made(count: int, **changed: Any) -> Any:
        body = {"model": NEW, "messages": wire[:count], **changed}
        fresh = anthropic_request(CompletionRequest(Agent(), body))
        assert anthropic_request(CompletionRequest(Agent(), body, _known=known)) == fresh
        return fresh[0]["messages"]

    made(3)
    assert known.turns is not None
    first = known.turns.sent
    made(5)
    assert known.turns.sent[0] is first[0]
    made(5, model=OLD)
    assert made(2)[-1]["role"] == "user"
    made(5, tools=[offered()])


def test_blocks_of_a_browser_are_used_only_if_they_make_the_message() -> None:
    """Other blocks, and blocks of other types, are not sent."""
    ids: list[Any] = [{"type": "web_search_tool_result", "tool_use_id": ["x"]}, {"type": "server_tool_use", "id": {}}]
    wrong: tuple[Any, ...] = (
        [said("Evil.")],
        [{"type": "tool_result", "tool_use_id": "x"}],
        "text",
        [1],
        [{"type": "text"}],
        [],
    )
    for blocks in (*wrong, *([said("Good."), each] for each in ids)):
        message = {"role": "assistant", "content": "Good.", "sender": "A", BLOCKS: blocks}
        assert sent(USER, message, USER)[1]["content"] == [said("Good.")]
