"""Context variables: the caller's dict, seen and changed by functions, seen by instructions, never by the model."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, RunError, tool
from aswarm.testing import ScriptedModel, call


def swarm_of(*steps: Any, cut: int | None = None) -> tuple[AsyncSwarm, ScriptedModel]:
    model = ScriptedModel(steps, cut=cut)
    return AsyncSwarm(client=model.client()), model


async def test_context_variables_into_functions() -> None:
    """As in Swarm's README, the function gets the context variables, which the model neither sees nor sets."""
    said: list[str] = []

    def greet(context_variables: dict[str, Any], language: str) -> str:
        greeting = "Hola" if language.lower() == "spanish" else "Hello"
        said.append(f"{greeting}, {context_variables['user_name']}!")
        return "Done"

    forged = call("greet", language="Spanish", context_variables={"user_name": "Mallory"})
    swarm, model = swarm_of(forged, "¡Listo!")
    await swarm.run(Agent(functions=[greet]), "Usa greet() por favor.", context_variables={"user_name": "John"})
    assert said == ["Hola, John!"]
    parameters = model.requests[0].body["tools"][0]["function"]["parameters"]
    assert (list(parameters["properties"]), parameters["required"]) == (["language"], ["language"])


@pytest.mark.parametrize("is_async", [False, True])
async def test_context_variables_into_instructions(is_async: bool) -> None:
    """As in Swarm's README, instructions may be a function of the context; a missing key is an empty text."""

    def instructions(context_variables: dict[str, str]) -> str:
        return f"Help the user, {context_variables['user_name']}{context_variables['missing']}."

    async def slowly(context_variables: dict[str, str]) -> str:
        return instructions(context_variables)

    swarm, model = swarm_of("Hi John")
    agent = Agent(instructions=slowly if is_async else instructions)
    response = await swarm.run(agent, "Hi!", context_variables={"user_name": "John"})
    assert model.requests[0].messages[0]["content"] == "Help the user, John."
    assert response.context_variables == {"user_name": "John"}


def keyword_only(*, context_variables: dict[str, str]) -> str:
    return f"Help {context_variables['user_name']}{context_variables['missing']}."


async def slow_keyword_only(*, context_variables: NoSuchType) -> str:  # type: ignore[name-defined] # noqa: F821
    return keyword_only(context_variables=context_variables)


@pytest.mark.parametrize(
    ("instructions", "text"),
    [
        (keyword_only, "Help John."),
        (slow_keyword_only, "Help John."),
        (functools.partial(keyword_only), "Help John."),
        (functools.partial(keyword_only, context_variables=defaultdict(str, user_name="Ada")), "Help Ada."),
        (functools.partial(lambda greeting, context: f"{greeting} {context['user_name']}", "Hi"), "Hi John"),
        (lambda *, language="en": language, "en"),
        (lambda **settings: str(settings), "{}"),
    ],
    ids=["plain", "async", "partial", "bound", "positional", "another keyword", "any keyword"],
)
async def test_context_variables_into_instructions_by_keyword(instructions: Any, text: str) -> None:
    """A keyword-only parameter of that name gets the context too, unless a partial binds it; others keep their default."""
    swarm, model = swarm_of("Hi John")
    await swarm.run(Agent(instructions=instructions), "Hi!", context_variables={"user_name": "John"})
    assert model.requests[0].messages[0]["content"] == text


async def test_a_type_error_inside_of_instructions_is_not_a_fault_of_their_parameters() -> None:
    """The error of the function itself ends the run."""

    def instructions(context_variables: dict[str, Any]) -> str:
        return "Help" + context_variables["points"]

    swarm, _ = swarm_of()
    with pytest.raises(RunError, match="TypeError: can only concatenate str"):
        await swarm.run(Agent(instructions=instructions), "Hi!", context_variables={"points": 7})


@pytest.mark.parametrize("given", [defaultdict(list), defaultdict(list, other=[0])], ids=["empty", "not empty"])
async def test_the_context_keeps_its_kind(given: defaultdict[str, list[int]]) -> None:
    """A `defaultdict`, empty or not, stays one for the functions, and the caller's is not changed."""

    def put(context_variables: dict[str, Any]) -> str:
        context_variables["items"].append(1)
        return "ok"

    before = dict(given)
    swarm, _ = swarm_of(call("put"), "Done")
    response = await swarm.run(Agent(functions=[put]), "Go", context_variables=given)
    assert response.messages[1]["content"] == "ok"
    assert response.context_variables == {**before, "items": [1]}
    assert given == before


@pytest.mark.parametrize("options", [{}, {"timeout": 10.0}, {"thread": False}], ids=repr)
async def test_a_context_that_contains_itself(options: dict[str, Any]) -> None:
    """Functions work with a context that contains itself, with or without a timeout."""

    @tool(**options)
    def put(context_variables: dict[str, Any]) -> str:
        context_variables["new"] = 1
        return "ok"

    @tool(**options)
    def look(context_variables: dict[str, Any]) -> str:
        return str(context_variables["session"]["parent"] is context_variables)

    given: dict[str, Any] = {"old": 0}
    given["session"] = {"parent": given}
    swarm, _ = swarm_of([call("look"), call("put")], "Done")
    response = await swarm.run(Agent(functions=[put, look]), "Go", context_variables=given)
    assert [message["content"] for message in response.messages[1:3]] == ["True", "ok"]
    assert response.context_variables["new"] == 1 and response.context_variables["old"] == 0
    assert "new" not in given
