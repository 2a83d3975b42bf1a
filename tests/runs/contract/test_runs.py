"""Starting and reading runs: promises of every implementation of `Runs`."""

from __future__ import annotations

import anyio
import pytest

from aswarm import ConfigurationError
from aswarm.runs import (
    AgentNotFound,
    CallAnswer,
    InvalidRequest,
    KeyReused,
    Limits,
    NewRun,
    RunActive,
    RunNotFound,
    TooManyRuns,
    fold,
)
from aswarm.testing import ScriptedAnswer, call
from tests.support.runs.kept_runs import Open, Workshop, also_durable, entries_of

LONG = [call("look", number=1), call("transfer_to_clerk"), ScriptedAnswer("All is well.")]


@also_durable("sqlite", "postgres")
@pytest.mark.processes
async def test_a_run_has_a_log_from_its_start_to_its_end(place: Open) -> None:
    """The numbers count from 0 without a gap; the first entry has the message, and the last entry the answer."""
    async with place() as it:
        run = await it.start()
        assert run.id in repr(run)
        assert "running" in repr(run)
        assert (run.record.is_new, run.record.status) == (True, "running")
        entries = await entries_of(run)
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert entries[0].type == "RunStarted"
        assert entries[0].fields["messages"] == [{"role": "user", "content": "Hi!"}]
        assert (entries[-1].type, entries[-1].response["text"]) == ("RunFinished", "All is well.")
        record = await it.runs.get(run.id, user="ann")
        assert (record.status, record.last) == ("finished", entries[-1].seq)
        assert record.ended_ms is not None
        assert record.ended_ms >= record.started_ms


@also_durable("sqlite")
async def test_the_log_has_the_history_of_the_store(place: Open) -> None:
    """Folding the log of a run gives the history that its conversation has kept."""
    async with place() as it:
        folded = fold(await entries_of(await it.start()))
        assert folded.messages == await it.history()
        assert folded.agent == "Clerk"


@also_durable("postgres")
@pytest.mark.parametrize("text", ["a\0b", "caf\udce9"], ids=["NUL", "half a pair"])
async def test_an_id_that_no_database_accepts_is_unknown(place: Open, text: str) -> None:
    """It is not an error of the store, and the next run has its answer."""
    async with place() as it:
        for read in (it.runs.get, it.runs.read, it.runs.cancel):
            with pytest.raises(RunNotFound):
                await read(text, user="ann")
        with pytest.raises(RunNotFound):
            await it.runs.get("a", user=text)
        assert await it.runs.list(user=text) == await it.runs.list(user="ann", conversation=text) == []
        await it.runs.forget(text, user="ann")
        assert (await (await it.start()).last_entry()).type == "RunFinished"


@pytest.mark.parametrize("text", ["a\0b", "caf\udce9"], ids=["NUL", "half a pair"])
def test_an_id_that_no_database_accepts_is_refused_with_its_place(text: str) -> None:
    """An id of the client is the fault of the client; an id of a user is the fault of `auth`."""
    for name in ("run_id", "key"):
        with pytest.raises(InvalidRequest, match=f"{name} must be text that a database accepts") as caught:
            NewRun("ann", "c", "Hi!", **{name: text})
        assert (caught.value.code, caught.value.param) == ("invalid_request", name)
    with pytest.raises(ConfigurationError, match=r"the id of the user .* must be text that a database accepts"):
        NewRun(text, "c", "Hi!")


@also_durable("sqlite")
async def test_the_next_run_continues_the_conversation(place: Open) -> None:
    """A second run has the history of the first, and starts with the agent that was active."""
    async with place([*LONG, "Bye."]) as it:
        await (await it.start()).last_entry()
        entries = await entries_of(await it.start("And now?"))
        assert entries[0].fields["agent"] == "Clerk"
        assert [message["role"] for message in await it.history()][-3:] == ["assistant", "user", "assistant"]


@also_durable("postgres")
async def test_a_typed_context_is_stored_and_a_resource_is_not(place: Open) -> None:
    """The next run reads the context with its type. The resources come from the swarm of the process."""
    async with place([call("note", text="a"), "Noted.", call("note", text="b"), "Noted."]) as it:
        await (await it.start()).last_entry()
        folded = fold(await entries_of(await it.start("And b.")))
        assert folded.context == {"notes": ["a", "b"]}
        results = [message["content"] for message in await it.history() if message["role"] == "tool"]
        assert results == ["1 notes, True", "2 notes, True"]


async def test_a_reader_that_comes_late_reads_the_same(place: Open) -> None:
    """A live reader, a reader after the end, and a reader that continues in the middle get equal entries."""
    async with place() as it:
        run = await it.start()
        live = await entries_of(run)
        assert await entries_of(run) == live
        assert await entries_of(run, after=5) == live[6:]
        assert await entries_of(run, after=live[-1].seq) == []


