"""The contract of a store: the same tests for memory, SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aswarm import ConfigurationError
from aswarm._runtime import clocks
from aswarm.conversations import Change, Conflict, Store, Stored
from aswarm.types import UnknownCall
from tests.support.conversations.stores import KINDS, change, user


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of store, and the backend that it runs on."""
    return request.param


@pytest.fixture
def anyio_backend(kind: str) -> str:
    """The backend of a kind."""
    return kind.partition("-")[2]


async def loaded(store: Store, conversation_id: str = "a") -> Stored:
    """Return a conversation that is in the store."""
    stored = await store.load(conversation_id)
    assert stored is not None
    return stored


async def write_all(store: Store, *changes: Change) -> None:
    for written in changes:
        await store.write("a", written)


async def test_a_written_conversation_is_loaded(store: Store) -> None:
    """A conversation is None before the first write, and then has the written form."""
    assert await store.load("a") is None
    unknown = UnknownCall("call_1", "pay", "{}", "Agent")
    context = {"x": [1, None, {"y": 1.5, "z": True}], "": "empty"}
    written = change(
        None, user("Hi"), agent="Sales", context_variables=context, stop="cancelled", unknown_calls=[unknown]
    )
    await store.write("a", written)
    stored = await loaded(store)
    assert (stored.id, stored.revision, stored.messages) == ("a", written.revision, [user("Hi")])
    assert (stored.agent, stored.context_variables) == ("Sales", context)
    assert (stored.stop, stored.unknown_calls) == ("cancelled", [unknown])
    assert 0 < stored.created == stored.updated


async def test_a_write_replaces_the_messages_that_it_does_not_keep(store: Store) -> None:
    """The first messages stay; a write without messages changes the context variables, or removes the last messages."""
    first = change(None, user("1"), user("2"), user("3"))
    second = change(first, user("two"), keep=1, context_variables={"n": 2})
    third = change(second, context_variables={"n": 3})
    changes = [first, second, third, change(third, keep=1, context_variables={"n": 4})]
    seen: list[tuple[Any, Any]] = []
    for written in changes:
        await store.write("a", written)
        stored = await loaded(store)
        seen.append(([each["content"] for each in stored.messages], stored.context_variables.get("n")))
    assert seen == [(["1", "2", "3"], None), (["1", "two"], 2), (["1", "two"], 3), (["1"], 4)]


async def test_a_writer_that_comes_second_is_a_conflict(store: Store) -> None:
    """The error has the stored conversation, and nothing is merged; so it is with two first writes."""
    first = change(None, user("1"))
    await write_all(store, first, change(first, user("mine")))
    with pytest.raises(Conflict, match="'a' was changed by another writer: it has 2 messages now") as caught:
        await store.write("a", change(first, user("yours")))
    stored = await loaded(store)
    assert (caught.value.stored, stored.messages) == (stored, [user("1"), user("mine")])
    with pytest.raises(Conflict):
        await store.write("a", change(None, user("yours")))


async def test_a_deleted_conversation(store: Store) -> None:
    """A run does not bring it back, and the id is free again."""
    first = change(None, user("1"))
    await store.write("a", first)
    assert (await store.delete("a"), await store.delete("a")) == (True, False)
    with pytest.raises(Conflict, match="it was deleted") as caught:
        await store.write("a", change(first, user("2")))
    assert caught.value.stored is None
    assert await store.load("a") is None
    await store.write("a", change(None, user("new")))
    assert (await loaded(store)).messages == [user("new")]


async def test_a_write_that_is_repeated_changes_nothing(store: Store) -> None:
    """A writer that does not know whether its write was done repeats it."""
    first = change(None, user("1"))
    second = change(first, user("2"), context_variables={"n": 2})
    await write_all(store, first, first, second, second)
    stored = await loaded(store)
    assert (stored.messages, stored.context_variables) == ([user("1"), user("2")], {"n": 2})
    with pytest.raises(Conflict):
        await store.write("a", first)


async def test_a_conversation_as_it_was_earlier(store: Store) -> None:
    """It has the agent and the context variables of that time."""
    first = change(None, user("1"), agent="A", context_variables={"n": 0})
    second = change(first, user("2"), user("3"), agent="B", context_variables={"n": 1}, stop="answer")
    third = change(second, user("4"), agent="B", context_variables={"n": 1}, stop="answer")
    await write_all(store, first, second, third)
    seen = [await store.load("a", until=n) for n in range(6)]
    assert [each and (len(each.messages), each.agent, each.context_variables["n"], each.stop) for each in seen] == [
        (0, "A", 0, None),
        (1, "A", 0, None),
        (2, "A", 0, None),
        (3, "B", 1, None),
        (4, "B", 1, "answer"),
        (4, "B", 1, "answer"),
    ]


