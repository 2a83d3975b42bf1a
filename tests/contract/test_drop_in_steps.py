"""The steps of Swarm's loop: they can be called, for loops of users, and an override that no run would call is an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageToolCall
from openai.types.chat.chat_completion_message_tool_call import Function

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, Response, Result, Swarm
from aswarm.testing import ScriptedModel, call
from tests.support.blocking.blocking import scripted_openai
from tests.support.blocking.plain_client import BlockingClient

HELLO = [{"role": "user", "content": "Hello"}]
STEPS = ["get_chat_completion", "handle_function_result", "handle_tool_calls"]


def called(name: str, call_id: str = "1", **arguments: Any) -> ChatCompletionMessageToolCall:
    function = Function(name=name, arguments=json.dumps(arguments))
    return ChatCompletionMessageToolCall(id=call_id, type="function", function=function)


# --- overrides --------------------------------------------------------------------------------------------------------


def of_subclass(name: str) -> type[Swarm]:
    return type("Durable", (Swarm,), {name: lambda self: None})


def of_mixin(name: str) -> type[Swarm]:
    return type("Durable", (type("Mixin", (), {name: lambda self: None}), Swarm), {})


@pytest.mark.parametrize("made", [of_subclass, of_mixin])
@pytest.mark.parametrize("name", STEPS)
def test_a_subclass_that_overrides_a_step_is_refused(made: Callable[[str], type[Swarm]], name: str) -> None:
    """A run would never call it, and raises before any request. The error names middleware."""
    expected = rf"Durable replaces {name}, which run\(\) never calls; pass middleware="
    for run in (Swarm.run, Swarm.run_and_stream, Swarm.stream):
        with pytest.raises(ConfigurationError, match=expected):
            run(made(name)(BlockingClient()), Agent(), HELLO)


def test_a_subclass_with_a_loop_of_its_own_may_override_its_steps() -> None:
    """Its `run` calls whatever it likes."""
    own = type("Own", (Swarm,), {"run": lambda self: self.get_chat_completion(), "get_chat_completion": lambda self: 7})
    assert own().run() == 7


def test_a_run_of_its_own_that_calls_the_run_of_the_base_is_refused_there() -> None:
    """As in a library that makes Swarm durable: it wraps `run` too, and its steps would be left out."""

    class Durable(Swarm):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return super().run(*args, **kwargs)

        def get_chat_completion(self, *args: Any, **kwargs: Any) -> Any:
            return super().get_chat_completion(*args, **kwargs)

    swarm = Durable(BlockingClient("Never asked"))
    with pytest.raises(ConfigurationError, match=r"Durable replaces get_chat_completion, .* pass middleware="):
        swarm.run(Agent(), HELLO)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("run", [Swarm.run, Swarm.run_and_stream, Swarm.stream])
def test_a_step_that_is_replaced_on_a_swarm_is_an_error_of_the_run(
    name: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the instance and on the class, as mocks do it; without the replacement the run works again."""
    with Swarm(BlockingClient("Done")) as swarm:
        for owner in (swarm, Swarm):
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, lambda *_, **__: None)
                with pytest.raises(ConfigurationError, match=f"Swarm replaces {name}, .* pass middleware="):
                    run(swarm, Agent(), HELLO)
        assert swarm.run(Agent(), HELLO).text == "Done"


@pytest.mark.asyncio
@pytest.mark.parametrize("name", STEPS)
async def test_an_async_swarm_with_such_a_method_refuses_to_run(name: str) -> None:
    """`AsyncSwarm` has no steps, but code that moves to it from Swarm brings its overrides along."""
    moved = type("Moved", (AsyncSwarm,), {name: lambda self: 7})
    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match=f"Moved replaces {name}, .* pass middleware="):
        await moved(model.client()).run(Agent(), HELLO)
    assert not model.requests


# --- get_chat_completion ----------------------------------------------------------------------------------------------