@also_durable("postgres")
async def test_many_readers_share_a_run(place: Open, workshop: Workshop) -> None:
    """Readers at different positions of a live run each get every entry once."""
    async with place([call("slow"), "Done."]) as it:
        run = await it.start_slow()
        found: dict[int, list[int]] = {}

        async def read(position: int) -> None:
            found[position] = [entry.seq for entry in await entries_of(run, position)]

        async with anyio.create_task_group() as group:
            for position in (-1, 0, 2):
                group.start_soon(read, position)
            await anyio.wait_all_tasks_blocked()
            workshop.go.set()
        last = found[-1][-1]
        assert found == {position: list(range(position + 1, last + 1)) for position in (-1, 0, 2)}


@also_durable("postgres")
async def test_a_read_that_was_cancelled_loses_nothing(place: Open, workshop: Workshop) -> None:
    """The caller has the position, so it makes the read that was cancelled again."""
    async with place([call("slow"), "Done."]) as it:
        run, after = await it.start_slow(), -1
        with anyio.move_on_after(0.05):
            while batch := await run.read(after):
                after = batch[-1].seq
        workshop.go.set()
        rest = await entries_of(run, after)
        assert rest[0].seq == after + 1
        assert rest[-1].type == "RunFinished"


@also_durable("sqlite", "postgres")
async def test_a_run_may_have_no_conversation(place: Open) -> None:
    """Its messages are its whole history, and two of them run at the same time."""
    async with place(["One.", "Two."]) as it:
        runs = [await it.start(conversation=None) for _ in range(2)]
        assert {(await run.last_entry()).response["text"] for run in runs} == {"One.", "Two."}


@also_durable("sqlite")
async def test_a_request_that_cannot_start_leaves_nothing(place: Open) -> None:
    """An unknown agent, ids that no store takes, and a run without a message are errors of the caller."""
    async with place() as it:
        with pytest.raises(AgentNotFound, match="there is no agent 'Nobody'"):
            await it.start(agent="Nobody")
        with pytest.raises(AgentNotFound, match="there is no agent 'Bos'; did you mean 'Boss'"):
            await it.start(agent="Bos")
        for name in ("x" * 201, "", "a/b"):
            with pytest.raises(InvalidRequest):
                await it.start(conversation=name)
        with pytest.raises(ConfigurationError):
            NewRun("ann", "c")
        with pytest.raises(ConfigurationError):
            NewRun("ann", answers=[CallAnswer("1")])
        assert await it.runs.list(user="ann") == []


# --- the same request again -------------------------------------------------------------------------------------------


@also_durable("postgres")
@pytest.mark.parametrize("name", ["run_id", "key"])
async def test_a_request_that_is_sent_again_starts_nothing(place: Open, name: str) -> None:
    """The same id, or the same key, gives the same run: while it runs, and after its end."""
    async with place() as it:
        first = await it.start(**{name: "once"})
        again = await it.start(**{name: "once"})
        await first.last_entry()
        late = await it.start(**{name: "once"})
        assert again.id == late.id == first.id
        assert not again.record.is_new
        assert len(await it.runs.list(user="ann")) == 1
        with pytest.raises(KeyReused) as refused:
            await it.start("Something else", **{name: "once"})
        assert refused.value.run_id == first.id


async def test_a_key_belongs_to_a_user(place: Open) -> None:
    """Two users may choose the same key; nobody gets the run of another by its id."""
    async with place([*LONG, *LONG]) as it:
        first = await it.start(key="k", run_id="r")
        second = await it.start(key="k", user="bob")
        assert first.id != second.id
        with pytest.raises(KeyReused):
            await it.start(run_id="r", user="bob", conversation="other")


# --- one run at a time ------------------------------------------------------------------------------------------------


@also_durable("postgres")
async def test_a_conversation_has_one_run_at_a_time(place: Open, workshop: Workshop) -> None:
    """A second message is refused with the id of the active run; another conversation is free."""
    async with place([call("slow"), "Hello.", "Done."]) as it:
        run = await it.start_slow()
        with pytest.raises(RunActive) as refused:
            await it.start("Are you there?")
        assert refused.value.run_id == run.id
        await (await it.start(conversation="other")).last_entry()
        workshop.go.set()
        await run.last_entry()


@also_durable("postgres")
async def test_a_limited_number_of_messages_of_a_user_may_wait(place: Open, workshop: Workshop) -> None:
    """One more is refused; after the start of the message that waited, another message may wait."""
    async with place([call("slow"), "Done.", "Yes.", "And yes."], limits=Limits(runs_per_user=1)) as it:
        await it.start_slow()
        refused = list[str]()

        async def ask(while_running: str) -> None:
            try:
                await it.start("Hello?", while_running=while_running)
            except TooManyRuns:
                refused.append(while_running)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(2):
                    group.start_soon(ask, "wait")
                while not refused:  # then the other message waits
                    await anyio.sleep(0.005)
                await ask("replace")
                workshop.go.set()
            assert refused == ["wait", "replace"]
            await (await it.start("Hello?", while_running="wait")).last_entry()


