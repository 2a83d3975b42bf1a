"""What a program does with durable runs, in one process."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from dbos import DBOS

from aswarm import Agent, Approve, AsyncSwarm, ConfigurationError, Decision, Deny, Hold, RunError, current_call
from aswarm import Answer as AnswerOf
from aswarm._record import log
from aswarm.batch import Item
from aswarm.durable import DurableRuns
from aswarm.runs import AnswersRefused, KeyReused, NewRun, RunActive, RunNotFound, RunRecord, fold
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, call
from tests.support.durable.durables import Shop, die, durable

pytestmark = pytest.mark.asyncio


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.heavy
async def test_a_run_has_a_result(tmp_path: Path, shop: Shop) -> None:
    """The response is that of a run without durability: messages, agent, context variables, usage, stop."""
    script = [[call("count", number=1), call("count", number=2)], call("transfer_to_clerk"), "All is well."]
    async with durable(tmp_path, script, shop) as runs:
        run = await runs.start("Boss", "Hi!", {"user": "ann"}, run_id="ticket-17")
        response = await run.result()
    plain = await _plain(script)
    assert response.messages == plain.messages
    assert response.agent.name == "Clerk"
    assert response.context_variables == plain.context_variables == {"user": "ann", "counted": [1, 2]}
    assert (response.stop, response.run_id, response.text) == ("answer", "ticket-17", "All is well.")
    assert response.usage == plain.usage


async def _plain(script: Any) -> Any:
    shop = Shop()
    async with AsyncSwarm(ScriptedModel(script, cut=4).client()) as swarm:
        return await swarm.run(shop.agents()[0], "Hi!", {"user": "ann"})


@pytest.mark.heavy
async def test_starting_again_gives_the_same_run(tmp_path: Path, shop: Shop) -> None:
    """The id of a run makes `start` idempotent; for something else it is refused."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        first = await runs.start("Boss", "Hi!", run_id="r")
        again = await runs.start("Boss", "Hi!", run_id="r")
        assert (await first.result()).text == (await again.result()).text == "Hello."
        with pytest.raises(KeyReused):
            await runs.start("Boss", "Something else", run_id="r")


