"""What every implementation of `Runs` promises. `kept_runs.FACTORIES` has the implementations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from aswarm import Approve, ConfigurationError, RunError
from aswarm.runs import (
    AgentNotFound,
    AnswersRefused,
    CallAnswer,
    ConversationNotFound,
    InvalidRequest,
    KeyReused,
    Limits,
    NewRun,
    Run,
    RunActive,
    RunNotFound,
    ShuttingDown,
    TooManyRuns,
    fold,
)
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, call
from tests.support.runs.kept_runs import FACTORIES, Place, Workshop, also_durable, entries_of, kinds

pytestmark = pytest.mark.anyio

Open: TypeAlias = Callable[..., AbstractAsyncContextManager[Place]]
LONG = [call("look", number=1), call("transfer_to_clerk"), ScriptedAnswer("All is well.")]


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture(params=kinds())
def kind(request: pytest.FixtureRequest) -> str:
    """The name of an implementation."""
    name: str = request.param
    if name.startswith("durable"):
        pytest.importorskip("dbos", reason="durable runs need dbos")
    return name


@pytest.fixture
def anyio_backend(kind: str) -> str:
    return kind.partition("-")[2]


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path, workshop: Workshop) -> Open:
    """Opens an implementation with a scripted model: `async with place([...]) as it: ...`."""

    def server() -> str:
        uri: str = request.getfixturevalue("postgres")
        return uri

    def opened(script: Any = LONG, **settings: Any) -> AbstractAsyncContextManager[Place]:
        return FACTORIES[kind](tmp_path, server, ScriptedModel(script, cut=4), workshop, **settings)

    return opened


@pytest.mark.processes
@also_durable("sqlite", "postgres")
async def test_a_run_has_a_log_from_its_start_to_its_end(place: Open) -> None:
    """The numbers count from 0 without a gap; the first entry says who asked what, the last one how it ended."""
    async with place() as it:
        run = await it.start()
        assert run.id in repr(run)
        assert "running" in repr(run)
        assert run.record.is_new
        assert run.record.status == "running"
        entries = await entries_of(run)
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert entries[0].type == "RunStarted"
        assert entries[0].fields["messages"] == [{"role": "user", "content": "Hi!"}]
        assert entries[-1].type == "RunFinished"
        assert entries[-1].fields["response"]["text"] == "All is well."
        record = await it.runs.get(run.id, user="ann")
        assert (record.status, record.last) == ("finished", entries[-1].seq)
        assert record.ended_ms is not None
        assert record.ended_ms >= record.started_ms


@also_durable("sqlite")
async def test_the_log_says_what_the_store_has(place: Open) -> None:
    """Folding the log of a run gives the history that its conversation has kept."""
    async with place() as it:
        folded = fold(await entries_of(await it.start()))
        assert folded.messages == await it.history()
        assert folded.agent == "Clerk"


@pytest.mark.parametrize("text", ["a\0b", "caf\udce9"], ids=["NUL", "half a pair"])
@also_durable("postgres")
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
        assert (caught.value.status_code, caught.value.param) == (422, name)
    with pytest.raises(ConfigurationError, match=r"the id of the user .* must be text that a database accepts"):
        NewRun(text, "c", "Hi!")


@also_durable("sqlite")
async def test_the_next_run_continues_the_conversation(place: Open) -> None:
    """A second run has the history of the first, and begins with the agent that was active."""
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
        told = [message["content"] for message in await it.history() if message["role"] == "tool"]
        assert told == ["1 notes, True", "2 notes, True"]


async def test_a_reader_that_comes_late_reads_the_same(place: Open) -> None:
    """A live reader and one after the end get equal entries, and so does one that continues in the middle."""
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
        run = await it.start()
        await workshop.began.wait()
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
    """The position is the caller's: a read that was cut while it waited is made again."""
    async with place([call("slow"), "Done."]) as it:
        run = await it.start()
        await workshop.began.wait()
        after = -1
        with anyio.move_on_after(0.05):
            while batch := await run.read(after):
                after = batch[-1].seq
        workshop.go.set()
        rest = await entries_of(run, after)
        assert rest[0].seq == after + 1
        assert rest[-1].type == "RunFinished"


async def test_a_run_needs_no_reader(place: Open) -> None:
    """A run that no request reads goes to its end, and is kept."""
    async with place() as it:
        run = await it.start()
        while (await it.runs.get(run.id, user="ann")).is_running:
            await anyio.sleep(0.01)
        assert (await it.history())[-1]["content"] == "All is well."


