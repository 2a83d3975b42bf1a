"""A scripted run with tools, consumed in each of the three ways to run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, Response
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, Step, call, check_history
from tests.support.leaving.run_scenes import USER, settle, until

FACES = ("run", "run(stream=True)", "stream")


def calls_then_done(*names: str) -> Callable[[Request], Step]:
    """Return a model that calls these functions and then answers "done"."""

    def answer(request: Request) -> Step:
        has_called = any(message["role"] == "assistant" for message in request.messages)
        return "done" if has_called else ScriptedAnswer(calls=[call(name) for name in names])

    return answer


def swarm_of(*names: str, **options: Any) -> AsyncSwarm:
    """Return a swarm whose model calls these functions."""
    return AsyncSwarm(ScriptedModel(calls_then_done(*names)).client(), **options)


async def consume(
    swarm: AsyncSwarm, agent: Agent, face: str, left: list[Any], *, messages: Any = (USER,), **options: Any
) -> None:
    """Consume a run to its end; `left` gets the response, also after an error of the run."""
    given = list(messages) if isinstance(messages, tuple) else messages
    run: Any = None
    if face == "run":
        try:
            left.append(await swarm.run(agent, given, **options))
        except BaseException as error:
            left.append(getattr(error, "response", None))
            raise
        return
    try:
        if face == "stream":
            async with swarm.stream(agent, given, **options) as run:
                async for _ in run:
                    pass
        else:
            start = swarm.run_and_stream if face == "run_and_stream" else partial(swarm.run, stream=True)
            run = start(agent, given, **options)
            async for _ in run:
                pass
    finally:
        left.append(run and run.response)


def answers(response: Response) -> dict[str, str]:
    """Return the contents of the tool messages, by function."""
    return {message["tool_name"]: message["content"] for message in response.messages if message["role"] == "tool"}


async def cancel_when(
    condition: Callable[[], object],
    swarm: AsyncSwarm,
    agent: Agent,
    face: str,
    *,
    then: Callable[[], object] = lambda: None,
    **options: Any,
) -> Response:
    """Cancel the scope of a run when the condition is true. Returns the response. `then`: called after the cancellation."""
    left: list[Response] = []
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: consume(swarm, agent, face, left, **options))
        await until(condition)
        await settle()
        group.cancel_scope.cancel()
        then()
    assert left[0].stop == "cancelled"
    check_history([USER, *left[0].messages], allow_open=True)
    return left[0]