@pytest.mark.heavy
async def test_events_come_live_and_again(tmp_path: Path, shop: Shop) -> None:
    """A reader gets all entries, or those after a number."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        run = await runs.start("Boss", "Hi!")
        live = [entry async for entry in run.entries()]
        assert live[0].type == "RunStarted"
        assert [entry async for entry in run.entries(after=0)] == live[1:]
        found = await runs.get_run(run.id)
        assert [entry async for entry in found.entries()] == live


@pytest.mark.heavy
async def test_a_run_waits_for_an_answer(tmp_path: Path, shop: Shop) -> None:
    """It is over and holds no task; the answer continues it, in another process, and the same answer again does nothing."""
    async with durable(tmp_path, [[call("pay", call_id="p", amount=5)]], shop) as runs:
        asked = await runs.start("Boss", "Pay!", run_id="a")
        response = await asked.result()
        assert (response.stop, [each.id for each in response.waiting]) == ("waiting", ["p"])
        assert not runs._live
    async with durable(tmp_path, ["Paid."], shop) as runs:
        found = await runs.get_run("a")
        answered = await found.answer({"p": True})
        assert (await answered.result()).text == "Paid."
        assert (await found.answer({"p": True})).id == answered.id
    assert shop.keys["pay"] == [f"{answered.id}:0:0"]


async def test_another_answer_is_refused(tmp_path: Path, shop: Shop) -> None:
    """While the run that continues goes on, as afterwards. A run that has not ended itself is active instead."""
    async with durable(tmp_path, [call("pay", call_id="p", amount=5), call("slow"), "Paid."], shop) as runs:
        asked = await runs.start("Boss", "Pay!", run_id="a")
        await asked.wait()
        answered = await asked.answer({"p": True})
        await shop.began.wait()
        assert (await asked.answer({"p": True})).id == answered.id
        with pytest.raises(AnswersRefused, match=answered.id) as refused:
            await asked.answer({"p": False})
        assert (refused.value.code, refused.value.status_code) == ("call_not_open", 409)
        with pytest.raises(RunActive):
            await answered.answer({"p": True})
        shop.go.set()
        await answered.wait()
        with pytest.raises(AnswersRefused):
            await asked.answer({"p": False})
    assert len(shop.keys["pay"]) == 1


@pytest.mark.heavy
async def test_a_run_says_what_it_is(tmp_path: Path, shop: Shop) -> None:
    """Its repr has the id and the status, and whether it waits in the queue; so has the record for clients."""
    async with durable(tmp_path, ["Hello."], shop, concurrency=0) as client:
        run = await client.start("Boss", "Hi!", run_id="ticket-17")
        assert repr(run) == "<DurableRun 'ticket-17': running (queued)>"
        assert repr(await client.get_run("ticket-17")) == repr(run)
        assert run.record.status == "running"
        assert run.record.to_dict()["is_queued"] is True
        async with durable(tmp_path, ["Hello."], shop):
            record = await run.wait()
        assert repr(run) == "<DurableRun 'ticket-17': finished>"
        assert "is_queued" not in record.to_dict()


@pytest.mark.heavy
async def test_calls_of_several_runs_may_have_one_id(tmp_path: Path, shop: Shop) -> None:
    """As models of some servers number them: an answer is for the call of its run, and a late one is refused."""
    script = [call("pay", call_id="call_1", amount=1), call("pay", call_id="call_1", amount=2), "Paid."]
    async with durable(tmp_path, script, shop) as runs:
        first = await runs.start("Boss", "Pay!", run_id="a")
        await first.wait()
        second = await first.answer({"call_1": True})
        assert (await second.result()).stop == "waiting"
        assert (await first.answer({"call_1": True})).id == second.id
        with pytest.raises(AnswersRefused, match="does not wait for an answer"):
            await first.answer({"call_1": False})
        third = await second.answer({"call_1": True})
        assert (await third.result()).text == "Paid."
        with pytest.raises(AnswersRefused):
            await first.answer({"call_1": True})
    assert shop.keys["pay"] == [f"{second.id}:0:0", f"{third.id}:0:0"]


async def test_an_answer_may_deny(tmp_path: Path, shop: Shop) -> None:
    """The function does not run, and a value that is no decision is refused."""
    async with durable(tmp_path, [[call("pay", call_id="p", amount=5)], "As you like."], shop) as runs:
        asked = await runs.start("Boss", "Pay!")
        await asked.wait()
        with pytest.raises(ConfigurationError, match="a decision is True, False"):
            await asked.answer({"p": {"denied": "too much"}})
        with pytest.raises(ConfigurationError, match=r"needs a dict of decisions by call id, such as .*, not True"):
            await asked.answer(True)  # type: ignore[arg-type]
        assert (await (await asked.answer({"p": Deny("too much")})).result()).text == "As you like."
    assert "pay" not in shop.keys


async def test_an_answer_may_have_data(tmp_path: Path, shop: Shop) -> None:
    """New arguments for the call; and the answer to a question."""
    script = [call("pay", call_id="p", amount=5), call("ask", call_id="q"), "Paid."]

    async def ask() -> str:
        """Ask."""
        if current_call().answer is None:
            raise Hold("Which account?")
        return f"took {current_call().answer}"

    agents = [Agent(name="Boss", functions=[*shop.agents()[0].functions, ask])]
    async with durable(tmp_path, script, shop, agents=agents) as runs:
        first = await runs.start("Boss", "Pay!")
        await first.wait()
        second = await first.answer({"p": Approve({"amount": 3})})
        assert (await second.result()).messages[0]["content"].endswith("paid 3")
        third = await second.answer({"q": AnswerOf("mine")})
        assert (await third.result()).messages[0]["content"] == "took mine"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("decision", "tool_messages"),
    [
        ("Paid by hand.", ["Paid by hand."]),
        ({"deny": "no"}, ["not run: denied by the user: no"]),
        ({"approve": True}, ["paid 5"]),
    ],
)
async def test_an_answer_takes_each_form_of_a_decision(
    tmp_path: Path, shop: Shop, decision: Decision, tool_messages: list[str]
) -> None:
    """A str is the result of the call, and a mapping is the JSON form, as for `resume=`. A key may be the index of the call."""
    async with durable(tmp_path, [[call("pay", call_id="p", amount=5)], "Well."], shop) as runs:
        asked = await runs.start("Boss", "Pay!")
        await asked.wait()
        response = await (await asked.answer({0: decision})).result()
        assert [message["content"] for message in response.messages if message["role"] == "tool"] == tool_messages


@pytest.mark.heavy
async def test_a_decision_about_other_arguments_is_refused(tmp_path: Path, shop: Shop) -> None:
    """`expected` has the arguments that the user has seen. With other arguments nothing starts; the text is that of `resume=`."""
    async with durable(tmp_path, [[call("pay", call_id="p", amount=5)], "Paid."], shop) as runs:
        asked = await runs.start("Boss", "Pay!")
        await asked.wait()
        with pytest.raises(
            AnswersRefused, match=r"was made for the arguments .*4.*, but the call has .*5.*; show the user"
        ):
            await asked.answer({"p": Approve(expected={"amount": 4})})
        assert "pay" not in shop.keys
        answered = await asked.answer({"p": {"approve": {"expected": {"amount": 5}}}})
        assert (await answered.result()).text == "Paid."


@pytest.mark.heavy
async def test_a_failure_is_raised_with_what_was_there(tmp_path: Path, shop: Shop) -> None:
    """`result` raises RunError with the text of the error and the response so far."""
    async with durable(tmp_path, [call("count", number=1), Failure(400, "broken")], shop) as runs:
        run = await runs.start("Boss", "Hi!")
        with pytest.raises(RunError, match="broken") as raised:
            await run.result()
    assert raised.value.response is not None
    assert raised.value.response.messages[-1]["content"] == "counted 1"


@pytest.mark.heavy
async def test_an_agent_may_stand_for_its_name(tmp_path: Path, shop: Shop) -> None:
    """`start` uses the name of the agent. The runs must have an agent with this name."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        run = await runs.start(shop.agents()[0], "Hi!")
        assert (await run.result()).text == "Hello."
        with pytest.raises(ConfigurationError, match=r"do not have the agent 'Other'; add it to agents="):
            await runs.start(Agent(name="Other"), "Hi!")