# --- the same request again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run_id", "key"])
@also_durable("postgres")
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


async def test_a_key_is_for_one_request(place: Open) -> None:
    """Another request with a used key is refused, and names the run."""
    async with place() as it:
        first = await it.start(key="k")
        with pytest.raises(KeyReused) as refused:
            await it.start("Something else", key="k")
        assert refused.value.run_id == first.id


async def test_keys_are_those_of_a_user(place: Open) -> None:
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
        run = await it.start()
        await workshop.began.wait()
        with pytest.raises(RunActive) as refused:
            await it.start("Are you there?")
        assert refused.value.run_id == run.id
        await (await it.start(conversation="other")).last_entry()
        workshop.go.set()
        await run.last_entry()


async def test_a_message_may_wait_for_the_active_run(place: Open, workshop: Workshop) -> None:
    """With `wait` the second run begins once the first has ended."""
    async with place([call("slow"), "Done.", "Yes."]) as it:
        run = await it.start()
        await workshop.began.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(self_started := _Started(it, "wait"))
            await anyio.sleep(0.05)
            assert self_started.run is None
            workshop.go.set()
        assert self_started.run is not None
        assert (await run.last_entry()).type == "RunFinished"
        assert (await self_started.run.last_entry()).fields["response"]["text"] == "Yes."


class _Started:
    def __init__(self, place: Place, while_running: str) -> None:
        self.place = place
        self.while_running = while_running
        self.run: Run | None = None

    async def __call__(self) -> None:
        self.run = await self.place.start("Are you there?", while_running=self.while_running)


async def until_a_message_waits(it: Place) -> None:
    """Wait until a message of the user waits for the active run."""
    while not it.runs._waiting["ann"]:  # type: ignore[attr-defined]
        await anyio.sleep(0.005)


@also_durable("postgres")
async def test_so_many_messages_of_a_user_may_wait(place: Open, workshop: Workshop) -> None:
    """One more is refused; when those that waited have begun, others may wait."""
    async with place([call("slow"), "Done.", "Yes.", "And yes."], limits=Limits(runs_per_user=1)) as it:
        await it.start()
        await workshop.began.wait()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(_Started(it, "wait"))
                await until_a_message_waits(it)
                for while_running in ("wait", "replace"):
                    with pytest.raises(TooManyRuns):
                        await it.start("Hello?", while_running=while_running)
                workshop.go.set()
            await (await it.start("Hello?", while_running="wait")).last_entry()


async def test_a_message_may_replace_the_active_run(place: Open, workshop: Workshop) -> None:
    """With `replace` the first run is stopped, kept, and the second one begins."""
    async with place([call("slow"), "Yes."]) as it:
        run = await it.start()
        await workshop.began.wait()
        second = await it.start("Stop that.", while_running="replace")
        last = await run.last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "replaced")
        assert (await second.last_entry()).type == "RunFinished"
        assert "unknown" in (await it.history())[2]["content"]


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_run_says_what_happened(place: Open, workshop: Workshop) -> None:
    """Stopping returns once the tools have ended; the last entry tells of the call whose outcome is unknown."""
    async with place([call("slow"), "Go on."]) as it:
        run = await it.start()
        await workshop.began.wait()
        record = await run.cancel()
        assert record == run.record == await it.runs.get(run.id, user="ann")
        assert (record.status, record.reason) == ("stopped", "cancelled")
        last = await run.last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "cancelled")
        assert [each["name"] for each in last.fields["response"]["unknown_calls"]] == ["slow"]
        assert (await it.runs.get(run.id, user="ann")).status == "stopped"
        assert (await run.cancel("again")).reason == "cancelled"
        assert (await (await it.start("And?")).last_entry()).type == "RunFinished"


async def test_a_run_that_has_ended_stays_as_it_is(place: Open) -> None:
    """Cancelling it changes nothing."""
    async with place() as it:
        run = await it.start()
        await run.last_entry()
        assert (await run.cancel()).status == "finished"
        assert (await it.runs.get(run.id, user="ann")).status == "finished"


@also_durable("postgres")
async def test_a_failed_run_can_be_cancelled(place: Open) -> None:
    """Cancelling it changes nothing, and does not raise the error of the run. `result` does."""
    async with place([Failure(400, "broken")]) as it:
        run = await it.start()
        await run.last_entry()
        assert (await run.cancel()).status == "failed"
        with pytest.raises(RunError, match="broken"):
            await run.result()


