"""Parts of `aswarm.extensions` that no middleware of the tests needs in this form."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.extensions import BackgroundTask, CompletionRequest, current_call, source_for, without_current_call
from aswarm.sources import HTTPSource
from aswarm.testing import ScriptedModel, call
from aswarm.types import Message


class Changing:
    """A source of a user that changes the request."""

    max_retries = 3

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        request.body.clear()
        yield {"choices": [{"message": {"role": "assistant", "content": "Hi"}}]}


async def test_a_source_of_a_user_gets_copies_of_requests() -> None:
    source = source_for(Changing())
    request = CompletionRequest(Agent(), {"messages": []})
    chunks = [chunk async for chunk in source.complete(request)]
    assert [chunk["choices"][0]["message"]["content"] for chunk in chunks] == ["Hi"]
    assert request.body == {"messages": []}
    assert getattr(source, "max_retries", None) == 3


def test_a_source_of_aswarm_is_used_as_it_is() -> None:
    source = HTTPSource("http://127.0.0.1:1", api_key="none")
    assert source_for(source) is source


async def test_a_task_outside_of_calls_has_no_current_call() -> None:
    """For a task that a call starts, and that lives longer than the call."""
    found: list[str] = []

    async def look() -> None:
        try:
            found.append(current_call().name)
        except ConfigurationError:
            found.append("none")

    async def start() -> str:
        """Start two tasks."""
        await BackgroundTask(look).result()
        with without_current_call():
            task = BackgroundTask(look)
        await task.result()
        return current_call().name

    swarm = AsyncSwarm(ScriptedModel([call("start"), "Done"]).client())
    response = await swarm.run(Agent(functions=[start]), "Start.")
    assert found == ["start", "none"]
    assert response.messages[1]["content"] == "start"


def test_a_request_of_another_agent_is_sent_in_the_same_way() -> None:
    """Its functions are not offered, and a source that another middleware has set keeps its model."""

    def look() -> str: ...

    messages: list[Message] = [{"role": "user", "content": "Hi"}]
    body = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}, "temperature": 1}
    request = CompletionRequest(Agent(), body, max_retries=0)
    other = Agent(model="small", instructions="Sum up.", functions=[look], model_settings={"top_p": 0.5})
    made = request.for_agent(other, messages)
    system = {"role": "system", "content": "Sum up."}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert made.body == {"model": "small", "top_p": 0.5, "messages": [system, *messages], **options}
    assert (made.agent, made.max_retries, made.source) == (other, 0, None)
    source = Changing()
    elsewhere = CompletionRequest(Agent(), {"model": "m", "messages": []}, source=source).for_agent(other, messages)
    assert (elsewhere.body["model"], elsewhere.stream, elsewhere.source) == ("m", False, source)