@pytest.mark.parametrize(
    ("store", "text"),
    [
        ("runs.db", r"not 'runs\.db'; for this file, use sqlite:///runs\.db"),
        (Path("runs.db"), r"not PosixPath\('runs\.db'\); for this file, use sqlite:///runs\.db"),
        ("mysql://ann:s3cret@host/runs", "not 'mysql'"),
    ],
)
async def test_a_store_is_a_url(store: Any, text: str) -> None:
    """For a path, the error has the URL. It does not repeat a password."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        DurableRuns(AsyncSwarm(), agents=Agent(), store=store, version="1")
    assert "s3cret" not in str(caught.value)


@pytest.mark.heavy
async def test_a_run_can_be_cancelled(tmp_path: Path, shop: Shop) -> None:
    """The call that was cut is told as unknown."""
    async with durable(tmp_path, [call("slow")], shop) as runs:
        run = await runs.start("Boss", "Hi!")
        await shop.began.wait()
        record = await run.cancel()
        assert (record.status, record.reason) == ("stopped", "cancelled")
        response = await run.result()
        assert (response.stop, [each.name for each in response.unknown_calls]) == ("cancelled", ["slow"])


@pytest.mark.heavy
async def test_a_run_in_the_queue_can_be_cancelled(tmp_path: Path, shop: Shop) -> None:
    """It never begins; an operator finds both runs, and those with one status."""
    async with durable(tmp_path, [call("slow"), "Done."], shop, concurrency=1) as runs:
        first = await runs.start("Boss", "Hi!", run_id="1")
        await shop.began.wait()
        second = await runs.start("Boss", "Hi!", run_id="2")
        assert (await second.cancel()).status == "stopped"
        assert (await second.result()).messages == []
        assert (await second.last_entry()).fields["message"] == "The run was cancelled."
        assert [record.id for record in await runs.records()] == ["2", "1"]
        assert [record.id for record in await runs.records(status="stopped")] == ["2"]
        shop.go.set()
        assert (await first.result()).text == "Done."
        assert (await runs.find_run("2")).record.reason == "cancelled"


async def test_a_run_of_another_process_is_cancelled_and_read(tmp_path: Path, shop: Shop) -> None:
    """A client of the same database, which executes nothing, reads the entries and stops the run."""
    async with durable(tmp_path, [call("slow")], shop) as runs, durable(tmp_path, [], shop, concurrency=0) as client:
        await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
        found = await client.get_run("r")
        types = []
        async for entry in found.entries():
            types.append(entry.type)
            if entry.type == "ToolCallStarted":
                break
        assert types[0] == "RunStarted"
        assert (await found.cancel("enough")).reason == "enough"
        assert (await client.find_run("r")).record.reason == "enough"


@pytest.mark.heavy
async def test_a_client_starts_what_others_execute(tmp_path: Path, shop: Shop) -> None:
    """A process with concurrency=0 puts runs into the queue, and waits for their results."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        run = await client.start("Boss", "Hi!", run_id="r")
        async with durable(tmp_path, ["Hello."], shop):
            assert (await run.result()).text == "Hello."