@pytest.mark.parametrize("wait", ["entries", "last_entry", "result", "cancel"])
@also_durable("sqlite")
async def test_the_record_of_a_run_is_current_after_its_end(place: Open, wait: str) -> None:
    """Each method that waits for the end updates it."""
    async with place() as it:
        run = await it.start()
        if wait == "entries":
            await entries_of(run)
        else:
            await getattr(run, wait)()
        assert run.record == await it.runs.get(run.id, user="ann")
        assert not run.record.is_running


@also_durable("sqlite")
async def test_a_run_has_a_response(place: Open) -> None:
    """`result` is the response of a run without a record: messages, agent, context variables, usage, stop."""
    async with place() as it:
        run = await it.start()
        response = await run.result()
        assert (response.text, response.stop, response.agent.name) == ("All is well.", "answer", "Clerk")
        assert response.run_id == run.id
        assert response.messages == (await it.history())[1:]
        assert response.usage.requests == len(LONG)


async def test_the_end_is_read_without_the_whole_log(place: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """`last_entry`, and cancelling a run that has ended, read the last entry only."""
    async with place() as it:
        run = await it.start()
        last = await run.last_entry()
        read, positions = it.runs.read, list[int]()

        async def counted(run_id: str, after: int = -1, *, user: str) -> Any:
            positions.append(after)
            return await read(run_id, after, user=user)

        monkeypatch.setattr(it.runs, "read", counted)
        assert await run.last_entry() == last
        await run.cancel()
        assert positions
        assert set(positions) == {last.seq - 1}


@also_durable("sqlite")
async def test_a_run_that_fails_is_kept(place: Open) -> None:
    """The log ends with the error; the text for readers says nothing of it, and the conversation goes on."""
    async with place([Failure(400, "secret"), "Better."]) as it:
        last = await (await it.start()).last_entry()
        assert last.type == "RunFailed"
        assert "secret" in last.fields["error"]["message"]
        assert "secret" not in last.fields["error"]["public_message"]
        assert (await it.runs.list(user="ann"))[0].status == "failed"
        assert (await (await it.start("Again")).last_entry()).fields["response"]["text"] == "Better."


async def test_a_run_has_a_limit_of_time(place: Open) -> None:
    """A run that takes longer is stopped, and says why."""
    async with place([call("slow")], limits=Limits(run_seconds=0.1)) as it:
        last = await (await it.start()).last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "time_limit")


@also_durable("sqlite")
async def test_a_run_has_a_limit_of_turns(place: Open) -> None:
    """`max_turns` of the limits holds for every run."""
    async with place(LONG, limits=Limits(max_turns=1)) as it:
        assert (await (await it.start()).last_entry()).fields["response"]["stop"] == "max_turns"


async def test_a_run_has_a_limit_for_its_log(place: Open) -> None:
    """A run that writes without end is stopped."""
    endless = [call("look", number=number) for number in range(60)]
    async with place(endless, limits=Limits(log_bytes=3_000, max_turns=1_000_000)) as it:
        last = await (await it.start()).last_entry()
        assert last.type == "RunStopped" or last.type == "RunFailed"


# --- users ------------------------------------------------------------------------------------------------------------


async def test_a_user_knows_nothing_of_the_runs_of_another(place: Open) -> None:
    """Every method treats the run of another user as one that is not there."""
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
async def test_a_user_may_have_so_many_runs_at_once(place: Open, workshop: Workshop) -> None:
    """One more is refused, for this user only; and the service as a whole has a limit too."""
    async with place(lambda request: call("slow"), limits=Limits(runs_per_user=1, runs=2)) as it:
        await it.start(conversation="1")
        with pytest.raises(TooManyRuns) as of_user:
            await it.start(conversation="2")
        await it.start(user="bob")
        with pytest.raises(TooManyRuns) as of_service:
            await it.start(user="cleo")
        assert (of_user.value.status_code, of_service.value.status_code) == (429, 503)
        assert of_user.value.retry_after > 0


async def test_runs_are_listed_by_conversation(place: Open) -> None:
    """The newest comes first, and a limit holds."""
    async with place(["1", "2", "3"]) as it:
        first = await it.start(conversation="a")
        await first.last_entry()
        second = await it.start(conversation="a")
        await second.last_entry()
        await (await it.start(conversation="b")).last_entry()
        assert [record.id for record in await it.runs.list(user="ann", conversation="a")] == [second.id, first.id]
        assert len(await it.runs.list(user="ann", limit=2)) == 2


