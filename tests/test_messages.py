"""The rules of histories: what counts as a message, which calls are open, what of a history is sent.

The property tests draw histories that no sane client would keep: calls with equal ids, tool messages without a call,
calls without an answer, nulls and keys of ours anywhere. Whatever goes in, only a valid history comes out.
"""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from aswarm import ConfigurationError
from aswarm._context import copy_containers
from aswarm._messages import (
    INTERRUPTED,
    ROLES,
    as_plain,
    blocks,
    call_name,
    normalize,
    open_calls,
    pair,
    text_of,
    tool_message,
    wire,
)
from aswarm.testing import check_history

Message = dict[str, Any]


def made_call(call_id: str = "c1", name: str = "f", arguments: Any = "{}", **extra: Any) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **extra}


def asking(*calls: Message, **extra: Any) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **extra}


def answer(call_id: str = "c1", content: str = "done", **extra: Any) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **extra}


USER: Message = {"role": "user", "content": "Hi"}

# --- drawn histories --------------------------------------------------------------------------------------------------

ids = st.sampled_from(["", "a", "b", "call_1"])
names = st.sampled_from(["f", "g"])
contents = st.sampled_from([None, "", "text", [], [{"type": "text", "text": "part"}]])
own_keys = st.fixed_dictionaries(
    {},
    optional={
        "sender": st.sampled_from([None, "Agent A"]),
        "tool_name": st.sampled_from([None, "f"]),
        "name": st.none(),
        "refusal": st.sampled_from([None, "", "No."]),
        "function_call": st.none(),
        "reasoning_content": st.sampled_from([None, "Hm."]),
    },
)
calls = st.builds(made_call, ids, names, st.sampled_from(["", "{}", '{"x": 1}', "{cut"]))
plain_messages = st.builds(
    lambda role, content, extra: {"role": role, "content": content, **extra},
    st.sampled_from([role for role in ROLES if role not in ("tool", "assistant")]),
    contents,
    own_keys,
)
assistant_messages = st.builds(
    lambda content, made, extra: {"role": "assistant", "content": content, "tool_calls": made, **extra},
    contents,
    st.one_of(st.none(), st.lists(calls, max_size=4)),
    own_keys,
)
tool_messages = st.builds(
    lambda call_id, extra: {"role": "tool", "tool_call_id": call_id, "content": "done", **extra},
    ids,
    st.fixed_dictionaries({}, optional={"tool_name": names}),
)
histories = st.lists(st.one_of(plain_messages, assistant_messages, tool_messages), max_size=10)


@given(histories)
def test_whatever_goes_in_a_valid_history_goes_out(messages: list[Message]) -> None:
    """Every call on the wire is answered exactly once and in call order, and no tool message is without its call."""
    check_history(wire(messages))


@given(histories)
def test_the_wire_form_of_a_wire_form_is_itself(messages: list[Message]) -> None:
    """What may be sent is not changed by being cleaned again."""
    sent = wire(messages)
    assert wire(sent) == sent


@given(histories, st.sampled_from([None, ""]))
def test_neither_our_keys_nor_nulls_are_sent(messages: list[Message], empty: str | None) -> None:
    """Only the content of an assistant message with calls may be null; no key of ours, no empty list of calls."""
    for message in wire(messages, empty_content=empty):
        assert not {"sender", "tool_name"} & message.keys()
        nulls = {key for key, value in message.items() if value is None}
        assert nulls <= ({"content"} if message.get("tool_calls") and empty is None else set())
        assert message.get("tool_calls") != []


@given(histories)
def test_the_input_is_never_changed(messages: list[Message]) -> None:
    """Cleaning, normalizing and looking for open calls leave what they were given as it was."""
    before = copy.deepcopy(messages)
    wire(messages)
    normalize(messages)
    open_calls(messages)
    list(blocks(messages))
    assert messages == before


@given(histories)
def test_what_people_said_is_all_sent_in_order(messages: list[Message]) -> None:
    """System, developer, user and function messages all reach the wire, in their order, with their content."""
    others = [m for m in messages if m["role"] not in ("assistant", "tool")]
    sent = [m for m in wire(messages) if m["role"] not in ("assistant", "tool")]
    assert [(m["role"], m["content"]) for m in others] == [(m["role"], m.get("content")) for m in sent]


@given(histories)
def test_every_call_is_sent_once(messages: list[Message]) -> None:
    """The calls on the wire are the calls of the history, in order: none is lost, none is doubled."""
    asked = [(c["id"], call_name(c)) for m in messages for c in m.get("tool_calls") or ()]
    sent = [(c["id"], call_name(c)) for m in wire(messages) for c in m.get("tool_calls") or ()]
    assert sent == asked


