"""The recipes of `docs/guides/providers.md`: each reaches its provider, in the way in which that wants to be asked."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import CompletionError
from aswarm.testing import check_history
from tests.support.providers.faces import respond
from tests.support.providers.recipes import KEY, KEYS, PROVIDERS, provider_server, recipes, run_recipe

RECIPES = recipes()
WAYS = ("run", "run(stream=True)", "stream")
pytestmark = [pytest.mark.parametrize("anyio_backend", ["asyncio"])]


def look(city: str) -> str:
    """How the weather is."""
    return f"Rain in {city}"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A key for each provider, and no proxy but the server of the test."""
    for name in KEYS:
        monkeypatch.setenv(f"{name}_API_KEY", KEY)
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://api.openai.com/v1")  # the SDK takes this by itself, with https
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://api.anthropic.com")
    return monkeypatch


async def close(made: dict[str, Any]) -> None:
    """Close the clients of the recipe."""
    await made["swarm"].aclose()
    if "client" in made:
        await made["client"].close()


def test_each_recipe_has_a_test(anyio_backend: str) -> None:
    """A recipe that is new on the page needs a server here, or one in `nox -s deep -- providers`."""
    assert RECIPES.keys() - PROVIDERS.keys() == {"any-llm", "any-llm 2", "LiteLLM"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_recipe_runs(name: str, way: str, environment: pytest.MonkeyPatch) -> None:
    """Address, key, headers and settings are as the provider wants them; a call, its result, an answer, and usage."""
    provider = PROVIDERS[name]
    async with provider_server(provider) as server:
        environment.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        made = run_recipe(RECIPES[name])
        try:
            response = await respond(made["swarm"], way, made["agent"].model_copy(update={"functions": [look]}))
        finally:
            await close(made)
    check_history(response.messages)
    assert [message["content"] for message in response.messages] == ["Wait.", "Rain in Oslo", "Fine."]
    assert (response.usage.requests, response.usage.total_tokens) == (2, 30)
    for body in server.requests:
        assert {key: body.get(key) for key in provider.settings} == provider.settings


async def test_without_its_setting_a_provider_refuses(environment: pytest.MonkeyPatch) -> None:
    """A setting that the recipe of Gemini leaves out is the reason of a 400, and the error names it."""
    async with provider_server(PROVIDERS["Gemini"]) as server:
        environment.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        made = run_recipe(RECIPES["Gemini"])
        with pytest.raises(CompletionError, match="parallel_tool_calls") as caught:
            await made["swarm"].run(made["agent"].model_copy(update={"functions": [look], "model_settings": {}}), "Hi")
        await close(made)
    assert (caught.value.status_code, caught.value.retryable) == (400, False)
