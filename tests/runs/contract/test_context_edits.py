"""Changes of the context variables by an operator, beside open calls, typed context and other requests: promises of every `Runs`."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import ConfigurationError
from aswarm.runs import AnswersRefused, CallAnswer, ContextEdit, NewRun, Run
from aswarm.testing import call
from tests.support.runs.kept_runs import Open, Place, Workshop, also_durable, entries_of

NOTE = call("note", text="new")


async def context_of(it: Place) -> tuple[str, dict[str, Any]]:
    """Return the revision and the context variables of the conversation."""
    stored = await it.store.load("ann/c")
    assert stored is not None
    return stored.revision, stored.context_variables


def approval(asked: Run, revision: str, **changes: Any) -> NewRun:
    """Return the approval of the call "e" with a change of the context."""
    edit = ContextEdit(changes=changes, revision=revision)
    return NewRun("ann", "c", answers=[CallAnswer("e", run_id=asked.id, approve=True)], context_edit=edit)


@also_durable("sqlite", "postgres")
async def test_an_approval_with_a_change_of_the_context(place: Open, workshop: Workshop) -> None:
    """The functions after the approval see the change. The same request again gives the same run, and runs nothing twice.

    A stale change is refused with its approval, so the call still waits.
    """
    async with place([call("erase", call_id="e", name="draft"), NOTE, "Done."]) as it:
        asked = await it.waiting(context_variables={"notes": []})
        with pytest.raises(AnswersRefused) as refused:
            await it.runs.start(approval(asked, "stale", notes=["a", "b"]))
        assert (refused.value.code, workshop.erased) == ("conflict", [])
        new = approval(asked, (await context_of(it))[0], notes=["a", "b"], nul="\0")
        answered = await it.runs.start(new)
        entries = await entries_of(answered)
        assert entries[0].fields["edited"] == ["notes", "nul"]
        assert (await context_of(it))[1] == {"notes": ["a", "b", "new"], "nul": "\0"}
        assert (await it.runs.start(new)).id == answered.id
        assert workshop.erased == ["draft"]


@also_durable("sqlite")
async def test_a_change_that_breaks_the_type_can_be_repaired(place: Open) -> None:
    """The run fails, because a function has a typed context. The next change of the operator repairs the conversation."""
    async with place([NOTE, "Done."]) as it:
        bad = ContextEdit(changes={"notes": 5}, revision="")
        failed = await (await it.start(context_edit=bad)).last_entry()
        assert (failed.type, "not fit Bench" in failed.fields["error"]["message"]) == ("RunFailed", True)
        good = ContextEdit(changes={"notes": ["a"]}, revision=(await context_of(it))[0])
        await (await it.start("Again!", context_edit=good)).last_entry()
        assert (await context_of(it))[1] == {"notes": ["a", "new"]}


@also_durable("sqlite")
async def test_a_change_with_another_answer_to_the_last_message(place: Open) -> None:
    """`regenerate` takes the context from before the last message, and applies the change to it."""
    async with place([NOTE, "One.", NOTE, "Two."]) as it:
        await (await it.start(context_variables={"notes": [], "tier": "gold"})).last_entry()
        edit = ContextEdit(changes={"notes": ["a"]}, removed=["tier"], revision=(await context_of(it))[0])
        await (await it.runs.start(NewRun("ann", "c", regenerate=True, context_edit=edit))).last_entry()
        assert (await context_of(it))[1] == {"notes": ["a", "new"]}


async def test_two_requests_with_one_key_and_other_changes_differ(place: Open) -> None:
    """A key is of one request: neither another change nor another model gets its run. A value must be JSON."""
    async with place(["One."]) as it:
        edit = ContextEdit(changes={"a": 1}, revision="")
        first = await it.start(key="k", context_edit=edit, model="cheap")
        assert (await it.start(key="k", context_edit=edit, model="cheap")).id == first.id
        for other in ({"model": "large", "context_edit": edit}, {"model": "cheap"}):
            with pytest.raises(Exception, match="key"):
                await it.start(key="k", **other)
        await first.last_entry()
    with pytest.raises(ConfigurationError, match="as JSON"):
        ContextEdit(changes={"a": (1,)}, revision="")
