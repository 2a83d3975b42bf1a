"""What of a history is sent: which answer belongs to which call, and what is stripped or kept."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm._values.messages import (
    INTERRUPTED,
    call_name,
    match_answers,
    open_calls,
    to_wire,
)
from tests.support.values.histories import USER, Message, answer, asking, made_call

# --- pairing, case by case --------------------------------------------------------------------------------------------


def test_equal_ids_are_told_apart_by_name() -> None:
    """Of two calls with one id, each gets the tool message that carries its name, whatever the order."""
    first, second = answer("x", "of g", tool_name="g"), answer("x", "of f", tool_name="f")
    assert match_answers([made_call("x", "f"), made_call("x", "g")], [first, second]) == [second, first]


def test_equal_ids_without_names_are_told_apart_by_order() -> None:
    """Where tool messages carry no name, the first answers the first call."""
    first, second = answer("x", "1"), answer("x", "2")
    assert match_answers([made_call("x"), made_call("x", "g")], [first, second]) == [first, second]


def test_a_call_does_not_take_the_answer_of_its_namesake() -> None:
    """The only answer belongs to the call whose name it carries; the other call with that id is still open."""
    only = answer("x", tool_name="g")
    assert match_answers([made_call("x", "f"), made_call("x", "g")], [only]) == [None, only]


def test_resuming_runs_the_call_that_is_open_and_not_its_namesake() -> None:
    """With equal ids, a call that was answered is never open: it would be run a second time."""
    history = [USER, asking(made_call("x", "look"), made_call("x", "pay")), answer("x", "paid", tool_name="pay")]
    assert [call_name(call) for call in open_calls(history)] == ["look"]


def test_a_named_answer_is_kept_for_its_call_when_another_is_nameless() -> None:
    """A nameless answer goes to the call that no named answer fits."""
    nameless, named = answer("x", "of g"), answer("x", "of f", tool_name="f")
    assert match_answers([made_call("x", "f"), made_call("x", "g")], [nameless, named]) == [named, nameless]


def test_one_dict_given_twice_answers_two_calls() -> None:
    """A tool message that stands in the history twice, as one object, answers two calls of its id."""
    same = answer("x")
    assert match_answers([made_call("x"), made_call("x")], [same, same]) == [same, same]


def test_an_answer_under_another_name_still_answers() -> None:
    """The id is what the API looks at: a tool message of a renamed function answers its call."""
    renamed = answer("x", tool_name="old_name")
    assert match_answers([made_call("x", "new_name")], [renamed]) == [renamed]


# --- the wire ---------------------------------------------------------------------------------------------------------


def test_our_keys_and_nulls_are_stripped_and_the_providers_are_echoed() -> None:
    """`sender` and nulls go; reasoning and signatures, which DeepSeek and Gemini want back, stay."""
    signed = made_call(extra_content={"google": {"thought_signature": "s"}})
    message = asking(signed, sender="A", refusal=None, reasoning_content="Hm.")
    sent = to_wire([USER, message, answer(tool_name="f")])
    assert sent == [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [signed], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


def test_null_fields_of_a_call_are_stripped_too() -> None:
    """`index: null`, as Gemini-compatible servers send it, is not sent back to a server that knows no such thing."""
    sent = to_wire([asking(made_call(index=None)), answer()])
    assert sent[0]["tool_calls"] == [made_call()]


def test_text_beside_calls_is_kept() -> None:
    """An assistant message that says something and calls something sends both."""
    assert to_wire([{**asking(made_call()), "content": "Let me look."}, answer()])[0]["content"] == "Let me look."


@pytest.mark.parametrize("content", [None, "", []])
@pytest.mark.parametrize("empty", [None, ""])
def test_calls_without_text_have_the_content_that_the_server_wants(content: Any, empty: str | None) -> None:
    """Null by default, as OpenAI says; "" for servers that refuse null (llama-cpp-python, LM Studio)."""
    sent = to_wire([{**asking(made_call()), "content": content}, answer()], empty_content=empty)
    assert "content" in sent[0]
    assert sent[0]["content"] == empty


@pytest.mark.parametrize("arguments", ["", None, "  ", "\n"])
def test_empty_arguments_are_replayed_as_an_empty_object(arguments: str | None) -> None:
    """What is treated as `{}` when it is called is replayed as "{}": servers parse what is replayed."""
    sent = to_wire([asking(made_call(arguments=arguments)), answer()])
    assert sent[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "Par', '{"x": NaN}', '{"x": [-Infinity]}', "[]", "null", "5", '{"a": 1} and more', "[" * 5000],
)
def test_arguments_that_are_no_json_object_are_sent_as_an_empty_one(arguments: str) -> None:
    """vLLM, Ollama and llama.cpp refuse the whole history otherwise; the record keeps what came."""
    history = [asking(made_call(arguments=arguments)), answer()]
    sent = to_wire(history)
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert history[0]["tool_calls"][0]["function"]["arguments"] == arguments


def test_arguments_that_are_there_are_replayed_as_they_were() -> None:
    """Arguments go back as the model wrote them, with its white space."""
    sent = to_wire([asking(made_call(arguments='{"x" : 1}\n')), answer()])
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == '{"x" : 1}\n'


def test_a_call_of_another_type_is_sent_as_it_came() -> None:
    """A custom call has no function to fill in."""
    custom = {"id": "c1", "type": "custom", "custom": {"name": "grammar", "input": "x"}}
    assert to_wire([asking(custom), answer()])[0]["tool_calls"] == [custom]


@pytest.mark.parametrize("calls_of_message", [None, []])
def test_an_assistant_message_with_neither_text_nor_calls_is_not_sent(calls_of_message: list[Message] | None) -> None:
    """Mistral refuses it (OpenHands#8685)."""
    nothing = {"role": "assistant", "content": "", "tool_calls": calls_of_message, "sender": "A"}
    assert to_wire([USER, nothing]) == [USER]


@pytest.mark.parametrize("said", [{"refusal": "No."}, {"audio": {"id": "a"}}, {"function_call": {"name": "f"}}])
def test_an_assistant_message_with_other_substance_is_sent(said: Message) -> None:
    """A refusal, audio, or a deprecated function call is something."""
    message = {"role": "assistant", "content": None, **said}
    assert to_wire([message]) == [{"role": "assistant", **said}]


def test_an_empty_list_of_calls_is_not_replayed() -> None:
    """OpenAI refuses `tool_calls: []` (openai-node#1341)."""
    assert to_wire([{"role": "assistant", "content": "Hi", "tool_calls": []}]) == [
        {"role": "assistant", "content": "Hi"}
    ]


def test_an_open_call_before_other_messages_is_answered_as_interrupted() -> None:
    """An invalid history is never sent: the answer says that the call was not run."""
    sent = to_wire([asking(made_call("a"), made_call("b")), answer("b"), USER])
    assert sent[1:3] == [answer("a", INTERRUPTED), answer("b")]


def test_a_tool_message_whose_call_was_trimmed_away_is_not_sent() -> None:
    """Whether it stands first, after a user message, or after an answer without calls (semantic-kernel#12708)."""
    said = {"role": "assistant", "content": "Hi"}
    assert to_wire([answer(), USER, answer(), said, answer()]) == [USER, said]


def test_an_answer_is_found_only_directly_after_its_call() -> None:
    """Ids repeat across turns: the answer of the second turn is not that of the first."""
    turn = asking(made_call("x"))
    sent = to_wire([turn, answer("x", "one"), turn, answer("x", "two")])
    assert [m["content"] for m in sent if m["role"] == "tool"] == ["one", "two"]


def test_an_empty_history_sends_nothing() -> None:
    """No messages in, no messages out."""
    assert to_wire([]) == []