# --- calls that wait --------------------------------------------------------------------------------------------------


@also_durable("postgres")
async def test_an_answer_resumes_the_conversation(place: Open, workshop: Workshop) -> None:
    """A run that waits ends; the answer is a new run. The same answer again gives that run, and runs nothing twice."""
    async with place([call("erase", call_id="e", name="draft"), "It is gone."]) as it:
        asked = await it.start("Erase the draft.")
        assert (await asked.last_entry()).fields["response"]["stop"] == "waiting"
        answered = await asked.answer({"e": True})
        assert (await answered.last_entry()).fields["response"]["text"] == "It is gone."
        again = await asked.answer({"e": True})
        assert again.id == answered.id
        assert workshop.erased == ["draft"]


@pytest.mark.processes
@pytest.mark.parametrize("message", [None, "Never mind."])
@also_durable("postgres")
async def test_a_run_that_was_answered_waits_no_more(place: Open, message: str | None) -> None:
    """Its record has the status "waiting" until the next run of the conversation answers its calls, or closes them."""
    async with place([call("erase", call_id="e", name="draft"), "It is gone."]) as it:
        asked = await it.start("Erase the draft.")
        await asked.last_entry()
        record = await it.runs.get(asked.id, user="ann")
        assert (record.status, record.reason, record.state) == ("waiting", "waiting", "waiting")
        assert (asked.record.status, asked.record.state) == ("waiting", "waiting")
        next_run = await (asked.answer({"e": True}) if message is None else it.start(message))
        assert (await it.runs.get(asked.id, user="ann")).state == "finished (continued)"
        await next_run.last_entry()
        assert [each.reason for each in await it.runs.list(user="ann")] == [None, "continued"]
        assert (await asked.last_entry()).response["stop"] == "waiting"  # what has happened


