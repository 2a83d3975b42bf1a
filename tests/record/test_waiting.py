"""Calls that wait for a decision, in a journal: the question is kept, and no call runs twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, Approve, ConfigurationError, Hold, Reply, Response, current_call, tool
from tests.support.record.journaled import Died, Json, Script, calls, dies, kinds, rerun, says
from tests.support.run.one_turn import contents

USER = {"role": "user", "content": "Hi"}


class Shop:
    """An agent that asks before it pays, and notes its calls."""

    def __init__(self) -> None:
        self.asked = 0
        self.ran: list[Any] = []

        async def look() -> str:
            self.ran.append("look")
            return "seen"

        @tool(may_wait=True)
        async def pay() -> str:
            if current_call().answer is None:
                self.asked += 1
                raise Hold("From which account?", data={"accounts": [1, 2]})
            self.ran.append(("pay", current_call().answer, current_call().data))
            return "paid"

        @tool(approve=True)
        async def refund() -> str:
            self.ran.append("refund")
            return "refunded"

        self.agent = Agent(functions=[look, pay, refund])


def stored(response: Response) -> list[Json]:
    """Return the history as it comes back from a storage."""
    history: list[Json] = json.loads(json.dumps([USER, *response.messages]))
    return history


async def decide(path: Path, model: Any, agent: Agent, history: Any, resume: Any) -> Response:
    return await rerun(path, model, agent, history, item="b", resume=resume)


async def test_a_hold_of_a_function_is_withdrawn_in_the_journal(path: Path) -> None:
    """The function has done nothing: a rerun after a kill asks again, and the call is not unknown."""
    shop = Shop()

    async def die() -> str:
        while not shop.asked:
            await anyio.sleep(0)
        raise Died

    shop.agent.functions.append(die)
    with pytest.raises(Died):
        await rerun(path, Script(calls("pay", "die")), shop.agent)
    starts = ["ToolCallStarted"] * 2
    assert kinds(path) == ["CompletionFinished", *starts, "ToolCallWithdrawn"]
    response = await rerun(path, Script(), shop.agent)
    assert (response.stop, [each.name for each in response.open_calls], shop.asked) == ("waiting", ["pay"], 2)
    assert [each.name for each in response.unknown_calls] == ["die"]


async def test_the_note_about_changed_arguments_is_made_again_in_a_rerun(path: Path) -> None:
    """The record has the outcome of the function without the note."""

    @tool(approve=True)
    async def refund(order: int) -> str:
        return f"refunded {order}"

    agent = Agent(functions=[refund])
    history = stored(await rerun(path, Script(calls("refund", refund='{"order": 7}')), agent))
    with pytest.raises(Died):
        await decide(path, Script(dies()), agent, history, {"refund-0": Approve({"order": 8})})
    response = await decide(path, Script(says("Done")), agent, history, {"refund-0": Approve({"order": 8})})
    assert contents(response) == ['(run with arguments changed by the user: {"order": 8})\nrefunded 8']


@pytest.mark.parametrize("others", [{"pay-0": False}, {"pay-0": Reply(2)}, True, {}], ids=str)
async def test_an_item_with_other_decisions_is_another_item(path: Path, others: Any) -> None:
    """Under the same id it is refused, because the record belongs to the first decisions."""
    shop = Shop()
    history = stored(await rerun(path, Script(calls("pay")), shop.agent))
    await decide(path, Script(says("Done")), shop.agent, history, {"pay-0": Reply(1)})
    with pytest.raises(ConfigurationError, match="its decisions"):
        await decide(path, Script(says("Done")), shop.agent, history, others)
    assert len(shop.ran) == 1