def look(city: str, context_variables: dict[str, Any]) -> str:
    """Look around."""
    context_variables.setdefault("seen", []).append(city)
    return f"{city} for {context_variables['user']}"


def recorded_openai(*steps: Any) -> tuple[OpenAI, list[dict[str, Any]]]:
    """A real blocking client, and the bodies of its requests."""
    bodies: list[dict[str, Any]] = []
    return scripted_openai(*steps, bodies=bodies), bodies


def complete(swarm: Swarm, agent: Agent, stream: bool = False, **options: Any) -> Any:
    arguments: dict[str, Any] = {
        "context_variables": {"user": "Ada"},
        "model_override": None,
        "debug": False,
        **options,
    }
    return swarm.get_chat_completion(agent=agent, history=HELLO, stream=stream, **arguments)


def test_get_chat_completion_returns_what_the_client_returns(capsys: pytest.CaptureFixture[str]) -> None:
    """The request is the same as in a run: instructions, history, tools; the answer is the SDK's own. `debug` prints it."""

    async def instructions(context_variables: dict[str, str]) -> str:
        return f"Help {context_variables['user']}{context_variables['nothing']}."

    agent = Agent(instructions=instructions, functions=[look])
    client, bodies = recorded_openai(call("look", city="Oslo"), "Done")
    with client:
        completion = complete(Swarm(client), agent, debug=True)
        assert complete(Swarm(client), agent, model_override="big").choices[0].message.content == "Done"
    assert isinstance(completion, ChatCompletion)
    assert completion.choices[0].message.tool_calls[0].function.name == "look"
    first, second = bodies
    assert first["messages"] == [{"role": "system", "content": "Help Ada."}, *HELLO]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["look"]
    assert (first["model"], second["model"], first["stream"]) == ("gpt-6-luna", "big", False)
    assert "Getting chat completion for...: [{'role': 'system', 'content': 'Help Ada.'}" in capsys.readouterr().out


