"""Copies and changes of contexts of any depth, with containers of any class."""

from __future__ import annotations

import sys
import types
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Self

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, Result
from aswarm._record.outcomes import recordable
from aswarm._values.context import changes, context_faults, copy_containers
from aswarm._values.json import is_json, jsonable
from aswarm.testing import ScriptedModel
from tests.support.run.ways_to_run import FACES, cancel_when, consume, swarm_of

DEPTH = 3_000


def nested(kind: type[Any] = list, depth: int = DEPTH) -> Any:
    """A list in a list, or a dict in a dict, and so on."""
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"in": value}
    return value


def depth_of(value: Any) -> int:
    depth = 0
    while value:
        value = value[0] if isinstance(value, list) else value["in"]
        depth += 1
    return depth


class Refusing(dict[str, Any]):
    """A dict that cannot be copied."""

    def __copy__(self) -> Self:
        raise TypeError("no copies")


class RefusingList(list[Any]):
    """A list that cannot be copied, and whose items cannot be read in the usual way."""

    def __copy__(self) -> Self:
        raise TypeError("no copies")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("no items")


class RefusingSet(set[Any]):
    """A set that cannot be copied."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no copies")


class Same(dict[str, Any]):
    """A dict that gives itself in place of a copy."""

    def __copy__(self) -> Self:
        return self


class Closed(dict[str, Any]):
    """A dict that refuses changes and to be listed."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("no changes")

    update = __setitem__  # type: ignore[assignment]

    def items(self) -> Any:
        raise TypeError("no items")

    def __copy__(self) -> Self:
        return type(self)(dict.items(self))


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
def test_a_copy_is_equal_and_shares_no_container(context: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("kind", [list, dict])
def test_depth_is_no_error(kind: type[Any]) -> None:
    """A context that is nested more deeply than Python calls functions is copied, and is found unchanged."""
    context = {"deep": nested(kind)}
    copied = copy_containers(context)
    assert copied["deep"] is not context["deep"]
    assert depth_of(copied["deep"]) == DEPTH
    assert changes(context, copied) == ({}, [])
    deepest = copied["deep"]
    while inner := deepest and (deepest[0] if kind is list else deepest["in"]):
        deepest = inner
    deepest.append(1) if kind is list else deepest.update(a=1)
    assert list(changes(context, copied)[0]) == ["deep"]


@pytest.mark.parametrize("kind", [Refusing, Same, Closed])
def test_a_dict_that_cannot_be_copied_is_read_all_the_same(kind: Callable[..., Any]) -> None:
    """The copy has its items and none of its containers; where the class refuses to be copied, it is a plain dict."""
    inner = [1]
    original = kind({"inner": inner})
    copied = copy_containers({"odd": original})["odd"]
    assert copied is not original
    assert dict.items(copied) == dict.items(original)
    assert copied["inner"] is not inner is original["inner"]
    assert type(copied) is (Closed if kind is Closed else dict)


def test_lists_and_sets_that_cannot_be_copied_are_plain_in_the_copy() -> None:
    """The same for lists and sets."""
    copied = copy_containers({"list": RefusingList([[1]]), "set": RefusingSet({1})})
    assert copied == {"list": [[1]], "set": {1}}
    assert type(copied["list"]) is list


def test_a_context_that_cannot_be_copied_is_a_plain_dict_in_the_copy() -> None:
    """The context itself may be of such a class."""
    context = Refusing(a=[1])
    copied = copy_containers(context)
    assert (type(copied), copied) == (dict, {"a": [1]})
    assert copied["a"] is not context["a"]


@pytest.mark.parametrize(
    "value", [Counter(a=1), OrderedDict(a=1), defaultdict(list, a=[1])], ids=lambda value: type(value).__name__
)
def test_a_copy_is_of_the_same_class_and_equal(value: Any) -> None:
    """Subclasses stay; the counts of a Counter are not added to themselves."""
    copied = copy_containers({"value": value})["value"]
    assert (type(copied), copied) == (type(value), value)
    assert copied is not value


class Unreadable(UserDict[str, Any]):
    """A mapping that is no dict, and cannot be read."""

    def __iter__(self) -> Any:
        raise OSError("the session is closed")


@pytest.mark.asyncio
async def test_a_context_that_cannot_be_read_is_the_callers_mistake() -> None:
    """A mapping whose iteration fails: the error comes before any request, and names the failure."""
    model = ScriptedModel(["Hello"])
    with pytest.raises(ConfigurationError, match=r"context_variables .*Unreadable.* OSError: the session is closed"):
        await AsyncSwarm(model.client()).run(Agent(), "Hi", Unreadable(a=1))
    assert model.requests == []


# --- runs -------------------------------------------------------------------------------------------------------------

ODD: dict[str, Callable[[], Any]] = {
    "deep": nested,
    "refusing": lambda: Refusing(a=[1]),
    "closed": lambda: Closed(a=[1]),
    "refusing list": lambda: RefusingList([1]),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
async def test_a_context_of_the_caller_of_any_kind_is_no_error(make: Callable[[], Any], face: str) -> None:
    """Such a value in the context variables passes through a run with a tool that reads them."""
    seen: list[Any] = []

    def look(context_variables: dict[str, Any]) -> str:
        seen.append(context_variables["odd"])
        return "seen"

    left: list[Response] = []
    agent = Agent(functions=[look], instructions=lambda context: str(len(context)))
    await consume(swarm_of("look"), agent, face, left, context_variables={"odd": make()})
    assert (left[0].text, len(seen)) == ("done", 1)
    assert "odd" in left[0].context_variables


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("returned", [True, False])
async def test_a_context_that_a_tool_made_never_replaces_a_cancellation(
    make: Callable[[], Any], face: str, returned: bool
) -> None:
    """A tool makes the context odd, the next one waits, and the run is cancelled: it leaves a response, as always."""
    waits: list[bool] = []

    async def spoil(context_variables: dict[str, Any]) -> Any:
        if returned:
            return Result(value="spoiled", context_variables={"odd": make()})
        context_variables["odd"] = make()
        return "spoiled"

    async def wait(context_variables: dict[str, Any]) -> str:
        waits.append(True)
        await anyio.sleep_forever()
        return "waited"

    swarm = swarm_of("spoil", "wait")
    response = await cancel_when(lambda: waits, swarm, Agent(functions=[spoil, wait]), face, context_variables={})
    assert response.stop == "cancelled"
    assert "odd" in response.context_variables


@pytest.mark.parametrize(("before", "after"), [(1, 2), ([1], [2]), ({"x": [1]}, {"x": [2]}), ({1}, {2})])
def test_two_variables_that_change_in_the_same_way_are_both_changed(before: Any, after: Any) -> None:
    """A comparison of two objects that differ is not taken for a comparison of equal objects."""
    old, new = {"a": before, "b": before, "c": {"deep": before}}, {"a": after, "b": after, "c": {"deep": after}}
    assert changes(old, new) == (new, [])


def test_a_large_object_that_variables_share_is_compared_once() -> None:
    """Equal objects that many variables share take no time for each variable."""
    before: Any = [0]
    after: Any = [0]
    for _ in range(60):
        before, after = [before, before], [after, after]
    assert changes({"a": before, "b": before}, {"a": after, "b": after}) == ({}, [])


def _depth_of(check: Callable[[], object]) -> int:
    """Return the number of Python frames that are open at the same time during the check."""
    depth = deepest = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal depth, deepest
        depth += {"call": 1, "return": -1}.get(event, 0)
        deepest = max(deepest, depth)

    sys.setprofile(count)
    try:
        check()
    finally:
        sys.setprofile(None)
    return deepest


@pytest.mark.parametrize("value", [nested(list), nested(dict)], ids=["list", "dict"])
@pytest.mark.parametrize(
    "check",
    [lambda value: list(context_faults({"x": value})), is_json, jsonable, recordable],
    ids=["context_faults", "is_json", "jsonable", "recordable"],
)
def test_a_check_of_deep_data_stays_far_from_the_limit_of_python(check: Callable[[Any], object], value: Any) -> None:
    """A collection of garbage near this limit breaks finalizers: a temporary file of other code would stay."""
    assert _depth_of(lambda: check({"x": value})) < 450