async def test_the_runs_of_all_processes_together_are_limited(tmp_path: Path, shop: Shop) -> None:
    """The limit is in the database: a process that gives none keeps it, and math.inf takes it away."""
    async with durable(tmp_path, [], shop, concurrency=0, global_concurrency=1):
        pass
    async with durable(tmp_path, [call("slow")] * 2 + ["Done."] * 2, shop, concurrency=5) as runs:
        started = [await runs.start("Boss", "Hi!") for _ in range(2)]
        with anyio.fail_after(60):
            await shop.began.wait()
            await anyio.sleep(0.2)
            assert len(shop.keys["slow"]) == 1
            shop.go.set()
            assert [(await run.result()).text for run in started] == ["Done.", "Done."]
    shop.go = anyio.Event()
    async with durable(tmp_path, [call("slow")] * 2, shop, concurrency=5, global_concurrency=math.inf) as runs:
        for _ in range(2):
            await runs.start("Boss", "Hi!")
        with anyio.fail_after(60):
            while len(shop.keys["slow"]) < 4:
                await anyio.sleep(0.01)


@pytest.mark.heavy
async def test_so_many_runs_begin_in_some_seconds(tmp_path: Path, shop: Shop) -> None:
    """In all processes together. A later one begins when the time has passed, though nothing else happens."""
    async with durable(tmp_path, ["1", "2", "3"], shop, starts_per=(2, 0.3)) as runs:
        began = anyio.current_time()
        started = [await runs.start("Boss", "Hi!") for _ in range(3)]
        with anyio.fail_after(60):
            assert {(await run.result()).text for run in started} == {"1", "2", "3"}
        assert anyio.current_time() - began > 0.25


@pytest.mark.parametrize("starts", [(0, 60), (-1, 60), (5, -1), (math.nan, 1), (5, math.inf)], ids=str)
async def test_a_limit_of_starts_must_let_runs_begin(starts: tuple[float, float], shop: Shop) -> None:
    """It would be kept in the database, for all processes."""
    swarm = AsyncSwarm(ScriptedModel([]).client())
    with pytest.raises(ConfigurationError, match="starts_per"):
        DurableRuns(swarm, agents=shop.agents(), store="sqlite:///runs.db", version="1", starts_per=starts)


