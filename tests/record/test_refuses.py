"""Refusals of a journal, and their error texts: other batches, other items, other files, a disk that fails."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, RunError
from aswarm.batch import Item
from tests.support.record.journaled import Script, batch, calls, fail_from, kinds, noting, repair, rerun, says

pytestmark = pytest.mark.asyncio


async def made(path: Path) -> None:
    await rerun(path, Script(says("Done")), Agent())


async def errors_of(path: Path, *items: Item, model: Any = None) -> list[Any]:
    """Run a batch of these items, and return their errors in order."""
    async with batch(path, items, model, ordered=True) as outcomes:
        return [outcome.error async for outcome in outcomes]


async def test_the_journal_of_a_newer_version(path: Path) -> None:
    """A journal of another format is refused, and the error names both formats."""
    await made(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    newer = r"written by a newer version of aswarm .its format is 7, this version reads 4"
    with pytest.raises(ConfigurationError, match=newer):
        async with batch(path):
            pass


# --- files ---


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "missing/run.sqlite",
            r"missing.run\.sqlite cannot be opened: No such file or directory: .*A journal needs a folder",
        ),
        ("", "journal must be the path of a file"),
        (":memory:", "journal must be the path of a file"),
    ],
)
async def test_a_path_that_is_no_file_is_refused(name: str, error: str, path: Path) -> None:
    """A folder may be missing; SQLite keeps nothing under the last names, which an unset environment variable may give."""
    with pytest.raises(ConfigurationError, match=error):
        async with batch(path.parent / name if "/" in name else name):
            pass


async def test_another_program_has_the_file_open(path: Path) -> None:
    """A program that is no batch, such as a database browser, has no lock beside the file, but a lock of SQLite."""
    await made(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as browser:
        browser.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigurationError, match=r"is in use"):
            async with batch(path):
                pass


async def test_a_batch_with_instructions_that_utf_8_cannot_encode(path: Path) -> None:
    """UTF-8 cannot encode half a surrogate pair."""
    with pytest.raises(ConfigurationError, match=r"cannot be opened: .*surrogates"):
        async with AsyncSwarm(Script()).batch(Agent(instructions="A\ud800"), [], journal=path):
            pass


# --- items ---


async def test_an_id_that_utf_8_cannot_encode_is_the_error_of_that_item(path: Path) -> None:
    """The journal accepts the other items."""
    first, second = await errors_of(path, Item("Hi", id="a\ud800"), Item("Hi", id="b"))
    assert "the journal cannot hold the id" in str(first)
    assert second is None


async def test_an_item_with_other_context_variables(path: Path) -> None:
    """An item's own variables identify it; only the type of a value without a JSON form is compared."""
    odd: dict[Any, Any] = {1: "a", "b": 2}
    given: list[tuple[Any, Any, bool]] = [
        ({"user": "alice"}, {"user": "bob"}, False),
        ({"a": 1, "b": {"c"}}, {"b": {"d"}, "a": 1}, True),
        ({"a": object()}, {"a": object()}, True),
        (odd, {"c": 1}, False),
        ({"a": "\ud800"}, {"a": "\ud801"}, False),
    ]
    first = [Item("Hi", id=number, context_variables=own) for number, (own, _, _) in enumerate(given)]
    await errors_of(path, *first)
    again = [Item("Hi", id=number, context_variables=own) for number, (_, own, _) in enumerate(given)]
    for error, (_, _, is_same) in zip(await errors_of(path, *again), given, strict=True):
        assert "its context variables" not in str(error) if is_same else "its context variables" in str(error)


@pytest.mark.parametrize(("agent", "messages"), [("Agent", "Bye"), ("Other", "Hi")])
async def test_another_item_under_the_same_id(path: Path, agent: str, messages: str) -> None:
    """An item with other messages, or with another agent, is refused; other items are accepted."""
    await made(path)
    other = Agent(name=agent)
    first, second = await errors_of(path, Item(messages, id="a", agent=other), Item(messages, id="b"))
    assert "'a' differs from the item with this id in the journal" in str(first)
    assert second is None


async def test_decisions_with_half_a_surrogate_pair_are_compared_too(path: Path) -> None:
    """UTF-8 cannot encode them."""
    items = [Item("Hi", id="a", resume={"c": text}) for text in ("\ud800", "\ud800", "\ud801")]
    errors = [str((await errors_of(path, item))[0]) for item in items]
    assert ["differs from the item" in error for error in errors] == [False, False, True]


async def test_one_id_twice(path: Path) -> None:
    """Two items of one batch with one id are an error of the second, whether the first is new or not."""
    await made(path)
    items = [Item("Hi", id=name) for name in ("a", "a", "new", "new")]
    async with batch(path, items, ordered=True, concurrency=1) as outcomes:
        errors = [outcome.error async for outcome in outcomes]
    assert errors[::2] == [None, None]
    for name, error in zip(("a", "new"), errors[1::2], strict=True):
        assert f"two items of the batch have the id '{name}'" in str(error)


async def test_invalid_messages_are_the_error_of_that_item(path: Path) -> None:
    """Odd messages that are valid have a fingerprint all the same."""
    odd: Any = [{"role": "user", "content": [{"type": "x", "data": object()}]}]
    number: Any = 7
    items = [Item(number, id="a"), Item("half \ud83d", id="b"), Item(odd, id="c")]
    first, second, third = await errors_of(path, *items)
    assert "messages must be a list" in str(first)
    assert "half a surrogate pair" in str(second)
    assert third is None


# --- a disk that fails ---


async def test_a_disk_that_is_full(path: Path) -> None:
    """If nothing can be recorded, no function runs; the run, and each later item, ends with the reason."""
    notes: list[str] = []
    agent = Agent(functions=[noting(notes, "one")])
    async with batch(path):
        pass
    fail_from(path, "ToolCallStarted")
    swarm = AsyncSwarm(client=Script(calls("one")), tool_error=lambda failure: notes.append(failure.text) or "")
    taken: list[Any] = []

    async def read() -> None:
        async with swarm.batch(Agent(), [Item("Hi", id="a", agent=agent)], journal=path) as outcomes:
            async for outcome in outcomes:
                taken.append(outcome.error)  # noqa: PERF401 - reading raises an error

    with pytest.raises(RunError, match="its journal cannot be written: disk full"):
        await read()
    (error,) = taken
    assert "the journal cannot be written: disk full" in str(error)
    assert [message["role"] for message in error.response.messages] == ["assistant"]  # the call stays open
    assert (notes, kinds(path)) == ([], [])
    repair(path)
    assert (await rerun(path, Script(calls("one"), says("Done")), agent)).text == "Done"