def test_get_chat_completion_streams_chunks() -> None:
    """The chunks of the SDK. Each has a choice, as loops for Swarm expect: no chunk with the usage is asked for."""
    client, bodies = recorded_openai("Hello!")
    with client:
        chunks = list(complete(Swarm(client), Agent(), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello!"
    assert "stream_options" not in bodies[0]


def test_get_chat_completion_with_an_async_client() -> None:
    """It waits for the completion. A stream of such a client is refused before a request."""
    model = ScriptedModel(["Hello!", "Never read."])
    swarm = Swarm(model.client())
    assert complete(swarm, Agent()).choices[0].message.content == "Hello!"
    with pytest.raises(ConfigurationError, match="cannot stream from an async client"):
        complete(swarm, Agent(), stream=True)
    assert len(model.requests) == 1


def test_get_chat_completion_with_a_client_that_does_not_look_async() -> None:
    """A plain `create` may return an async stream, too. It is refused, and closed."""
    model = ScriptedModel(["Never read."])
    create: Any = model.client().chat.completions.create
    completions = SimpleNamespace(create=lambda **request: create(**request))
    swarm = Swarm(SimpleNamespace(chat=SimpleNamespace(completions=completions)))
    with pytest.raises(ConfigurationError, match="cannot stream from an async client"):
        complete(swarm, Agent(), stream=True)
    assert (len(model.requests), model.open_streams) == (1, 0)


def test_get_chat_completion_needs_a_client_with_create() -> None:
    """A `CompletionSource` has none."""

    class Source:
        def complete(self, request: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match="not a CompletionSource; use run"):
        complete(Swarm(Source()), Agent())


def test_get_chat_completion_fails_as_a_run_does() -> None:
    """With a CompletionError, whose cause is the exception of the SDK."""
    with scripted_openai() as client, pytest.raises(CompletionError, match="the provider failed: ") as raised:
        complete(Swarm(client), Agent())
    assert isinstance(raised.value.__cause__, StopIteration | openai.APIConnectionError)  # openai 3 | openai 2


# --- handle_tool_calls and handle_function_result ---------------------------------------------------------------------


def test_handle_tool_calls_returns_a_partial_response(capsys: pytest.CaptureFixture[str]) -> None:
    """Tool messages in Swarm's form, the agent that takes over, and the context that results bring; functions may write."""
    sales = Agent(name="Sales")

    async def note() -> Result:
        return Result(value="noted", context_variables={"noted": True})

    context = {"user": "Ada"}
    calls = [called("look", city="Oslo"), called("note", "2"), called("transfer_to_sales", "3"), called("gone", "4")]
    partial = Swarm(BlockingClient()).handle_tool_calls(calls, [look, note, sales], context, True)
    assert isinstance(partial, Response)
    assert partial.messages == [
        {"role": "tool", "tool_call_id": "1", "tool_name": "look", "content": "Oslo for Ada"},
        {"role": "tool", "tool_call_id": "2", "tool_name": "note", "content": "noted"},
        {"role": "tool", "tool_call_id": "3", "tool_name": "transfer_to_sales", "content": '{"assistant": "Sales"}'},
        {
            "role": "tool",
            "tool_call_id": "4",
            "tool_name": "gone",
            "content": "Error: Tool gone not found. Tools: look, note, transfer_to_sales.",
        },
    ]
    assert partial.agent is sales
    assert partial.context_variables == {"noted": True}
    assert context == {"user": "Ada", "seen": ["Oslo"]}
    printed = capsys.readouterr().out
    assert "Processing tool call: look with arguments {'city': 'Oslo'}" in printed
    assert "Tool gone not found in function map." in printed


def test_handle_tool_calls_without_a_handoff() -> None:
    """The response has no agent, and the text of an exception, as in a run."""

    def fail() -> str:
        raise ValueError("no luck")

    partial = Swarm(BlockingClient()).handle_tool_calls([called("fail")], [fail], {}, False)
    assert [message["content"] for message in partial.messages] == ["Error: ValueError: no luck"]
    assert (partial.agent, partial.context_variables) == (None, {})
    assert Swarm(BlockingClient()).handle_tool_calls([], [], {}, False).messages == []


def test_handle_function_result() -> None:
    """A `Result`, an agent or a text become a `Result`."""
    swarm, sales = Swarm(BlockingClient()), Agent(name="Sales")
    result = Result(value="x", context_variables={"a": 1})
    assert swarm.handle_function_result(result, False) == result
    assert swarm.handle_function_result(sales, False) == Result(value='{"assistant": "Sales"}', agent=sales)
    assert swarm.handle_function_result(7, False) == Result(value="7")


def test_handle_function_result_without_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A TypeError in Swarm's words; `debug` prints it."""

    class Mute:
        def __str__(self) -> str:
            raise ValueError("no text")

    for debug in (False, True):
        with pytest.raises(TypeError, match=r"Failed to cast response to string: Mute.* Error: no text"):
            Swarm(BlockingClient()).handle_function_result(Mute(), debug)
    assert capsys.readouterr().out.count("Failed to cast response to string") == 1


def test_a_loop_of_a_user_with_these_steps() -> None:
    """Swarm's own loop, written out, with a real client."""
    agent, context, history = Agent(functions=[look]), {"user": "Ada"}, list(HELLO)
    with scripted_openai(call("look", city="Oslo"), "Oslo is fine.") as client:
        swarm = Swarm(client)
        for _ in range(2):
            completion = swarm.get_chat_completion(agent, history, context, None, False, False)
            message = completion.choices[0].message
            message.sender = agent.name
            history.append(json.loads(message.model_dump_json()))
            if message.tool_calls:
                partial = swarm.handle_tool_calls(message.tool_calls, agent.functions, context, False)
                history.extend(partial.messages)
                context.update(partial.context_variables)
    assert [message["content"] for message in history] == ["Hello", None, "Oslo for Ada", "Oslo is fine."]