@pytest.mark.heavy
async def test_a_process_claims_what_it_has_room_for(tmp_path: Path, shop: Shop) -> None:
    """The others stay in the queue, where another process finds them."""
    async with durable(tmp_path, [call("slow"), "1", "2"], shop, concurrency=1) as runs:
        first, second = [await runs.start("Boss", "Hi!", run_id=run_id) for run_id in ("1", "2")]
        with anyio.fail_after(60):
            await shop.began.wait()
            async with durable(tmp_path, [], shop, concurrency=0) as other:
                assert [record.id for record in await other.records(status="queued")] == ["2"]
            shop.go.set()
            assert {(await run.result()).text for run in (first, second)} == {"1", "2"}


async def test_a_run_keeps_its_version_when_it_is_taken_over(tmp_path: Path, shop: Shop) -> None:
    """A process of another version returns the run of the dead one to the queue, and leaves it there."""
    async with durable(tmp_path, [call("look")], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    dead = runs._settings.executor
    shop.go.set()
    async with durable(tmp_path, [], shop, version="2") as runs:
        with anyio.fail_after(60):
            while await runs._engine.orphans(dead):
                await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        assert (await runs.find_run("r")).record.is_running
        assert [record.id for record in await runs.records(status="unreachable")] == ["r"]
    async with durable(tmp_path, ScriptedModel(lambda request: "Seen."), shop) as runs:
        assert (await (await runs.get_run("r")).result()).text == "Seen."


@pytest.mark.heavy
async def test_settings_and_notes_outlive_the_process(tmp_path: Path, shop: Shop) -> None:
    """The process that takes a run over sends them with its requests, and so does the run that answers a question."""
    note, bodies = {"role": "user", "content": "The page shows order 7."}, list[Any]()

    def said(request: Any) -> Any:
        bodies.append(request.body)
        return call("pay", call_id="p", amount=5) if len(bodies) == 1 else "Paid."

    async with durable(tmp_path, [call("look")], shop) as runs:
        new = NewRun("ann", "c", "Pay!", run_id="r", settings={"temperature": 0.1}, notes=[note])
        await runs.start(new)
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    shop.go.set()
    async with durable(tmp_path, ScriptedModel(said), shop) as runs:
        asked = await runs.get_run("r", user="ann")
        assert (await asked.result()).stop == "waiting"
        assert (await (await asked.answer({"p": True})).result()).text == "Paid."
    assert [body["temperature"] for body in bodies] == [0.1, 0.1]
    assert all(note in body["messages"] for body in bodies)


async def test_a_batch_is_a_map(tmp_path: Path, shop: Shop) -> None:
    """Each item is a run with an id of its own; the second call finds the results, and asks no model."""
    model = ScriptedModel(lambda request: ScriptedAnswer(request.body["messages"][-1]["content"].upper()))
    items = ["a", "b", "c"]
    for script in (model, []):
        async with durable(tmp_path, script, shop) as runs:
            found = {
                run.id: (await run.result()).text
                async for run in runs.map("Boss", items, run_ids=lambda at: f"item-{at}", concurrency=2)
            }
            assert found == {"item-0": "A", "item-1": "B", "item-2": "C"}


@pytest.mark.heavy
async def test_a_map_does_not_wait_for_its_items(tmp_path: Path, shop: Shop) -> None:
    """A run that has ended is yielded while the source of the items waits for the next one. An item may name its agent."""
    more = anyio.Event()

    async def items() -> AsyncGenerator[Item]:
        yield Item("a", id="first", agent=shop.agents()[1])
        await more.wait()

    async with durable(tmp_path, ["A"], shop) as runs:
        async for run in runs.map("Boss", items()):
            assert (run.id, run.record.agent) == ("first", "Clerk")
            more.set()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("item", "settings", "text"),
    [
        (Item("a"), {}, "needs an id"),
        (Item("a", id=1, resume=True), {}, "answer()"),
        (Item("a", id=1), {"concurrency": 0}, "at least 1"),
    ],
    ids=str,
)
async def test_what_a_map_cannot_run(tmp_path: Path, shop: Shop, item: Item, settings: Any, text: str) -> None:
    """It says what to do."""
    async with durable(tmp_path, [], shop) as runs:
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            await anext(runs.map("Boss", [item], **settings))