async def test_states_of_replaced_messages_are_removed(store: Store) -> None:
    """The state at a message was written with it."""
    first = change(None, user("1"), agent="A")
    second = change(first, user("2"), user("3"), agent="B")
    await write_all(store, first, second, change(second, user("two"), keep=1, agent="C"))
    assert [getattr(await store.load("a", until=n), "agent", None) for n in (1, 2, 3)] == ["A", "C", "C"]


async def test_a_fork_has_the_first_messages(store: Store) -> None:
    """A fork has the states of its messages, so it can be forked again; the original stays."""
    first = change(None, user("1"), agent="A")
    await store.write("a", first)
    await store.write("a", change(first, user("2"), agent="B", stop="answer"))
    await store.fork("a", "b", until=1)
    await store.fork("a", "c")
    await store.fork("c", "d", until=1)
    found = {each: await store.load(each) for each in "abcd"}
    assert {each: stored and (len(stored.messages), stored.agent, stored.stop) for each, stored in found.items()} == {
        "a": (2, "B", "answer"),
        "b": (1, "A", None),
        "c": (2, "B", "answer"),
        "d": (1, "A", None),
    }
    assert len({stored.revision for stored in found.values() if stored}) == 4


async def test_a_fork_in_the_middle_of_a_run_has_the_agent_of_its_next_completion(store: Any) -> None:
    """A run writes its agent once, at its end; a handoff before counts."""
    made = {"role": "assistant", "content": None, "sender": "A"}
    calls = [{"id": "c", "type": "function", "function": {"name": "to_b", "arguments": "{}"}}]
    answer = {"role": "tool", "tool_call_id": "c", "tool_name": "to_b", "content": "B"}
    last = {"role": "assistant", "content": 'Say "role":"assistant".', "sender": "B"}
    first = change(None, user("0"), agent="A")
    await store.write("a", first)
    messages = [user("1"), {**made, "tool_calls": calls}, answer, last, user("2"), {**last, "sender": "C"}]
    await store.write("a", change(first, *messages, agent="C"))
    agents = []
    for until in range(8):
        await store.fork("a", str(until), until=until)
        stored = await store.load(str(until))
        agents.append(stored and stored.agent)
    assert agents == ["A", "A", "A", "B", "B", "A", "C", "C"]


async def test_a_fork_that_is_not_possible(store: Store) -> None:
    """A fork to an id that exists is a conflict and replaces nothing; the error of a fork of nothing names the id."""
    for each in "ab":
        await store.write(each, change(None, user(each)))
    with pytest.raises(Conflict) as caught:
        await store.fork("a", "b")
    assert caught.value.stored is not None and caught.value.stored.messages == [user("b")]
    with pytest.raises(ConfigurationError, match="no conversation 'x' to fork"):
        await store.fork("x", "c")


async def test_a_list_has_the_last_updated_first(store: Store) -> None:
    """Each line describes a conversation; `limit` and `before` cut the list into parts."""
    for each in ("u/1", "u/2", "v/1"):
        await store.write(each, change(None, user(each), agent=each, stop="answer"))
        await anyio.sleep(0.002)
    found = await store.list()
    assert [each.id for each in found] == ["v/1", "u/2", "u/1"]
    assert (found[0].agent, found[0].length, found[0].stop) == ("v/1", 1, "answer")
    [last] = await store.list(limit=1)
    assert last == found[0]
    assert list(await store.list(before=last.updated)) == found[1:]


