"""Messages of a caller, and the open calls at their end."""

from __future__ import annotations

import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from aswarm import ConfigurationError
from aswarm._values.messages import ROLES, are_plain, call_name, normalize, text_of, unanswered_calls
from aswarm._values.wire_messages import to_wire, wire_blocks
from tests.support.values.histories import USER, Message, answer, asking, made_call

# --- open calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], []),
        ([USER], []),
        ([answer()], []),
        ([asking(made_call("a"))], ["a"]),
        ([USER, asking(made_call("a"), made_call("b"), made_call("c")), answer("b")], ["a", "c"]),
        ([asking(made_call("a")), answer("a")], []),
        ([asking(made_call("a")), USER], []),
        ([asking(made_call("a")), USER, answer("a")], []),
        ([asking(made_call("a")), answer("other")], ["a"]),
        ([asking(made_call("a")), answer("a"), asking(made_call("a"))], ["a"]),
        ([{"role": "assistant", "content": "Hi", "tool_calls": None}], []),
    ],
)
def test_open_calls_are_those_at_the_very_end(history: list[Message], expected: list[str]) -> None:
    """Only a call of the last assistant message, followed by nothing but tool messages, can be open."""
    assert [call["id"] for call in unanswered_calls(history)] == expected


# --- messages of a caller ---


RAW = {"role": "assistant", "content": "Hi", "tool_calls": [made_call()], "reasoning_content": "Hm."}
CUSTOM = asking({"id": "c1", "type": "custom", "custom": {"name": "grammar", "input": "x"}})


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("Hi", [USER]),
        ([types.MappingProxyType(USER)], [USER]),
        ([ChatCompletionMessage.model_validate(RAW)], [RAW]),  # without the nulls of the SDK
        ([CUSTOM], [CUSTOM]),  # the name of a call of another type is elsewhere
        *(([{"role": role, "content": "x", "tool_call_id": "c"}],) * 2 for role in ROLES),
    ],
)
def test_a_message_is_a_dict_afterwards(messages: Any, expected: list[Message]) -> None:
    """A str, any mapping, an object of the SDK, and each role of the API."""
    found = normalize(messages)
    assert found == expected
    assert all(type(message) is dict for message in found)


@pytest.mark.parametrize("container", [list, tuple])
def test_messages_come_as_a_new_list_of_the_same_dicts(container: type) -> None:
    """The list is the run's own; dicts are taken as they are, with every key."""
    message = {"role": "user", "content": "Hi", "name": "Ada", "extra": 1}
    given_messages = container([message])
    messages = normalize(given_messages)
    assert messages == [message]
    assert messages is not given_messages


def test_sdk_calls_inside_a_dict_become_dicts() -> None:
    """`dict(message)` of an SDK object holds call objects; they are dumped as well, and the dict is not changed."""
    sdk_message = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [made_call()]}
    )
    message = {"role": "assistant", "content": None, "tool_calls": sdk_message.tool_calls}
    assert normalize([message]) == [asking(made_call())]
    assert message["tool_calls"] is sdk_message.tool_calls