@given(histories)
def test_the_open_calls_are_those_that_answering_would_close(messages: list[Message]) -> None:
    """Once every open call has its answer at the end, nothing is open, and the history is sent without an interruption
    at its end."""
    answers = [tool_message(call, "now") for call in open_calls(messages)]
    closed = [*messages, *answers]
    assert open_calls(closed) == []
    contents_sent = [m["content"] for m in wire(closed)[-len(answers) :]] if answers else []
    assert INTERRUPTED not in contents_sent


@given(histories)
def test_blocks_lose_nothing(messages: list[Message]) -> None:
    """The blocks, one after another, are the history."""
    again = [message for head, answers in blocks(messages) for message in ([head] if head else []) + answers]
    assert again == messages


@given(st.lists(calls, max_size=5), st.lists(tool_messages, max_size=5))
def test_pairing_uses_each_answer_once_and_only_for_its_own_id(made: list[Message], answers: list[Message]) -> None:
    """Each call gets at most one tool message, of its own id, that no other call gets; as many as there can be."""
    paired = pair(made, answers)
    used = [found for found in paired if found is not None]
    assert len(paired) == len(made)
    assert len({id(found) for found in used}) == len(used)
    for call, found in zip(made, paired, strict=True):
        assert found is None or found["tool_call_id"] == call["id"]
    for call_id in {call["id"] for call in made}:
        asked = sum(call["id"] == call_id for call in made)
        given_back = sum(found["tool_call_id"] == call_id for found in answers)
        assert sum(found["tool_call_id"] == call_id for found in used) == min(asked, given_back)


@given(st.lists(calls, max_size=5).flatmap(lambda made: st.tuples(st.just(made), st.permutations(made))))
def test_answers_that_carry_names_find_their_calls_in_any_order(drawn: tuple[list[Message], list[Message]]) -> None:
    """A complete set of our own tool messages is paired with the right names, however it is ordered."""
    made, shuffled = drawn
    answers = [tool_message(call, "done") for call in shuffled]
    assert [found and found["tool_name"] for found in pair(made, answers)] == [call_name(call) for call in made]


# --- pairing, case by case --------------------------------------------------------------------------------------------


def test_equal_ids_are_told_apart_by_name() -> None:
    """Of two calls with one id, each gets the tool message that carries its name, whatever the order."""
    first, second = answer("x", "of g", tool_name="g"), answer("x", "of f", tool_name="f")
    assert pair([made_call("x", "f"), made_call("x", "g")], [first, second]) == [second, first]


def test_equal_ids_without_names_are_told_apart_by_order() -> None:
    """Where tool messages carry no name, the first answers the first call."""
    first, second = answer("x", "1"), answer("x", "2")
    assert pair([made_call("x"), made_call("x", "g")], [first, second]) == [first, second]


def test_a_call_does_not_take_the_answer_of_its_namesake() -> None:
    """The only answer belongs to the call whose name it carries; the other call with that id is still open."""
    only = answer("x", tool_name="g")
    assert pair([made_call("x", "f"), made_call("x", "g")], [only]) == [None, only]


def test_resuming_runs_the_call_that_is_open_and_not_its_namesake() -> None:
    """With equal ids, a call that was answered is never open: it would be run a second time."""
    history = [USER, asking(made_call("x", "look"), made_call("x", "pay")), answer("x", "paid", tool_name="pay")]
    assert [call_name(call) for call in open_calls(history)] == ["look"]


def test_a_named_answer_is_kept_for_its_call_when_another_is_nameless() -> None:
    """A nameless answer goes to the call that no named answer fits."""
    nameless, named = answer("x", "of g"), answer("x", "of f", tool_name="f")
    assert pair([made_call("x", "f"), made_call("x", "g")], [nameless, named]) == [named, nameless]


def test_one_dict_given_twice_answers_two_calls() -> None:
    """A tool message that stands in the history twice, as one object, answers two calls of its id."""
    same = answer("x")
    assert pair([made_call("x"), made_call("x")], [same, same]) == [same, same]


def test_an_answer_under_another_name_still_answers() -> None:
    """The id is what the API looks at: a tool message of a renamed function answers its call."""
    renamed = answer("x", tool_name="old_name")
    assert pair([made_call("x", "new_name")], [renamed]) == [renamed]


# --- the wire ---------------------------------------------------------------------------------------------------------


