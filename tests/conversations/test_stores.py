"""The contract of a store: the same tests for memory, SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import ConfigurationError, UnknownCall
from aswarm._sql.transactions import Transaction
from aswarm.conversations import Conflict, Store
from aswarm.conversations._base import SQLStore
from tests.support.conversations.stores import KINDS, change, user

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of store, and the backend that it runs on."""
    return request.param


@pytest.fixture
def anyio_backend(kind: str) -> str:
    """The backend of a kind."""
    return kind.partition("-")[2]


@pytest.fixture
def sql(store: SQLStore) -> SQLStore:
    """The store, with the methods that a store of a user's own need not have."""
    return store


async def test_an_id_that_was_never_written_has_no_conversation(store: Store) -> None:
    """It is None, and no error."""
    assert await store.load("a") is None


async def test_what_was_written_is_loaded(store: Store) -> None:
    """All of it, in the form in which it was written."""
    unknown = UnknownCall("call_1", "pay", "{}", "Agent")
    context = {"x": [1, None, {"y": 1.5, "z": True}], "": "empty"}
    written = change(
        None, user("Hi"), agent="Sales", context_variables=context, stop="cancelled", unknown_calls=[unknown]
    )
    await store.write("a", written)
    stored = await store.load("a")
    assert stored is not None
    assert (stored.id, stored.revision, stored.messages) == ("a", written.revision, [user("Hi")])
    assert (stored.agent, stored.context_variables) == ("Sales", context)
    assert (stored.stop, stored.unknown_calls) == ("cancelled", [unknown])
    assert 0 < stored.created == stored.updated


async def test_a_write_replaces_the_messages_that_it_does_not_keep(store: Store) -> None:
    """The first ones stay, and everything else is as the write says."""
    first = change(None, user("1"), user("2"), user("3"))
    await store.write("a", first)
    await store.write("a", change(first, user("two"), keep=1, context_variables={"n": 2}))
    stored = await store.load("a")
    assert stored is not None
    assert (stored.messages, stored.context_variables) == ([user("1"), user("two")], {"n": 2})


async def test_a_writer_that_comes_second_is_a_conflict(store: Store) -> None:
    """Its error has what the store has now, and nothing is merged."""
    first = change(None, user("1"))
    await store.write("a", first)
    await store.write("a", change(first, user("mine")))
    with pytest.raises(Conflict, match="'a' was changed by another writer: it has 2 messages now") as caught:
        await store.write("a", change(first, user("yours")))
    stored = await store.load("a")
    assert caught.value.stored == stored
    assert stored is not None and stored.messages == [user("1"), user("mine")]


async def test_two_that_begin_one_conversation_are_a_conflict(store: Store) -> None:
    """The second one finds what the first one has written."""
    await store.write("a", change(None, user("mine")))
    with pytest.raises(Conflict):
        await store.write("a", change(None, user("yours")))


async def test_a_conversation_that_was_deleted_is_a_conflict(store: Store) -> None:
    """A run does not bring back what a user has deleted."""
    first = change(None, user("1"))
    await store.write("a", first)
    await store.delete("a")
    with pytest.raises(Conflict, match="it was deleted") as caught:
        await store.write("a", change(first, user("2")))
    assert caught.value.stored is None
    assert await store.load("a") is None


async def test_a_write_that_is_repeated_changes_nothing(store: Store) -> None:
    """A writer that does not know whether its write was done does it again."""
    first = change(None, user("1"))
    second = change(first, user("2"), context_variables={"n": 2})
    for written in (first, first, second, second):
        await store.write("a", written)
    stored = await store.load("a")
    assert stored is not None
    assert (stored.messages, stored.context_variables) == ([user("1"), user("2")], {"n": 2})
    with pytest.raises(Conflict):
        await store.write("a", first)


