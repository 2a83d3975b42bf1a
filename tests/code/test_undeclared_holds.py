"""Calls inside code that raise Hold declare it, as calls in a message do."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aswarm import ConfigurationError, Hold, Reply, current_call, tool
from tests.support.code.coded import USER, agent_of, result_in, swarm_of


class Desk:
    def __init__(self) -> None:
        self.ended: list[str] = []

    async def look(self) -> str:
        """Look, later than the other call asks."""
        await anyio.sleep(0.01)
        self.ended.append("look")
        return "looked"

    async def ask(self) -> str:
        """Ask the user."""
        if current_call().answer is None:
            raise Hold("Which?")
        return f"asked {current_call().answer}"

    async def fails(self, code: str) -> Any:
        """Run code with an undeclared function. Returns the response of the error."""
        agent = agent_of(self.look, self.ask)
        with pytest.raises(ConfigurationError, match="the function 'ask' of the agent 'Coder' raised Hold") as caught:
            await swarm_of(code).run(agent, [USER])
        assert caught.value.response is not None
        return caught.value.response


async def test_an_undeclared_call_in_code_fails_the_run_after_its_round() -> None:
    """The other call of the round finishes. Its effect is not repeated: the outcome of the code is unknown."""
    desk = Desk()
    response = await desk.fails("await asyncio.gather(ask(), look())")
    assert (desk.ended, response.open_calls) == (["look"], [])
    assert [each.name for each in response.unknown_calls] == ["run_code"]


async def test_code_in_which_nothing_has_started_stays_open() -> None:
    """With the declaration, the run continues: the code starts again, and waits."""
    desk = Desk()
    response = await desk.fails("await ask()")
    assert ([each.name for each in response.open_calls], response.unknown_calls) == (["run_code"], [])
    history: list[Any] = [USER, *response.messages]
    agent = agent_of(desk.look, tool(may_wait=True)(desk.ask))
    swarm = swarm_of("")
    asked = await swarm.run(agent, history, resume=True)
    [outer] = asked.open_calls
    [inner] = outer.data["waiting"]
    history += asked.messages
    response = await swarm.run(agent, history, resume={outer.id: Reply({inner["id"]: {"answer": "this"}})})
    assert (result_in(response), response.text) == ("asked this", "Done.")