def test_our_keys_and_nulls_are_stripped_and_the_providers_are_echoed() -> None:
    """`sender` and nulls go; reasoning and signatures, which DeepSeek and Gemini want back, stay."""
    signed = made_call(extra_content={"google": {"thought_signature": "s"}})
    message = asking(signed, sender="A", refusal=None, reasoning_content="Hm.")
    sent = wire([USER, message, answer(tool_name="f")])
    assert sent == [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [signed], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


def test_null_fields_of_a_call_are_stripped_too() -> None:
    """`index: null`, as Gemini-compatible servers send it, is not sent back to a server that knows no such thing."""
    sent = wire([asking(made_call(index=None)), answer()])
    assert sent[0]["tool_calls"] == [made_call()]


def test_text_beside_calls_is_kept() -> None:
    """An assistant message that says something and calls something sends both."""
    assert wire([{**asking(made_call()), "content": "Let me look."}, answer()])[0]["content"] == "Let me look."


@pytest.mark.parametrize("content", [None, "", []])
@pytest.mark.parametrize("empty", [None, ""])
def test_calls_without_text_have_the_content_that_the_server_wants(content: Any, empty: str | None) -> None:
    """Null by default, as OpenAI says; "" for servers that refuse null (llama-cpp-python, LM Studio)."""
    sent = wire([{**asking(made_call()), "content": content}, answer()], empty_content=empty)
    assert "content" in sent[0]
    assert sent[0]["content"] == empty


@pytest.mark.parametrize("arguments", ["", None, "  ", "\n"])
def test_empty_arguments_are_replayed_as_an_empty_object(arguments: str | None) -> None:
    """What is treated as `{}` when it is called is replayed as "{}": servers parse what is replayed."""
    sent = wire([asking(made_call(arguments=arguments)), answer()])
    assert sent[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_arguments_that_are_there_are_replayed_as_they_were() -> None:
    """Arguments go back as the model wrote them, also if they were cut."""
    sent = wire([asking(made_call(arguments='{"x": ')), answer()])
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == '{"x": '


def test_a_call_of_another_type_is_sent_as_it_came() -> None:
    """A custom call has no function to fill in."""
    custom = {"id": "c1", "type": "custom", "custom": {"name": "grammar", "input": "x"}}
    assert wire([asking(custom), answer()])[0]["tool_calls"] == [custom]


@pytest.mark.parametrize("calls_of_message", [None, []])
def test_an_assistant_message_with_neither_text_nor_calls_is_not_sent(calls_of_message: list[Message] | None) -> None:
    """Mistral refuses it (OpenHands#8685)."""
    nothing = {"role": "assistant", "content": "", "tool_calls": calls_of_message, "sender": "A"}
    assert wire([USER, nothing]) == [USER]


@pytest.mark.parametrize("said", [{"refusal": "No."}, {"audio": {"id": "a"}}, {"function_call": {"name": "f"}}])
def test_an_assistant_message_with_other_substance_is_sent(said: Message) -> None:
    """A refusal, audio, or a deprecated function call is something."""
    message = {"role": "assistant", "content": None, **said}
    assert wire([message]) == [{"role": "assistant", **said}]


def test_an_empty_list_of_calls_is_not_replayed() -> None:
    """OpenAI refuses `tool_calls: []` (openai-node#1341)."""
    assert wire([{"role": "assistant", "content": "Hi", "tool_calls": []}]) == [{"role": "assistant", "content": "Hi"}]


def test_an_open_call_before_other_messages_is_answered_as_interrupted() -> None:
    """An invalid history is never sent: the answer says that the call was not run."""
    sent = wire([asking(made_call("a"), made_call("b")), answer("b"), USER])
    assert sent[1:3] == [answer("a", INTERRUPTED), answer("b")]


def test_a_tool_message_whose_call_was_trimmed_away_is_not_sent() -> None:
    """Whether it stands first, after a user message, or after an answer without calls (semantic-kernel#12708)."""
    said = {"role": "assistant", "content": "Hi"}
    assert wire([answer(), USER, answer(), said, answer()]) == [USER, said]


def test_an_answer_is_found_only_directly_after_its_call() -> None:
    """Ids repeat across turns: the answer of the second turn is not that of the first."""
    turn = asking(made_call("x"))
    sent = wire([turn, answer("x", "one"), turn, answer("x", "two")])
    assert [m["content"] for m in sent if m["role"] == "tool"] == ["one", "two"]


def test_an_empty_history_sends_nothing() -> None:
    """No messages in, no messages out."""
    assert wire([]) == []


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
    assert [call["id"] for call in open_calls(history)] == expected


# --- what counts as a message -----------------------------------------------------------------------------------------


def test_a_str_is_one_user_message() -> None:
    """`messages` may be a str."""
    assert normalize("Hi") == [USER]


@pytest.mark.parametrize("container", [list, tuple])
def test_messages_come_as_a_new_list_of_the_same_dicts(container: type) -> None:
    """The list is the run's own; dicts are taken as they are, with every key."""
    message = {"role": "user", "content": "Hi", "name": "Ada", "extra": 1}
    given_messages = container([message])
    messages = normalize(given_messages)
    assert messages == [message]
    assert messages is not given_messages


def test_sdk_objects_become_what_the_provider_sent() -> None:
    """A message object of the SDK is dumped to the keys that were set, calls included, and no nulls are added."""
    raw = {"role": "assistant", "content": "Hi", "tool_calls": [made_call()], "reasoning_content": "Hm."}
    sdk_message = ChatCompletionMessage.model_validate(raw)
    assert normalize([sdk_message]) == [raw]


def test_sdk_calls_inside_a_dict_become_dicts() -> None:
    """`dict(message)` of an SDK object holds call objects; they are dumped as well, and the dict is not changed."""
    sdk_message = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [made_call()]}
    )
    message = {"role": "assistant", "content": None, "tool_calls": sdk_message.tool_calls}
    assert normalize([message]) == [asking(made_call())]
    assert message["tool_calls"] is sdk_message.tool_calls