@pytest.mark.parametrize("search", ["", "order"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
async def test_pages_have_each_conversation_once(store: Any, search: str, limit: int, monkeypatch: Any) -> None:
    """Several conversations were updated at the same time, which may be the last time of a page."""
    times = [5, 1, 3, 3, 5, 3, 2, 3, 1, 5, 5, 4]
    for number, time in enumerate(times):
        monkeypatch.setattr(clocks, "time", lambda time=time: float(time))
        await store.write(f"u/{number:02}", change(None, user("My order?")))
    options: dict[str, Any] = {"search": search} if search else {}
    found: list[Any] = []
    while page := await store.list(limit=limit, before=found[-1].updated if found else None, **options):
        found += page
    assert [int(each.id[2:]) for each in found] == sorted(range(12), key=lambda number: (-times[number], number))


@pytest.mark.parametrize("search", ["", "order"])
async def test_a_list_can_have_only_the_conversations_that_wait(store: Any, search: str) -> None:
    """`stop` selects the conversations whose last run stopped for this reason, also of a search, and before a limit."""
    for number, stop in enumerate(["waiting", "answer", None, "waiting", "error", "answer"]):
        await store.write(f"u/{number}", change(None, user("My order?"), stop=stop))
        await anyio.sleep(0.002)
    options: dict[str, Any] = {"search": search} if search else {}
    waiting = await store.list(stop="waiting", **options)
    assert [each.id for each in waiting] == ["u/3", "u/0"]
    assert [each.id for each in await store.list(stop="waiting", limit=1, **options)] == ["u/3"]
    older = await store.list(stop="waiting", before=waiting[0].updated, **options)
    assert [each.id for each in older] == ["u/0"]
    assert await store.list(stop="waiting", prefix="v/", **options) == []
    assert [each.id for each in await store.list(stop="error", **options)] == ["u/4"]
    with pytest.raises(ConfigurationError, match=r"stop must be one of answer, .*, not 'open'"):
        await store.list(stop="open")


async def test_a_title_is_given_or_is_the_start_of_the_first_message(store: Any) -> None:
    """A fork keeps the title; an empty title brings the first message back; nothing else changes."""
    beginning = "Where\n is my brass lamp? \N{GRINNING FACE}" + " And my shade?" * 100
    first = change(None, {"role": "system", "content": "Be kind."}, user(beginning))
    await store.write("u/1", first)
    [before] = await store.list()
    assert before.title == " ".join(beginning.split())[:80]
    assert await store.rename("u/1", "50 % off_\N{GRINNING FACE}")
    [after] = await store.list()
    assert (after.title, after.revision, after.updated) == (
        "50 % off_\N{GRINNING FACE}",
        before.revision,
        before.updated,
    )
    await store.write("u/1", change(first, user("More."), keep=2))
    await store.fork("u/1", "u/2")
    assert [each.title for each in await store.list()] == [after.title] * 2
    await store.rename("u/1", "")
    assert sorted(each.title for each in await store.list()) == [after.title, before.title]
    assert not await store.rename("absent", "Nothing")


async def test_a_title_of_a_message_with_an_image_is_its_text(store: Any) -> None:
    """An image is named, and its bytes are not read."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "lamp" * 10_000}}
    parts = [{"type": "text", "text": "What is this?"}, image]
    await store.write("a", change(None, {"role": "user", "content": parts}))
    await store.write("b", change(None, {"role": "user", "content": "\ud800 half a pair"}))
    await store.write("c", change(None))
    assert {each.id: each.title for each in await store.list()} == {"a": "What is this? [image]", "b": "", "c": ""}
    assert [each.id for each in await store.list(search="lamp")] == []
    assert [each.id for each in await store.list(search="THIS")] == ["a"]


SEARCHED = {
    "u/1": "The brass lamp costs 50 %.",
    "u/2": 'She said "brass\nlamp" \\ again.',
    "u/3": "Größe XL_4, bitte.",
    "v/1": "brass",
}


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("BRASS", ["u/2", "u/1"]),
        ("50 %", ["u/1"]),
        ("5%0", []),
        ('"brass\nlamp" \\', ["u/2"]),
        ("GRÖSSE", []),
        ("gRÖßE", ["u/3"]),
        ("xl_4", ["u/3"]),
        ("xl-4", []),
        ("role", []),
        ("content", []),
        ("secret", []),
        ("an invoice", ["u/3"]),
        ("named", ["u/1"]),
        ('said   \t"brass lamp', ["u/2"]),
        ("größe xl", ["u/3"]),
        ("costs\n50", ["u/1"]),
        ("äße", []),
        (" \n", ["u/3", "u/2", "u/1"]),
    ],
)
async def test_a_search_finds_texts_of_the_user_and_of_agents(store: Any, search: str, found: list[str]) -> None:
    """A search ignores case and finds all characters and titles, but no results of tools or names of fields."""
    for each, text in SEARCHED.items():
        tool = {"role": "tool", "tool_call_id": "1", "content": "secret"}
        call = {"id": "1", "type": "function", "function": {"name": "role", "arguments": "{}"}}
        answer = {"role": "assistant", "content": "An invoice." if each == "u/3" else None, "tool_calls": [call]}
        await store.write(each, change(None, user(text), answer, tool))
        await anyio.sleep(0.002)
    await store.rename("u/1", "Named")
    for limit in (100, 1):
        assert [each.id for each in await store.list(prefix="u/", search=search, limit=limit)] == found[:limit]


@pytest.mark.slow
async def test_a_search_of_many_conversations(store: Any) -> None:
    """It finds the last updated conversations with usual and with rare words, also in titles and before a time."""
    texts = {n: f"day {n}" + " even" * (n % 2 == 0) + " lamp" * (n % 300 == 7) for n in range(1500)}
    for n, text in texts.items():
        await store.write(f"u/{n}", change(None, user(text)))
    await store.rename("u/1", "An odd lamp")
    at = {each.id: each.updated for each in await store.list(prefix="u/", limit=2000)}
    order = sorted(at, key=lambda each: (-at[each], each))
    contains = {each: texts[int(each[2:])] + " an odd lamp" * (each == "u/1") for each in order}
    for words, limit, before in [
        ("even", 10, None),
        ("even", 1000, None),
        ("lamp", 3, None),
        ("lamp", 100, None),
        ("lamp", 100, at["u/700"]),
        ("day 70", 100, at["u/800"]),
        ("night", 100, None),
        ("even", 0, None),
    ]:
        found = [each.id for each in await store.list(prefix="u/", search=words, limit=limit, before=before)]
        expected = [each for each in order if words in contains[each] and (before is None or at[each] < before)]
        assert found == expected[:limit], words


async def test_a_prefix_is_compared_as_text(store: Store) -> None:
    """A list of one user must not show conversations of another user."""
    ids = ["u/1", "u/2", "u", "U/1", "ü/1", "v", "%", "_", "u%", "\ud7ff1", "\ue0001", "\U0010ffff1", "\U0010ffff"]
    for each in ids:
        await store.write(each, change(None))
    for prefix in ("", "u/", "u", "U", "ü", "%", "_", "\ud7ff", "\U0010ffff", "a\U0010ffff"):
        found = await store.list(prefix=prefix)
        assert sorted(each.id for each in found) == sorted(each for each in ids if each.startswith(prefix))


async def test_a_purge_deletes_old_conversations(store: Store) -> None:
    """A purge returns the number of old conversations; a write makes a conversation young again."""
    first = change(None, user("1"))
    await store.write("old", first)
    await store.write("used", first)
    await anyio.sleep(0.05)
    await store.write("used", change(first, user("2")))
    assert await store.purge(older_than_seconds=3600) == 0
    used = await store.load("used")
    assert used is not None
    with anyio.fail_after(60):
        while (await store.purge(older_than_seconds=0.04)) == 0:
            await anyio.sleep(0.01)
    assert await store.load("old") is None


@pytest.mark.parametrize("age", [-1, float("nan")])
async def test_a_purge_of_the_future_is_an_error(store: Store, age: float) -> None:
    """A mistake in the age must not delete everything."""
    with pytest.raises(ConfigurationError, match="older_than"):
        await store.purge(older_than_seconds=age)


async def test_any_text_is_kept(store: Store) -> None:
    """NUL, halves of surrogate pairs, SQL and 100,000 characters are kept."""
    texts = ["\0", "\ud83d", "🎈", "'; DROP TABLE x; -- ? %s {text}", "x" * 100_000, ""]
    context = {text: text for text in texts}
    await store.write("ä' ? %s", change(None, *map(user, texts), context_variables=context))
    stored = await loaded(store, "ä' ? %s")
    assert [each["content"] for each in stored.messages] == texts
    assert stored.context_variables == context


@pytest.mark.parametrize("text", ["\0", "a\ud800", "\ud83d\udc1d"])
async def test_any_text_can_be_a_title_and_a_search(store: Any, text: str) -> None:
    """The text is repaired, and no store fails."""
    await store.write("a", change(None, user("Hi!")))
    assert await store.rename("a", f"x {text}")
    [found] = await store.list()
    found.title.encode()
    assert found.title[:2] == "x "
    assert [each.id for each in await store.list(search=f"x {text}")] == ["a"]
    assert await store.list(prefix=text) == []


@pytest.mark.parametrize("bad", ["", "a\0", "\ud800", "x" * 501, 7, None])
async def test_an_id_that_no_store_can_hold_is_an_error(store: Store, bad: Any) -> None:
    """Each method refuses such an id."""
    for method in (store.load(bad), store.write(bad, change(None)), store.fork("a", bad), store.delete(bad)):
        with pytest.raises(ConfigurationError, match="the id"):
            await method


async def test_a_message_that_is_not_json_is_an_error(store: Store) -> None:
    """Nothing of the write is done."""
    with pytest.raises(ConfigurationError, match="role 'user' cannot be stored"):
        await store.write("a", change(None, user("1"), {"role": "user", "content": object()}))
    assert await store.load("a") is None