@pytest.mark.parametrize("own", [False, True])
@also_durable("sqlite")
async def test_settings_and_notes_outlive_a_question(place: Open, own: bool) -> None:
    """The run that answers continues with those of the run that waits, unless it has its own. Later runs do not have them."""
    requests: list[Any] = []

    def script(request: Any) -> Any:
        requests.append(request.body)
        return call("erase", call_id="e", name="draft") if len(requests) == 1 else "It is gone."

    def notes(text: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": text}]

    async with place(script) as it:
        asked = await it.start("Erase the draft.", settings={"temperature": 0.1}, notes=notes("Page 1"))
        await asked.last_entry()
        if own:
            answer = CallAnswer("e", run_id=asked.id, approve=True)
            new = NewRun("ann", "c", answers=[answer], settings={"temperature": 0.2}, notes=notes("Page 2"))
            answered = Run(it.runs, await it.runs.start(new))
        else:
            answered = await asked.answer({"e": True})
        await answered.last_entry()
        await (await it.start("Thanks.")).last_entry()
        assert "Page" not in str(await it.history())
    told = [[each["content"] for each in body["messages"] if "Page" in str(each["content"])] for body in requests]
    assert told == [["Page 1"], ["Page 2" if own else "Page 1"], []]
    assert [body.get("temperature") for body in requests] == [0.1, 0.2 if own else 0.1, None]


@also_durable("sqlite")
async def test_a_waiting_run_that_is_cancelled_has_closed_calls(place: Open, workshop: Workshop) -> None:
    """They did not run, and a later answer is refused. A second cancel changes nothing, and the conversation goes on."""
    async with place([call("erase", call_id="e", name="draft"), "As you like."]) as it:
        asked = await it.start("Erase the draft.")
        await asked.last_entry()
        assert (await asked.cancel("too late")).state == "stopped (too late)"
        assert (await asked.cancel()).reason == "too late"
        assert ((await asked.last_entry()).type, (await asked.result()).stop) == ("RunStopped", "cancelled")
        for decisions in ({"e": True}, {"e": False}):
            with pytest.raises(AnswersRefused, match="does not wait for an answer") as refused:
                await asked.answer(decisions)
            assert (refused.value.code, refused.value.status_code) == ("call_not_open", 409)
        again = await it.start("Never mind.")
        assert (await again.result()).text == "As you like."
        assert "not run: interrupted" in [message["content"] for message in await it.history()]
        assert workshop.erased == []


async def test_a_decision_about_other_arguments_is_refused(place: Open, workshop: Workshop) -> None:
    """`expected` has the arguments that the user has seen. With other arguments, nothing starts."""
    async with place([call("erase", call_id="e", name="draft"), "It is gone."]) as it:
        asked = await it.start("Erase the draft.")
        await asked.last_entry()
        for decision in (Approve(expected={"name": "note"}), {"approve": {"expected": {"name": "note"}}}):
            with pytest.raises(
                AnswersRefused, match=r"was made for the arguments .*note.*, but the call has .*draft"
            ) as refused:
                await asked.answer({"e": decision})
            assert (refused.value.code, refused.value.status_code) == ("arguments_changed", 409)
        assert len(await it.runs.list(user="ann")) == 1
        answered = await asked.answer({"e": Approve(expected={"name": "draft"})})
        assert (await answered.last_entry()).fields["response"]["text"] == "It is gone."
        assert workshop.erased == ["draft"]


async def test_a_decision_may_be_the_result_of_the_call(place: Open, workshop: Workshop) -> None:
    """A str, as for `resume=`: the function does not run. The key of a decision may be the index of the call."""
    async with place([call("erase", call_id="e", name="draft"), "It is gone."]) as it:
        asked = await it.start("Erase the draft.")
        await asked.last_entry()
        await (await asked.answer({0: "erased by hand"})).last_entry()
        assert [message["content"] for message in await it.history() if message["role"] == "tool"] == ["erased by hand"]
        assert workshop.erased == []


@also_durable("sqlite")
async def test_an_answer_that_is_sent_again_gets_the_active_run(place: Open, workshop: Workshop) -> None:
    """A second click while the run of the first one goes on."""
    async with place([call("erase", call_id="e", name="draft"), call("slow"), "It is gone."]) as it:
        asked = await it.start("Erase the draft.")
        await asked.last_entry()
        answered = await asked.answer({"e": True})
        await workshop.began.wait()
        assert (await asked.answer({"e": True})).id == answered.id
        with pytest.raises(RunActive):
            await asked.answer({"e": False})
        workshop.go.set()
        await answered.last_entry()
        assert workshop.erased == ["draft"]


@also_durable("sqlite")
async def test_an_answer_must_fit(place: Open, workshop: Workshop) -> None:
    """Unknown calls, missing answers and unknown conversations are refused before anything begins."""
    async with place([[call("erase", call_id="1", name="a"), call("erase", call_id="2", name="b")]]) as it:
        asked = await it.start("Erase both.")
        await asked.last_entry()
        for call_id, status in [("9", 409), ("1", 422)]:
            with pytest.raises(AnswersRefused) as refused:
                await asked.answer({call_id: True})
            assert refused.value.status_code == status
        with pytest.raises(ConversationNotFound):
            await it.runs.start(NewRun("ann", "none", answers=[CallAnswer("1", approve=True)]))
        assert workshop.erased == []
        assert len(await it.runs.list(user="ann")) == 1


async def test_a_new_message_leaves_open_calls_behind(place: Open, workshop: Workshop) -> None:
    """A message in place of an answer: the call is told as not run, and the log says so too."""
    async with place([call("erase", call_id="e", name="draft"), "As you like."]) as it:
        await (await it.start("Erase the draft.")).last_entry()
        run = await it.start("Never mind.")
        folded = fold(await entries_of(run))
        assert (await it.history())[2:] == folded.messages
        assert "not run" in folded.messages[0]["content"]
        assert workshop.erased == []


# --- what is refused --------------------------------------------------------------------------------------------------


@also_durable("sqlite")
async def test_what_cannot_begin_leaves_nothing(place: Open) -> None:
    """An unknown agent, ids that no store takes, and a run without a message are errors of the caller."""
    async with place() as it:
        with pytest.raises(AgentNotFound):
            await it.start(agent="Nobody")
        for name in ("x" * 201, "", "a/b"):
            with pytest.raises(InvalidRequest):
                await it.start(conversation=name)
        with pytest.raises(ConfigurationError):
            NewRun("ann", "c")
        with pytest.raises(ConfigurationError):
            NewRun("ann", answers=[CallAnswer("1")])
        assert await it.runs.list(user="ann") == []


@also_durable("sqlite", "postgres")
async def test_a_run_may_have_no_conversation(place: Open) -> None:
    """Its messages are its whole history, and two of them run at the same time."""
    async with place(["One.", "Two."]) as it:
        first = await it.start(conversation=None)
        second = await it.start(conversation=None)
        assert {(await run.last_entry()).fields["response"]["text"] for run in (first, second)} == {"One.", "Two."}


@also_durable("postgres")
async def test_the_runs_of_a_conversation_can_be_forgotten(place: Open, workshop: Workshop) -> None:
    """Not while one runs; afterwards their logs are gone."""
    async with place([call("slow"), "Done."]) as it:
        run = await it.start()
        await workshop.began.wait()
        with pytest.raises(RunActive):
            await it.runs.forget("c", user="ann")
        workshop.go.set()
        await run.last_entry()
        await it.runs.forget("c", user="ann")
        with pytest.raises(RunNotFound):
            await run.read()
        with pytest.raises(RunNotFound):
            await run.last_entry()


# --- readers that leave -----------------------------------------------------------------------------------------------


async def test_a_run_may_end_with_its_last_reader(place: Open, workshop: Workshop) -> None:
    """With "cancel" the run is stopped when the last of two readers has gone."""
    async with place([call("slow")]) as it:
        run = await it.start(on_disconnect="cancel")
        await workshop.began.wait()
        with run._reading():
            with run._reading():
                pass
            await anyio.sleep(0.05)
            assert (await it.runs.get(run.id, user="ann")).is_running
        last = await run.last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "no_reader")


