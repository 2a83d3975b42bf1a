"""The rights of a `Playground` over HTTP: the model of a run, and changes of the context variables by an operator."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aswarm import Agent, ConfigurationError
from aswarm.runs import show_everything
from aswarm.serve import Playground
from aswarm.testing import call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import Served, message_on, served, service

pytestmark = pytest.mark.asyncio

OPERATOR = Playground(models=["cheap", "large"], context_edits=True, questions=["What can you do?"])
RUNS = "/conversations/c/runs"


def an_edit(revision: str = "", remove: Any = (), **changes: Any) -> dict[str, Any]:
    """Return the body of a message with a change of the context."""
    return {"text": "Hi!", "context": {"set": changes, "remove": list(remove), "revision": revision}}


async def seen(it: Served) -> tuple[str, Any]:
    """Return the revision and the context variables of Ann's conversation."""
    conversation = (await it.ann.get("/conversations/c")).json()
    return conversation["revision"], conversation["context_variables"]


async def refused(it: Served, body: dict[str, Any], path: str = RUNS) -> tuple[int, str]:
    """Send a request of Ann's that is refused. Return the status and the code."""
    answer = await it.ann.post(path, json=body)
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_user_chooses_a_model_of_the_list() -> None:
    """The run uses it in place of the models of its agents, also after a handoff. The log has its name."""
    async with served([call("transfer_to_clerk"), "Hello.", "Again."], page=OPERATOR, show=show_everything) as it:
        run = await it.say(model="cheap")
        await it.ended(run)
        assert [request.body["model"] for request in it.model.requests] == ["cheap", "cheap"]
        entries = [entry async for entry in (await it.service.get_run(run, user="ann")).entries()]
        assert entries[0].to_dict()["model"] == "cheap"
        await it.ended(await it.say())
        assert it.model.requests[-1].body["model"] != "cheap"


async def test_an_answer_continues_with_the_model_of_its_run() -> None:
    """The model that the user has chosen for a run also answers after the approval, unless the user chooses another."""
    script = [call("erase", name="a"), "Done.", call("erase", name="b"), "Done."]
    async with served(script, page=OPERATOR) as it:
        for model, chosen in (("cheap", {}), ("cheap", {"model": "large"})):
            run = await it.say(model=model)
            waiting = (await it.ended(run))["result"]["response"]["waiting"]
            answer = {"call": waiting[0]["id"], "run": run, "approve": True}
            sent = await it.ann.post(RUNS, json={"answers": [answer], **chosen})
            await it.ended(sent.json()["run"])
        assert [request.body["model"] for request in it.model.requests] == ["cheap", "cheap", "cheap", "large"]


@pytest.mark.parametrize("page", [False, True, Playground(models=["cheap"])], ids=["no page", "a page", "other rights"])
async def test_without_the_right_both_are_refused(page: Any) -> None:
    """The status is 403, and nothing is stored. On the other wires these keys are no request for a right."""
    async with served(["Hello.", "Hello."], page=page, wires=("agui", "vercel")) as it:
        assert await refused(it, {"text": "Hi!", "model": "large"}) == (403, "not_allowed")
        assert await refused(it, an_edit(tier="gold")) == (403, "not_allowed")
        assert await it.stored("c") is None
        for wire in ("agui", "vercel"):
            path, body = message_on(wire, conversation=wire, model="large", context=[])
            assert (await it.ann.post(path, json=body)).status_code == 200
        assert "large" not in [request.body["model"] for request in it.model.requests]


async def test_an_operator_changes_the_context_with_a_message() -> None:
    """Variables are set and removed before the run, and the first entry has their names."""
    async with served(["One.", "Two."], page=OPERATOR, show=show_everything) as it:
        body = an_edit(tier="gold", cart=[{"id": 1}], **{"": 1})
        await it.ended((await it.ann.post(RUNS, json=body)).json()["run"])
        revision, context = await seen(it)
        assert context == {"tier": "gold", "cart": [{"id": 1}], "": 1}
        run = (await it.ann.post(RUNS, json=an_edit(revision, ["tier", "absent", ""], cart=[]))).json()["run"]
        await it.ended(run)
        assert (await seen(it))[1] == {"cart": []}
        entries = [entry async for entry in (await it.service.get_run(run, user="ann")).entries()]
        assert entries[0].fields["edited"] == ["", "absent", "cart", "tier"]


async def test_readers_get_only_the_names_that_they_may_see() -> None:
    """`show_answers` keeps the names of `client_context` among the changed variables."""
    async with served(["One."], page=OPERATOR, client_context=["tier"]) as it:
        run = (await it.ann.post(RUNS, json=an_edit(tier="gold", secret=1))).json()["run"]
        await it.ended(run)
        assert (await it.ann.get(f"/runs/{run}/events")).text.count("secret") == 0
        assert '"edited":["tier"]' in (await it.ann.get(f"/runs/{run}/events")).text


