"""The recipes of `docs/guides/providers.md` that call the native APIs of Anthropic and Gemini, through any-llm and LiteLLM."""

from __future__ import annotations

import pytest

from aswarm import Agent, AsyncSwarm, CompletionError
from tests.support.interoperability.aimock import Relay
from tests.support.interoperability.weather import WAYS, ask, check_weather, look
from tests.support.providers.recipes import KEY, KEYS, recipes, run_recipe

pytestmark = pytest.mark.filterwarnings("ignore")  # those libraries warn of their own code
RECIPES = recipes()
# Recipe, name of its agent, and where its client looks for the API below the URL of the server.
CASES = {
    "any-llm, Anthropic": ("any-llm", "agent", ""),
    "any-llm, Gemini": ("any-llm 2", "agent", ""),
    "LiteLLM, Anthropic": ("LiteLLM", "claude", ""),
    "LiteLLM, Gemini": ("LiteLLM", "gemini", "/v1beta"),
}


@pytest.fixture(params=CASES)
def made(request: pytest.FixtureRequest, server: Relay, monkeypatch: pytest.MonkeyPatch) -> tuple[AsyncSwarm, Agent]:
    """The swarm and the agent of a recipe; `api_base` leads to the server of the test."""
    recipe, name, path = CASES[request.param]
    pytest.importorskip(
        "litellm" if recipe == "LiteLLM" else "any_llm", reason="`nox -s deep -- providers` installs it"
    )
    for key in KEYS:
        monkeypatch.setenv(f"{key}_API_KEY", KEY)
    found = run_recipe(RECIPES[recipe])
    agent: Agent = found[name]
    settings = {**agent.model_settings, "api_base": server.url + path}
    return found["swarm"], agent.model_copy(update={"functions": [look], "model_settings": settings})


@pytest.mark.parametrize("way", WAYS)
async def test_a_recipe_runs(way: str, made: tuple[AsyncSwarm, Agent], server: Relay) -> None:
    """Two calls, their results, an answer; the tokens are counted in streams too."""
    swarm, agent = made
    response, reasoning = await ask(swarm, way, agent)
    check_weather(response)
    assert len(server.seen) == 2
    if way == "stream":
        assert reasoning == "I should look at both.Easy."


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made", ["any-llm, Anthropic", "LiteLLM, Anthropic"], indirect=True)
async def test_thinking_goes_back_whole_with_its_signature(
    way: str, made: tuple[AsyncSwarm, Agent], server: Relay
) -> None:
    """Anthropic refuses a turn with calls whose thinking is not the block that it sent."""
    await ask(made[0], way, made[1])
    (said,) = [message for message in server.seen[1].body["messages"] if message["role"] == "assistant"]
    assert [part["type"] for part in said["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert said["content"][0]["thinking"] == "I should look at both."
    assert said["content"][0]["signature"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("status", "retryable"), [(429, True), (400, False)])
async def test_an_error_keeps_its_status(
    status: int, retryable: bool, way: str, made: tuple[AsyncSwarm, Agent]
) -> None:
    """Status, and whether to try again, come through the library of another."""
    with pytest.raises(CompletionError) as caught:
        await ask(made[0], way, made[1], f"status {status}")
    assert (caught.value.status_code, caught.value.retryable) == (status, retryable)
    assert "litellm.ai" not in str(caught.value)