async def test_a_run_may_wait_for_a_reader_for_some_seconds(place: Open, workshop: Workshop) -> None:
    """With a number it is stopped after so many seconds without a reader; one that comes back in time keeps it."""
    async with place([call("slow"), call("slow")]) as it:
        kept = await it.start(conversation="kept", on_disconnect=3600)
        stopped = await it.start(on_disconnect=0.2)
        with kept._reading():
            await workshop.began.wait()
        last = await stopped.last_entry()
        assert last.fields["reason"] == "no_reader"
        with kept._reading():
            assert (await it.runs.get(kept.id, user="ann")).is_running


async def test_a_run_goes_on_without_readers_by_default(place: Open, workshop: Workshop) -> None:
    """With "finish" a reader that leaves changes nothing."""
    async with place([call("slow"), "Done."]) as it:
        run = await it.start()
        with run._reading():
            await workshop.began.wait()
        workshop.go.set()
        assert (await run.last_entry()).type == "RunFinished"


# --- the end of the process -------------------------------------------------------------------------------------------


@also_durable("sqlite")
async def test_draining_starts_nothing_and_stops_what_takes_too_long(place: Open, workshop: Workshop) -> None:
    """A new run is refused; one that does not end in time is stopped and kept, or left; a reader that leaves is not gone."""
    async with place([call("slow")]) as it:
        run = await it.start(on_disconnect="cancel")
        await workshop.began.wait()
        async with anyio.create_task_group() as group:
            with run._reading():
                group.start_soon(it.runs.drain, 0.2)
                await anyio.wait_all_tasks_blocked()
                assert run._draining.is_set
            with pytest.raises(ShuttingDown):
                await it.start(conversation="other")
        if it.hands_back:
            assert (await it.runs.get(run.id, user="ann")).is_running
            return
        last = await run.last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "shutdown")
        assert "unknown" in (await it.history())[-1]["content"]


@pytest.mark.parametrize("while_running", ["wait", "replace"])
@also_durable("postgres")
async def test_draining_refuses_a_message_that_waits(place: Open, workshop: Workshop, while_running: str) -> None:
    """It waits for the active run, which draining stops; then it begins no run."""
    async with place([call("slow"), "Yes."]) as it:
        run = await it.start()
        await workshop.began.wait()
        refused: list[ShuttingDown] = []

        async def ask() -> None:
            try:
                await it.start("Are you there?", while_running=while_running)
            except ShuttingDown as error:
                refused.append(error)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                if while_running == "wait":
                    await until_a_message_waits(it)
                await it.runs.drain(0)
        assert len(refused) == 1
        assert [record.id for record in await it.runs.list(user="ann")] == [run.id]


async def test_draining_waits_for_runs_that_end(place: Open, workshop: Workshop) -> None:
    """A run that ends in time is whole."""
    async with place([call("slow"), "Done."]) as it:
        run = await it.start()
        await workshop.began.wait()
        workshop.go.set()
        await it.runs.drain(10)
        assert (await run.last_entry()).type == "RunFinished"