async def test_a_message_may_replace_the_active_run(place: Open) -> None:
    """With `replace` the first run is stopped and kept, and the second run starts."""
    async with place([call("slow"), "Yes."]) as it:
        run = await it.start_slow()
        second = await it.start("Stop that.", while_running="replace")
        last = await run.last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "replaced")
        assert (await second.last_entry()).type == "RunFinished"
        assert "unknown" in (await it.history())[2]["content"]


# --- users and limits -------------------------------------------------------------------------------------------------


async def test_a_user_knows_nothing_of_the_runs_of_another(place: Open) -> None:
    """For every method, the run of another user does not exist."""
    async with place() as it:
        run = await it.start()
        for attempt in (it.runs.get, it.runs.read, it.runs.cancel):
            with pytest.raises(RunNotFound):
                await attempt(run.id, user="bob")
        assert await it.runs.list(user="bob") == []
        assert [record.id for record in await it.runs.list(user="ann")] == [run.id]
        await run.last_entry()
        with pytest.raises(RunNotFound):
            await it.runs.read(run.id, user="bob")


async def test_users_have_conversations_of_their_own(place: Open) -> None:
    """The same id is another conversation for another user, with a run of its own."""
    async with place(lambda request: f"{len(request.body['messages'])} messages") as it:
        first = await it.start(user="ann")
        second = await it.start(user="bob")
        assert await first.last_entry() != await second.last_entry()
        assert await it.history(user="bob") == [
            {"role": "user", "content": "Hi!"},
            {"role": "assistant", "content": "2 messages", "sender": "Boss", "tool_calls": None},
        ]


@also_durable("postgres")
async def test_a_user_has_a_limited_number_of_runs_at_once(place: Open) -> None:
    """One more is refused, for this user only; and the service as a whole has a limit too."""
    async with place(lambda request: call("slow"), limits=Limits(runs_per_user=1, runs=2)) as it:
        await it.start(conversation="1")
        with pytest.raises(TooManyRuns) as of_user:
            await it.start(conversation="2")
        await it.start(user="bob")
        with pytest.raises(TooManyRuns) as of_service:
            await it.start(user="cleo")
        assert (of_user.value.code, of_service.value.code) == ("too_many_runs", "service_full")
        assert of_user.value.retry_after > 0


async def test_runs_are_listed_by_conversation(place: Open) -> None:
    """The newest comes first, and a limit holds."""
    async with place(["1", "2", "3"]) as it:
        runs = [await it.start(conversation="a")]
        await runs[0].last_entry()
        runs.append(await it.start(conversation="a"))
        await runs[1].last_entry()
        await (await it.start(conversation="b")).last_entry()
        listed = await it.runs.list(user="ann", conversation="a")
        assert [record.id for record in listed] == [runs[1].id, runs[0].id]
        assert len(await it.runs.list(user="ann", limit=2)) == 2


async def test_a_run_has_a_limit_of_time(place: Open) -> None:
    """A run that takes longer is stopped with this reason."""
    async with place([call("slow")], limits=Limits(run_seconds=0.1)) as it:
        last = await (await it.start()).last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "time_limit")


@also_durable("sqlite")
async def test_a_run_has_a_limit_of_turns(place: Open) -> None:
    """`max_turns` of the limits holds for every run."""
    async with place(LONG, limits=Limits(max_turns=1)) as it:
        assert (await (await it.start()).last_entry()).response["stop"] == "max_turns"


async def test_a_run_has_a_limit_for_its_log(place: Open) -> None:
    """A run that writes without end is stopped."""
    endless = [call("look", number=number) for number in range(60)]
    async with place(endless, limits=Limits(log_bytes=3_000, max_turns=1_000_000)) as it:
        assert (await (await it.start()).last_entry()).type in ("RunStopped", "RunFailed")


@also_durable("postgres")
async def test_the_runs_of_a_conversation_can_be_forgotten(place: Open, workshop: Workshop) -> None:
    """Active runs cannot; afterwards the logs are deleted."""
    async with place([call("slow"), "Done."]) as it:
        run = await it.start_slow()
        with pytest.raises(RunActive):
            await it.runs.forget("c", user="ann")
        workshop.go.set()
        await run.last_entry()
        await it.runs.forget("c", user="ann")
        for read in (run.read, run.last_entry):
            with pytest.raises(RunNotFound):
                await read()
