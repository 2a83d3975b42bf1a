"""The JSON of a request's body: the same as without an earlier request, and no message is encoded twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm._wire.body_json import body_json
from aswarm._wire.responses_request import KnownHistory

roles = st.sampled_from(["system", "user", "assistant", "tool"])
messages = st.builds(lambda role, content: {"role": role, "content": content}, roles, st.text(max_size=5))
histories = st.lists(messages, max_size=6)
keys = st.sampled_from(["messages", "input"])


def body_of(key: str, items: list[Any], **settings: Any) -> dict[str, Any]:
    return {"model": "m", key: items, **settings}


@given(keys, histories, st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=5))
def test_the_body_is_the_same_as_without_an_earlier_request(
    key: str, history: list[dict[str, Any]], requests: list[tuple[bool, int]]
) -> None:
    """Histories that grow, shrink or start with instructions."""
    known = KnownHistory(is_chat=True)
    for has_instructions, length in requests:
        items = [*([{"role": "system", "content": "Be brief."}] if has_instructions else []), *history[:length]]
        body = body_of(key, items, stream=False)
        assert json.loads(body_json(body, known)) == body == json.loads(body_json(body, None))


@pytest.mark.parametrize("key", ["messages", "input"])
def test_a_message_is_encoded_once_a_run(key: str) -> None:
    """A change of a message that was sent does not reach the next request; an equal copy of it is a new message."""
    known, first, second = (
        KnownHistory(is_chat=True),
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    )
    body_json(body_of(key, [{"role": "system", "content": "x"}, first]), known)
    first["content"] = "changed"
    later = json.loads(body_json(body_of(key, [{"role": "system", "content": "y"}, first, second]), known))
    assert [item["content"] for item in later[key]] == ["y", "a", "b"]
    copied = json.loads(body_json(body_of(key, [{**first}, second]), known))
    assert [item["content"] for item in copied[key]] == ["changed", "b"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "NaN"])
def test_a_number_that_json_does_not_have_is_refused(value: Any) -> None:
    """In a new message, and after a request without it."""
    known, message = KnownHistory(is_chat=True), {"role": "user", "content": "a"}
    body_json(body_of("messages", [message]), known)
    with pytest.raises(ValueError, match="JSON number"):
        body_json(body_of("messages", [message, {"role": "user", "content": value}]), known)
