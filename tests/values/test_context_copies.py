"""The caller's context is copied container by container, and what is no container is shared."""

from __future__ import annotations

import types
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aswarm._values.context import changes, copy_containers
from tests.support.values.histories import Message

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


def test_two_keys_with_the_same_change_have_both_changed() -> None:
    """Equal numbers are one object in Python, and so may be two lists."""
    one, two = [1], [2]
    assert changes({"a": 1, "b": 1, "c": one, "d": one}, {"a": 2, "b": 2, "c": two, "d": two}) == (
        {"a": 2, "b": 2, "c": [2], "d": [2]},
        [],
    )