async def test_old_runs_are_deleted(tmp_path: Path, shop: Shop) -> None:
    """`purge` deletes the logs of runs that have ended, and the rows of DBOS, and leaves the others."""
    async with durable(tmp_path, ["Hello.", call("slow"), "Done."], shop) as runs:
        await (await runs.start("Boss", "Hi!", run_id="old")).result()
        await runs.start("Boss", "Hi!", run_id="now")
        await shop.began.wait()
        assert await runs.purge(older_than_seconds=3600) == 0
        assert await runs.purge(older_than_seconds=0) == 1
        assert [each.workflow_id for each in await DBOS.list_workflows_async()] == ["now"]
        with pytest.raises(RunNotFound):
            await runs.get_run("old")
        shop.go.set()
        assert (await (await runs.get_run("now")).result()).text == "Done."
        await runs.forget("now", user="-")
        assert await runs.records() == []
        assert await DBOS.list_workflows_async() == []


async def test_a_cancel_that_meets_the_start_of_its_run_waits_for_its_function(tmp_path: Path, shop: Shop) -> None:
    """The run was in the queue when `cancel` read it, and a process executes it since. So it is not taken from this process."""
    ended = anyio.Event()

    async def work() -> str:
        """Work."""
        shop.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            ended.set()

    agents = [Agent(name="Boss", functions=[work])]
    async with durable(tmp_path, [call("work")], shop, agents=agents) as runs:
        read = runs.get

        async def read_before_the_start(run_id: str, *, user: str) -> RunRecord:
            record = await read(run_id, user=user)
            await shop.began.wait()
            return record

        run = await runs.start("Boss", "Go!", run_id="a")
        assert run.record.is_queued
        runs.get = read_before_the_start  # type: ignore[method-assign]
        record = await run.cancel()
        assert ended.is_set()
        assert (record.status, record.reason) == ("stopped", "cancelled")
        row = await runs._database.submit(lambda: log.find("a", None), reads_only=True)
        assert row is not None
        assert (row.attempt, row.deaths) == (1, 0)


@pytest.mark.heavy
async def test_a_run_that_waits_can_be_stopped(tmp_path: Path, shop: Shop) -> None:
    """Its calls are closed as by a new message, so a later answer is refused; the log and the conversation say the same."""
    calls = [call("count", number=1), call("pay", call_id="p", amount=5), call("pay", call_id="q", amount=6)]
    async with durable(tmp_path, [calls, "As you like."], shop) as runs:
        asked = await runs.start("Boss", "Pay!", run_id="a")
        await asked.wait()
        assert [record.id for record in await runs.records(status="waiting")] == ["a"]
        await asked.cancel("too late")
        response = await asked.result()
        assert (response.stop, response.waiting) == ("cancelled", [])
        assert [message.get("content") for message in response.messages][1:] == [
            "counted 1", "not run: interrupted", "not run: interrupted"
        ]  # fmt: skip
        record = (await runs.get_run("a")).record
        assert (record.status, record.reason) == ("stopped", "too late")
        assert await runs.records(status="waiting") == []
        assert (await asked.cancel()).reason == "too late"
        with pytest.raises(AnswersRefused, match="does not wait for an answer"):
            await asked.answer({"p": True, "q": True})
        stored = await runs.store.load("-/a")
        assert stored is not None
        assert stored.messages[1:] == response.messages
        assert fold([entry async for entry in asked.entries()]).response_messages == response.messages
        more = await runs.start("Boss", "Never mind.", conversation="a")
        assert (await more.result()).text == "As you like."
    assert "pay" not in shop.keys