async def test_a_change_of_a_stale_context_is_refused() -> None:
    """It is refused beside an active run, even if messages wait, and after any run that the operator has not seen."""
    workshop = Workshop()
    async with served([call("slow"), "Done.", "More."], workshop, page=OPERATOR, while_running="wait") as it:
        run = await it.say()
        await workshop.began.wait()
        revision, _ = await seen(it)
        assert await refused(it, an_edit(revision, tier="gold")) == (409, "run_active")
        workshop.go.set()
        await it.ended(run)
        assert await refused(it, an_edit(revision, tier="gold")) == (409, "conflict")
        assert await refused(it, an_edit(tier="gold")) == (409, "conflict")
        assert (await it.bob.post(RUNS, json=an_edit((await seen(it))[0]))).json()["error"]["code"] == "conflict"
        assert (await it.ann.post(RUNS, json=an_edit((await seen(it))[0], tier="gold"))).status_code == 202


async def test_one_of_two_concurrent_changes_is_refused() -> None:
    """Both operators have seen the same revision."""
    statuses: list[int] = []
    async with served(["One.", "Two.", "Three."], page=OPERATOR, show=show_everything) as it:
        await it.ended(await it.say())
        revision, _ = await seen(it)

        async def edit(tier: str) -> None:
            answer = await it.ann.post(RUNS, json=an_edit(revision, tier=tier))
            statuses.append(answer.status_code)
            if answer.status_code == 202:
                await it.ended(answer.json()["run"])
                assert (await seen(it))[1] == {"tier": tier}

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(edit, "gold")
            tasks.start_soon(edit, "silver")
    assert sorted(statuses) == [202, 409]


DEEP: Any = [1]
for _ in range(150):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("context", "param"),
    [
        ({"set": []}, "context.set"),
        ({"set": {}, "remove": [1]}, "context.remove[0]"),
        ({"set": {}, "reset": "x"}, "context.reset"),
        ({"revision": None}, "context.revision"),
        ([], "context"),
    ],
    ids=["not an object", "not a name", "an unknown key", "no revision", "a list"],
)
async def test_a_wrong_change_is_refused_with_its_place(context: Any, param: str) -> None:
    """The status is 422, and nothing is stored."""
    async with served([], page=OPERATOR) as it:
        body = {"text": "Hi!", "context": context if isinstance(context, list) else {"revision": "", **context}}
        answer = await it.ann.post(RUNS, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
        assert await it.stored("c") is None


async def test_values_that_cannot_be_stored_are_refused() -> None:
    """A number of 5,000 digits, half a surrogate pair, infinity, a number that becomes infinity, and a context larger than a request may be."""
    bodies = {
        b'{"n": %s}' % (b"9" * 5000): 422,
        b'{"text": "\\ud800"}': 422,
        b'{"n": Infinity}': 422,
        b'{"n": [1e999]}': 422,
        b'{"n": "%s"}' % (b"x" * 1_000_000): 413,
        b'{"n": %s1%s}' % (b"[" * 5000, b"]" * 5000): 422,
    }
    async with served(["One."], page=OPERATOR) as it:
        for changes, status in bodies.items():
            body = b'{"text": "Hi!", "context": {"revision": "", "set": %s}}' % changes
            answer = await it.ann.post(RUNS, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == status, (changes[:40], answer.text[:300])
        assert await it.stored("c") is None
        answer = await it.ann.post(
            RUNS, json=an_edit(deep=DEEP, __class__="x", context_variables={"a": 1}, **{"": "\0"})
        )
        assert answer.status_code == 202


async def test_the_page_learns_the_rights_of_its_user() -> None:
    """`/graph` has the models, the first questions, and whether the context may be changed."""
    async with served([], page=OPERATOR) as it:
        graph = (await it.ann.get("/graph")).json()
        assert (graph["models"], graph["context_edits"]) == (["cheap", "large"], True)
        assert graph["questions"] == ["What can you do?"]
        assert "prices" in graph
    async with served([], agents=[Agent(model="gpt-4o")], page=OPERATOR) as it:
        prices = (await it.ann.get("/graph")).json()["prices"]
        assert (
            prices["gpt-4o"][0] | {"above": 0, "input_tokens": 2.5e-6, "cache_read_tokens": 1.25e-6}
            == prices["gpt-4o"][0]
        )
    async with served([]) as it:
        assert "models" not in (await it.ann.get("/graph")).json()


async def test_wrong_rights_are_refused() -> None:
    """A text is not a list, except "any"."""
    assert Playground(models="any").allows("each")
    with pytest.raises(ConfigurationError, match="models must be a list"):
        Playground(models="gpt-4o")
    with pytest.raises(ConfigurationError, match="questions must be a list"):
        Playground(questions="Hi?")
    for page in (Playground, {"models": ["cheap"]}):
        with pytest.raises(ConfigurationError, match="page must be True, False or a Playground"):
            service([], page=page)
