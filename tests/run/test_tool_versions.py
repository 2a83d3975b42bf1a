"""The version of a tool: a decision of a user is for the tool that the user was asked about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm import Agent, Approve, AsyncSwarm, Hold, Reply, current_call
from aswarm.testing import ScriptedModel, call
from aswarm.tools import function_tool

CHANGED = "the tool has changed since the question"
NOTHING = {"type": "object", "properties": {}}


def agent_with(version: str | None, ran: list[Any], *, asks: bool = False, approve: bool = True) -> Agent:
    """Return an agent with one tool of this version."""

    async def pay(**arguments: Any) -> str:
        if asks and current_call().data is None:
            raise Hold("How?", data={"ways": ["card"]})
        ran.append(arguments or current_call().answer)
        return "paid"

    tool = function_tool(
        pay,
        name="pay",
        description="Pay.",
        parameters={**NOTHING, "properties": {"sum": {"type": "integer"}}},
        approve=approve,
        may_wait=True,
        version=None if version is None else lambda: version,
    )
    return Agent(functions=[tool])


async def resumed(versions: list[str | None], decisions: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
    """Run in a new process for each version. Return what has run, and the reasons of the waiting calls after each run."""
    ran: list[Any] = []
    reasons: list[Any] = []
    history: list[Any] = [{"role": "user", "content": "Go"}]
    for version, decision in zip(versions, [False, *decisions], strict=True):
        made = [call("pay", call_id="a", **({} if options.get("asks") else {"sum": 1})), "Done."][
            decision is not False :
        ]
        async with AsyncSwarm(ScriptedModel(made).client()) as swarm:
            response = await swarm.run(agent_with(version, ran, **options), history, resume=decision)
        reasons.append([each.reason for each in response.waiting])
        history = json.loads(json.dumps([*history, *response.messages]))
    return ran, reasons


@pytest.mark.parametrize(
    "decision", [{"a": True}, Approve.all(), {"a": Approve({"sum": 2})}], ids=["yes", "all", "changed"]
)
@pytest.mark.parametrize(
    ("first", "second", "asks_again"),
    [("1", "1", False), ("1", "2", True), (None, None, False), (None, "1", True), ("1", None, False)],
)
async def test_an_approval_is_for_the_version_that_was_shown(
    first: str | None, second: str | None, asks_again: bool, decision: Any
) -> None:
    """The call is asked again once, keeps the arguments that the user has set, and runs after the next approval."""
    ran, reasons = await resumed(
        [first, second, *([second] if asks_again else [])], [decision, *([{"a": True}] if asks_again else [])]
    )
    assert ran == [{"sum": 2 if isinstance(decision, dict) and decision["a"] is not True else 1}]
    assert reasons == [["needs approval"], *([[CHANGED]] if asks_again else []), []]


async def test_an_answer_is_kept_while_the_new_version_waits_for_an_approval() -> None:
    """Also if the tool needs no approval, and if the version changes twice."""
    versions = ["1", "2", "3", "3"]
    ran, reasons = await resumed(versions, [{"a": Reply("card")}, {"a": True}, {"a": True}], asks=True, approve=False)
    assert (ran, reasons) == (["card"], [["How?"], [CHANGED], [CHANGED], []])


async def test_a_call_without_a_decision_keeps_the_version_of_its_question() -> None:
    """A run that leaves the call open does not count as a look at the new version."""
    ran, reasons = await resumed(["1", "2", "2", "2"], [True, {"a": True}, {"a": True}])
    assert (ran, reasons) == ([{"sum": 1}], [["needs approval"], ["needs approval"], [CHANGED], []])