@pytest.mark.heavy
async def test_a_run_that_was_answered_is_not_stopped(tmp_path: Path, shop: Shop) -> None:
    """Whichever of both comes first wins, also if the conversation changes in between; a deleted one is not made again."""
    waits = call("pay", call_id="p", amount=5)
    script = [waits, "Paid.", waits, waits]
    async with durable(tmp_path, script, shop) as runs:
        asked = await runs.start("Boss", "Pay!", run_id="a")
        await asked.wait()
        recorded = runs._recorded

        async def overtaken(run_id: str) -> Any:
            runs._recorded = recorded  # type: ignore[method-assign]
            await (await asked.answer({"p": True})).wait()
            return await recorded(run_id)

        runs._recorded = overtaken  # type: ignore[method-assign]
        await asked.cancel()
        assert (await runs.get_run("a")).record.status == "finished"
        assert len(shop.keys["pay"]) == 1
        other = await runs.start("Boss", "Pay!", run_id="b")
        await other.wait()
        await runs.store.delete("-/b")
        await other.cancel()
        assert (await runs.get_run("b")).record.status == "stopped"
        assert await runs.store.load("-/b") is None
        alone = await runs.start(NewRun("-", messages=[{"role": "user", "content": "Pay!"}]))
        await (await runs.get_run(alone.id)).wait()
        assert (await (await runs.get_run(alone.id)).cancel()).reason == "cancelled"
        assert (await asked.result()).stop == "waiting"


@pytest.mark.heavy
async def test_a_run_that_waits_is_not_purged(tmp_path: Path, shop: Shop) -> None:
    """It is deleted once it was answered, with the conversation that it had begun, when no run of that is left."""
    async with durable(tmp_path, [call("pay", call_id="p", amount=5), call("slow"), "Paid."], shop) as runs:
        asked = await runs.start("Boss", "Pay!", run_id="a")
        await asked.wait()
        assert await runs.purge(older_than_seconds=0) == 0
        answered = await asked.answer({"p": True})
        with anyio.fail_after(60):
            await shop.began.wait()
        assert await runs.purge(older_than_seconds=0) == 0
        shop.go.set()
        await answered.wait()
        assert await runs.store.load("-/a") is not None
        assert await runs.purge(older_than_seconds=0) == 2
        assert await runs.store.load("-/a") is None


async def test_a_conversation_continues(tmp_path: Path, shop: Shop) -> None:
    """Runs of one conversation have its history."""
    model = ScriptedModel(lambda request: ScriptedAnswer(str(len(request.body["messages"]))))
    async with durable(tmp_path, model, shop) as runs:
        first = await runs.start("Boss", "Hi!", user="ann", conversation="c")
        await first.result()
        second = await runs.start("Boss", "And?", user="ann", conversation="c")
        assert (await second.result()).text == "4"
        assert (await runs.get_run(second.id, user="ann")).conversation == "c"


@pytest.mark.heavy
async def test_context_variables_must_be_json(tmp_path: Path, shop: Shop) -> None:
    """Anything else is refused before a run begins, and leaves nothing."""
    async with durable(tmp_path, [], shop) as runs:
        with pytest.raises(ConfigurationError, match="context"):
            await runs.start("Boss", "Hi!", {"client": object()})
        assert await runs.records() == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"version": ""}, "version must be a text"),
        ({"concurrency": -1}, "concurrency must be"),
        ({"store": "runs.db"}, "store must be a URL"),
        ({"store": "sqlite:///"}, "need a file"),
        ({"store": "sqlite:///:memory:"}, "need a file"),
    ],
    ids=str,
)
async def test_settings_are_checked(settings: dict[str, Any], text: str) -> None:
    """A mistake is told when the object is made."""
    given: dict[str, Any] = {"agents": Agent(name="A"), "store": "sqlite:///runs.db", "version": "1", **settings}
    with pytest.raises(ConfigurationError, match=text):
        DurableRuns(AsyncSwarm(ScriptedModel([]).client()), **given)