async def test_a_conversation_as_it_was_earlier(store: Store) -> None:
    """With its agent and its context variables of that time."""
    first = change(None, user("1"), agent="A", context_variables={"n": 0})
    second = change(first, user("2"), user("3"), agent="B", context_variables={"n": 1}, stop="answer")
    third = change(second, user("4"), agent="B", context_variables={"n": 1}, stop="answer")
    for written in (first, second, third):
        await store.write("a", written)
    seen = [await store.load("a", until=n) for n in range(6)]
    assert [each and (len(each.messages), each.agent, each.context_variables["n"], each.stop) for each in seen] == [
        (0, "A", 0, None),
        (1, "A", 0, None),
        (2, "A", 0, None),
        (3, "B", 1, None),
        (4, "B", 1, "answer"),
        (4, "B", 1, "answer"),
    ]


async def test_states_of_messages_that_were_replaced_are_gone(store: Store) -> None:
    """The state at a message is the one that was written with it."""
    first = change(None, user("1"), agent="A")
    second = change(first, user("2"), user("3"), agent="B")
    third = change(second, user("two"), keep=1, agent="C")
    for written in (first, second, third):
        await store.write("a", written)
    assert [getattr(await store.load("a", until=n), "agent", None) for n in (1, 2, 3)] == ["A", "C", "C"]


async def test_a_write_without_messages_changes_the_state(store: Store) -> None:
    """The context variables may change, and the last messages may go."""
    first = change(None, user("1"), user("2"))
    second = change(first, context_variables={"n": 1})
    third = change(second, keep=1, context_variables={"n": 2})
    for written in (first, second):
        await store.write("a", written)
    stored = await store.load("a")
    assert stored is not None and stored.context_variables == {"n": 1}
    await store.write("a", third)
    stored = await store.load("a")
    assert stored is not None and (stored.messages, stored.context_variables) == ([user("1")], {"n": 2})


async def test_a_fork_has_the_first_messages(store: Store) -> None:
    """And their states, so that it can be forked again; the original stays as it was."""
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


async def test_a_fork_in_the_middle_of_a_run_has_the_agent_of_its_next_completion(sql: SQLStore) -> None:
    """A run writes its agent once, at its end; a handoff in the middle of it counts."""
    made = {"role": "assistant", "content": None, "sender": "A"}
    calls = [{"id": "c", "type": "function", "function": {"name": "to_b", "arguments": "{}"}}]
    answer = {"role": "tool", "tool_call_id": "c", "tool_name": "to_b", "content": "B"}
    last = {"role": "assistant", "content": 'Say "role":"assistant".', "sender": "B"}
    first = change(None, user("0"), agent="A")
    await sql.write("a", first)
    messages = [user("1"), {**made, "tool_calls": calls}, answer, last, user("2"), {**last, "sender": "C"}]
    await sql.write("a", change(first, *messages, agent="C"))
    agents = []
    for until in range(8):
        await sql.fork("a", str(until), until=until)
        stored = await sql.load(str(until))
        agents.append(stored and stored.agent)
    assert agents == ["A", "A", "A", "B", "B", "A", "C", "C"]


async def test_a_fork_to_an_id_that_exists_is_a_conflict(store: Store) -> None:
    """It replaces nothing."""
    for each in "ab":
        await store.write(each, change(None, user(each)))
    with pytest.raises(Conflict) as caught:
        await store.fork("a", "b")
    assert caught.value.stored is not None and caught.value.stored.messages == [user("b")]


async def test_a_fork_of_nothing_is_an_error(store: Store) -> None:
    """The text names the id."""
    with pytest.raises(ConfigurationError, match="no conversation 'a' to fork"):
        await store.fork("a", "b")


async def test_a_list_has_the_last_updated_first(store: Store) -> None:
    """Each line says what the conversation is; `limit` and `before` cut the list into parts."""
    for each in ("u/1", "u/2", "v/1"):
        await store.write(each, change(None, user(each), agent=each, stop="answer"))
        await anyio.sleep(0.002)
    found = await store.list()
    assert [each.id for each in found] == ["v/1", "u/2", "u/1"]
    assert (found[0].agent, found[0].length, found[0].stop) == ("v/1", 1, "answer")
    [last] = await store.list(limit=1)
    assert last == found[0]
    assert list(await store.list(before=last.updated)) == found[1:]


