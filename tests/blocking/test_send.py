"""`run.send` of a blocking stream: in its block, in its functions, and from other threads."""

from __future__ import annotations

import threading

import pytest

from aswarm import Agent, CompletionFinished, Swarm
from aswarm.testing import ScriptedModel, call

SENT = {"role": "user", "content": "Wait!"}


def test_the_block_may_send() -> None:
    """The run continues with the message."""
    model = ScriptedModel(["Done.", "Waiting."])
    with Swarm(model.client()) as swarm, swarm.stream(Agent(), "Go") as run:
        for event in run:
            if isinstance(event, CompletionFinished) and len(model.requests) == 1:
                run.send("Wait!")
                assert run.unsent == [SENT]
    assert [message["content"] for message in run.response.messages] == ["Done.", "Wait!", "Waiting."]


@pytest.mark.parametrize("where", ["in the caller's thread", "in another thread", "on the event loop"])
def test_functions_and_threads_may_send(where: str) -> None:
    """While the caller waits for an event."""
    model = ScriptedModel([call("work"), "Done."])

    def send() -> None:
        run.send("Wait!")

    def work() -> str:
        if where == "in the caller's thread":
            send()
        else:
            thread = threading.Thread(target=send)
            thread.start()
            thread.join()
        return "done"

    async def work_on_loop() -> str:
        send()
        return "done"

    work_on_loop.__name__ = "work"
    agent = Agent(functions=[work_on_loop if where == "on the event loop" else work])
    with Swarm(model.client()) as swarm, swarm.stream(agent, "Go") as run:
        for _ in run:
            pass
    assert model.requests[1].messages[-1] == SENT


def test_an_ended_run_takes_no_message() -> None:
    """The error comes to the thread that sends."""
    with Swarm(ScriptedModel(["Done."]).client()) as swarm, swarm.stream(Agent(), "Go") as run:
        for _ in run:
            pass
        with pytest.raises(RuntimeError, match="this run has ended"):
            run.send("Wait!")
    assert run.unsent == []