@pytest.mark.parametrize(
    ("messages", "place", "fault"),
    [
        (None, "messages", "NoneType"),
        (5, "messages", "int"),
        ({"role": "user", "content": "Hi"}, "messages", "dict"),
        (iter([USER]), "messages", "iterator"),
        (b"Hi", "messages", "bytes"),
        ([USER, "Hi"], "messages[1]", "'Hi'"),
        ([USER, None], "messages[1]", "None"),
        ([object()], "messages[0]", "object"),
        ([{}], "messages[0]", "None"),
        ([{"content": "Hi"}], "messages[0]", "role"),
        ([{"role": "user", "text": "Hi"}], "messages[0] has no content", "user"),
        ([{"role": "bot", "content": "Hi"}], "messages[0]", "'bot'"),
        ([{"role": ["user"], "content": "Hi"}], "messages[0]", "['user']"),
        ([{"role": "user", "content": 5}], "messages[0]", "5"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0]", "'text'"),
        ([{"role": "user", "content": ["Hi"]}], "messages[0]", "'Hi'"),
        ([{"role": "tool", "content": "x"}], "messages[0]", "tool_call_id"),
        ([{"role": "tool", "tool_call_id": None, "content": "x"}], "messages[0]", "tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [made_call()]}], "messages[0]", "'user'"),
        ([asking(), {**asking(), "tool_calls": {"id": "c"}}], "messages[1]", "'c'"),
        ([asking(made_call(), {"type": "function"})], "messages[0].tool_calls[1]", "id"),
        ([{**asking(), "tool_calls": ["c1"]}], "messages[0].tool_calls[0]", "'c1'"),
        ([{**asking(), "tool_calls": [made_call(None)]}], "messages[0].tool_calls[0]", "id"),  # type: ignore[arg-type]
        ([asking({"id": "c1", "type": "function"})], "messages[0].tool_calls[0]", "function name"),
        ([asking({"id": "c1", "function": {"arguments": "{}"}})], "messages[0].tool_calls[0]", "function name"),
        ([asking({"id": "c1", "function": {"name": None}})], "messages[0].tool_calls[0]", "function name"),
    ],
)
def test_what_is_no_message_is_the_callers_mistake(messages: object, place: str, fault: str) -> None:
    """A ConfigurationError names the position and shows the fault."""
    with pytest.raises(ConfigurationError) as caught:
        normalize(messages)
    assert str(caught.value).startswith(place)
    assert fault in str(caught.value)


# --- small words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hi", "Hi"),
        ("", ""),
        (None, ""),
        (5, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": None}, {"text": "b"}], "ab"),
        (({"type": "text", "text": "a"},), "a"),
        (["loose", {"text": "a"}], "a"),
    ],
)
def test_text_of_content(content: object, text: str) -> None:
    """The text of a content is its str, or its text parts joined; what is no text adds nothing."""
    assert text_of(content) == text


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (made_call(name="f"), "f"),
        ({"id": "c", "type": "custom", "custom": {"name": "grammar"}}, "grammar"),
        ({"id": "c"}, ""),
        ({"id": "c", "function": None, "custom": None}, ""),
        ({"id": "c", "function": {"name": None}}, ""),
    ],
)
def test_the_name_of_a_call(call: Message, name: str) -> None:
    """A call of any type has its name; one without a name has the empty one."""
    assert call_name(call) == name


# --- the fast paths of long histories ---------------------------------------------------------------------------------

texts = st.sampled_from(["", "a", "NaN"])
plain = st.fixed_dictionaries({"role": st.sampled_from([role for role in ROLES if role != "tool"]), "content": texts})
recorded = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": texts | st.none(), "sender": st.just("a")},
    optional={"tool_calls": st.none() | st.just([made_call("a")]), "refusal": st.just("no")},
)
answers = st.fixed_dictionaries(
    {"role": st.just("tool"), "tool_call_id": st.just("a"), "content": texts}, optional={"tool_name": st.just("f")}
)


@given(st.lists(st.sampled_from(["user", "assistant", "system", "developer"]), min_size=1), st.text(min_size=1))
def test_plain_messages_are_valid_and_sent_unchanged(roles: list[str], text: str) -> None:
    messages = [{"role": role, "content": text} for role in roles]
    assert are_plain(messages)
    assert normalize(messages) == messages == to_wire(messages)


@pytest.mark.parametrize(
    "odd",
    [
        {"role": "user"},
        {"role": "user", "text": "a"},
        {"role": "user", "content": ""},
        {"role": "user", "content": ["a"]},
        {"role": ["user"], "content": "a"},
        {"role": "tool", "content": "a"},
        {"role": "robot", "content": "a"},
        {"role": "assistant", "content": "a", "sender": "a"},
        types.MappingProxyType({"role": "user", "content": "a"}),
        "a",
        None,
    ],
)
def test_a_history_with_another_message_is_not_plain(odd: object) -> None:
    assert not are_plain([USER, odd])
    assert not are_plain(odd)
    assert not are_plain([])


@given(st.lists(plain | recorded | answers, max_size=5))
def test_a_message_of_an_earlier_run_is_sent_as_by_the_general_rule(history: list[Message]) -> None:
    """Its fast path leaves out the same keys."""
    assert to_wire(history) == [*wire_blocks(history, None)]