async def test_there_is_one_in_a_process(tmp_path: Path, shop: Shop) -> None:
    """A second one is refused while the first is open; an object is not opened twice; both can be opened afterwards."""
    async with durable(tmp_path, [], shop) as runs:
        with pytest.raises(ConfigurationError, match="can have only one DBOS"):
            async with durable(tmp_path, [], shop):
                pass
        with pytest.raises(RuntimeError, match="already open"):
            await runs.__aenter__()
    async with durable(tmp_path, [], shop):
        pass
    with pytest.raises(RuntimeError, match="not open"):
        await runs.start("Boss", "Hi!")


async def test_the_event_loop_keeps_its_threads(tmp_path: Path, shop: Shop) -> None:
    """The engine has an executor of its own, and after it has ended the loop has a usable one."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        await (await runs.start("Boss", "Hi!")).result()
    assert await asyncio.to_thread(lambda: 7) == 7


@pytest.mark.heavy
async def test_other_versions_wait(tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A process of another version says how many runs wait for theirs, and does not execute them."""
    async with durable(tmp_path, [], shop, concurrency=0, version="1") as client:
        await client.start("Boss", "Hi!", run_id="r")
    with caplog.at_level(logging.WARNING, "aswarm"):
        async with durable(tmp_path, [], shop, version="2") as runs:
            assert "1 queued runs need the version '1' and the agent 'Boss'" in caplog.text
            await anyio.sleep(0.2)
            assert (await runs.get_run("r")).record.is_running
    async with durable(tmp_path, ["Hello."], shop, version="1") as runs:
        assert (await (await runs.get_run("r")).result()).text == "Hello."


@pytest.mark.heavy
async def test_a_run_waits_for_a_process_with_its_agent(tmp_path: Path, shop: Shop) -> None:
    """A process without it does not execute the run, and says who is missing where the result is read."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        run = await client.start("Boss", "Hi!", run_id="r")
        async with durable(tmp_path, ["Hello."], shop, agents=Agent(name="Other")) as runs:
            assert (await (await runs.start("Other", "Hi!")).result()).text == "Hello."
            with anyio.fail_after(60):
                while [record.id for record in await runs.records(status="unreachable")] != ["r"]:
                    await anyio.sleep(0.01)
            assert (await runs.find_run("r")).record.is_running
        async with durable(tmp_path, ["Hello."], shop):
            assert (await run.result()).text == "Hello."
    async with durable(tmp_path, ["Hello."], shop) as runs:
        await (await runs.start("Boss", "Hi!", run_id="2")).result()
    async with durable(tmp_path, [], shop, agents=Agent(name="Other")) as runs:
        with pytest.raises(ConfigurationError, match="ended with the agent 'Boss'"):
            await (await runs.find_run("2")).result()


@pytest.mark.heavy
async def test_what_runs_take_without_a_conversation(tmp_path: Path, shop: Shop) -> None:
    """A `NewRun` without one has its messages as its whole history."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        record = await runs.start(NewRun("ann", messages=[{"role": "user", "content": "Hi!"}]))
        assert (await (await runs.get_run(record.id, user="ann")).result()).text == "Hello."


@pytest.mark.heavy
@pytest.mark.asyncio
async def test_a_reader_that_came_before_the_execution_reads_the_run_as_it_goes(tmp_path: Path, shop: Shop) -> None:
    """The run is in the queue then. Its entries come while it goes on in this process, not at its end."""
    async with durable(tmp_path, [call("slow"), "Done."], shop) as runs:
        run = await runs.start("Boss", "Hi!")
        with anyio.fail_after(60):
            async for entry in run.entries():
                if entry.type == "ToolCallStarted":
                    shop.go.set()