def test_any_mapping_is_a_message() -> None:
    """A read-only mapping is as good as a dict, and becomes one."""
    (message,) = normalize([types.MappingProxyType(USER)])
    assert message == USER
    assert type(message) is dict


@pytest.mark.parametrize("role", ROLES)
def test_every_role_of_the_api_is_accepted(role: str) -> None:
    """The API's six roles are fine."""
    message = {"role": role, "content": "x", "tool_call_id": "c"}
    assert normalize([message]) == [message]


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


def test_a_huge_fault_is_shown_shortened() -> None:
    """The error stays readable when the message is not."""
    with pytest.raises(ConfigurationError) as caught:
        normalize([{"role": "x" * 10_000}])
    assert len(str(caught.value)) < 300


def test_a_call_of_another_type_needs_no_function() -> None:
    """`type: "custom"` is the API's, with its name elsewhere."""
    custom = {"id": "c1", "type": "custom", "custom": {"name": "grammar", "input": "x"}}
    assert normalize([asking(custom)]) == [asking(custom)]


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


def test_a_tool_message_has_exactly_four_keys() -> None:
    """As in Swarm: role, tool_call_id, tool_name, content."""
    expected = {"role": "tool", "tool_call_id": "c1", "tool_name": "f", "content": "x"}
    assert tool_message(made_call(), "x") == expected


def test_plain_data_stays_plain() -> None:
    """Dicts are not copied; what is neither a mapping nor a pydantic object is given back."""
    assert as_plain(USER) is USER
    assert as_plain(5) == 5


# --- the caller's context ---------------------------------------------------------------------------------------------

leaves = st.one_of(st.none(), st.integers(), st.text(max_size=3))
contexts = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.one_of(leaves, st.sets(st.integers(), max_size=3)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
        max_leaves=10,
    ),
    max_size=4,
)


def _containers(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict | list | set) else []
    return own + [found for item in inner for found in _containers(item)]


@given(contexts)
def test_a_copy_is_equal_and_shares_no_container(context: Message) -> None:
    """The run's context equals the caller's, and no dict, list or set of it is the caller's own."""
    copied = copy_containers(context)
    assert copied == context
    assert not {id(found) for found in _containers(copied)} & {id(found) for found in _containers(context)}


def test_what_is_no_container_is_shared() -> None:
    """Locks, clients and models go by reference: they could not be copied, and must not be."""
    lock, client = object(), types.SimpleNamespace(open=[1])
    copied = copy_containers({"lock": lock, "nested": {"client": client, "pair": (lock, [1])}})
    assert copied["lock"] is lock
    assert copied["nested"]["client"] is client


def test_a_context_that_contains_itself_is_copied() -> None:
    """Copying ends, and the copy contains itself, not the original."""
    context: dict[str, Any] = {"list": []}
    context["self"] = context
    context["list"].append(context["list"])
    copied = copy_containers(context)
    assert copied["self"] is copied
    assert copied["list"][0] is copied["list"] is not context["list"]


def test_one_container_in_two_places_stays_one() -> None:
    """Two names for one list are two names for one copy."""
    shared: list[int] = []
    copied = copy_containers({"a": shared, "b": shared})
    assert copied["a"] is copied["b"] is not shared