async def test_a_title_is_given_or_is_the_beginning_of_the_first_message(sql: SQLStore) -> None:
    """A fork takes the given title with it; an empty one brings the first message back. Nothing else changes."""
    beginning = "Where\n is my brass lamp? \N{GRINNING FACE}" + " And my shade?" * 100
    first = change(None, {"role": "system", "content": "Be kind."}, user(beginning))
    await sql.write("u/1", first)
    [before] = await sql.list()
    assert before.title == " ".join(beginning.split())[:80]
    assert await sql.rename("u/1", "50 % off_\N{GRINNING FACE}")
    [after] = await sql.list()
    assert (after.title, after.revision, after.updated) == (
        "50 % off_\N{GRINNING FACE}",
        before.revision,
        before.updated,
    )
    await sql.write("u/1", change(first, user("More."), keep=2))
    await sql.fork("u/1", "u/2")
    assert [each.title for each in await sql.list()] == [after.title] * 2
    await sql.rename("u/1", "")
    assert sorted(each.title for each in await sql.list()) == [after.title, before.title]
    assert not await sql.rename("absent", "Nothing")


async def test_a_title_of_a_message_with_an_image_is_its_text(sql: SQLStore) -> None:
    """The image is named; its bytes are not read."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "lamp" * 10_000}}
    parts = [{"type": "text", "text": "What is this?"}, image]
    await sql.write("a", change(None, {"role": "user", "content": parts}))
    await sql.write("b", change(None, {"role": "user", "content": "\ud800 half a pair"}))
    await sql.write("c", change(None))
    assert {each.id: each.title for each in await sql.list()} == {"a": "What is this? [image]", "b": "", "c": ""}
    assert [each.id for each in await sql.list(search="lamp")] == []
    assert [each.id for each in await sql.list(search="THIS")] == ["a"]


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
async def test_a_search_finds_texts_of_the_user_and_of_agents(sql: SQLStore, search: str, found: list[str]) -> None:
    """In any case of the letters, with all characters, in titles too; but neither results of tools nor names of fields."""
    for each, text in SEARCHED.items():
        tool = {"role": "tool", "tool_call_id": "1", "content": "secret"}
        call = {"id": "1", "type": "function", "function": {"name": "role", "arguments": "{}"}}
        answer = {"role": "assistant", "content": "An invoice." if each == "u/3" else None, "tool_calls": [call]}
        await sql.write(each, change(None, user(text), answer, tool))
        await anyio.sleep(0.002)
    await sql.rename("u/1", "Named")
    assert [each.id for each in await sql.list(prefix="u/", search=search)] == found
    assert [each.id for each in await sql.list(prefix="u/", search=search, limit=1)] == found[:1]


@pytest.mark.slow
async def test_a_search_of_many_conversations(sql: SQLStore) -> None:
    """It finds the last updated conversations with usual and with rare words, also in titles and before a time."""
    texts = {n: f"day {n}" + " even" * (n % 2 == 0) + " lamp" * (n % 300 == 7) for n in range(1500)}
    for n, text in texts.items():
        await sql.write(f"u/{n}", change(None, user(text)))
    await sql.rename("u/1", "An odd lamp")
    at = {each.id: each.updated for each in await sql.list(prefix="u/", limit=2000)}
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
        found = [each.id for each in await sql.list(prefix="u/", search=words, limit=limit, before=before)]
        expected = [each for each in order if words in contains[each] and (before is None or at[each] < before)]
        assert found == expected[:limit], words


async def test_a_search_runs_beside_a_long_transaction(sql: SQLStore, kind: str) -> None:
    """Other users need not wait for a search, nor a search for them."""
    await sql.write("u/1", change(None, user("A lamp.")))
    free = threading.Event()

    def wait() -> Transaction[None]:
        free.wait(0 if kind.startswith("memory") else 120)
        yield from ()

    sql._database.put(wait, lambda job: None)
    assert [each.id for each in await sql.list(search="lamp")] == ["u/1"]
    assert [each.id for each in await sql.list()] == ["u/1"]
    free.set()


async def test_a_prefix_is_compared_as_text(store: Store) -> None:
    """Whatever its characters: a list of one user must not show those of another one."""
    ids = ["u/1", "u/2", "u", "U/1", "ü/1", "v", "%", "_", "u%", "\ud7ff1", "\ue0001", "\U0010ffff1", "\U0010ffff"]
    for each in ids:
        await store.write(each, change(None))
    for prefix in ("", "u/", "u", "U", "ü", "%", "_", "\ud7ff", "\U0010ffff", "a\U0010ffff"):
        found = await store.list(prefix=prefix)
        assert sorted(each.id for each in found) == sorted(each for each in ids if each.startswith(prefix))


async def test_what_was_deleted_is_gone(store: Store) -> None:
    """The id is free again."""
    await store.write("a", change(None, user("1")))
    assert (await store.delete("a"), await store.delete("a")) == (True, False)
    assert await store.load("a") is None
    await store.write("a", change(None, user("new")))
    stored = await store.load("a")
    assert stored is not None and stored.messages == [user("new")]


async def test_a_purge_deletes_what_was_not_written_for_so_long(store: Store) -> None:
    """It says how many; a write makes a conversation young again."""
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
async def test_a_purge_of_what_is_to_come_is_an_error(store: Store, age: float) -> None:
    """A mistake in the age must not delete everything."""
    with pytest.raises(ConfigurationError, match="older_than"):
        await store.purge(older_than_seconds=age)


async def test_any_text_is_kept(store: Store) -> None:
    """NUL, halves of surrogate pairs, what looks like SQL, and 100,000 characters."""
    texts = ["\0", "\ud83d", "🎈", "'; DROP TABLE x; -- ? %s {text}", "x" * 100_000, ""]
    context = {text: text for text in texts}
    await store.write("ä' ? %s", change(None, *map(user, texts), context_variables=context))
    stored = await store.load("ä' ? %s")
    assert stored is not None
    assert [each["content"] for each in stored.messages] == texts
    assert stored.context_variables == context


@pytest.mark.parametrize("text", ["\0", "a\ud800", "\ud83d\udc1d"])
async def test_any_text_can_be_a_title_and_a_search(sql: SQLStore, text: str) -> None:
    """The text is repaired, and no store fails."""
    await sql.write("a", change(None, user("Hi!")))
    assert await sql.rename("a", f"x {text}")
    [found] = await sql.list()
    found.title.encode()
    assert found.title[:2] == "x "
    assert [each.id for each in await sql.list(search=f"x {text}")] == ["a"]
    assert await sql.list(prefix=text) == []


@pytest.mark.parametrize("bad", ["", "a\0", "\ud800", "x" * 501, 7, None])
async def test_an_id_that_no_store_can_hold_is_an_error(store: Store, bad: Any) -> None:
    """For each method alike."""
    for method in (store.load(bad), store.write(bad, change(None)), store.fork("a", bad), store.delete(bad)):
        with pytest.raises(ConfigurationError, match="the id"):
            await method


async def test_a_message_that_is_not_json_is_an_error(store: Store) -> None:
    """Nothing of the write is done."""
    with pytest.raises(ConfigurationError, match="role 'user' cannot be stored"):
        await store.write("a", change(None, user("1"), {"role": "user", "content": object()}))
    assert await store.load("a") is None


async def test_many_write_at_once(store: Store) -> None:
    """Each conversation has all of its messages, in order."""

    async def write(name: str) -> None:
        base = None
        for number in range(5):
            written = change(base, user(str(number)))
            await store.write(name, written)
            base = replace(written, keep=number + 1, messages=())

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(write, str(number))
    found = await store.list()
    assert {each.length for each in found} == {5} and len(found) == 30


async def test_of_two_at_once_one_is_first(store: Store) -> None:
    """The other one is a Conflict, however close they are."""
    base = change(None, user("1"))
    await store.write("a", base)
    conflicts: list[Conflict] = []

    async def write(number: int) -> None:
        try:
            await store.write("a", change(base, user(str(number))))
        except Conflict as conflict:
            conflicts.append(conflict)

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(write, number)
    stored = await store.load("a")
    assert len(conflicts) == 9
    assert stored is not None and len(stored.messages) == 2
