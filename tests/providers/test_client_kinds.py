"""Which way a client is called: openai's own through its escape hatch, everything else through `create`."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError
from aswarm._providers.openai import CompatibleClientSource, OpenAISource, source_for


class OtherChat:
    """A chat of the user's own."""

    class completions:
        @staticmethod
        async def create(**_: Any) -> None: ...


class WithOtherChat(AsyncOpenAI):
    """A client whose chat is another."""

    chat = OtherChat()  # type: ignore[assignment]


def test_openais_own_clients_go_through_post() -> None:
    """AsyncOpenAI, its subclasses and its copies are called without the SDK's walk over the parameters."""
    client = AsyncOpenAI(api_key="x")
    assert isinstance(source_for(client), OpenAISource)
    assert isinstance(source_for(client.with_options(timeout=1)), OpenAISource)
    azure = openai.AsyncAzureOpenAI(api_key="x", azure_endpoint="https://a.test", api_version="1")
    assert isinstance(source_for(azure), OpenAISource)


def test_a_client_with_another_chat_goes_through_create() -> None:
    """Where `chat` was replaced, on the class or on the instance, what was put there is called."""
    client = AsyncOpenAI(api_key="x")
    client.chat = OtherChat()  # type: ignore[misc, assignment]
    assert isinstance(source_for(client), CompatibleClientSource)
    assert isinstance(source_for(WithOtherChat(api_key="x")), CompatibleClientSource)


def test_something_else_of_openais_goes_through_create() -> None:
    """A class that only comes from the package is no client by that."""

    class Odd(openai.OpenAIError):
        chat = OtherChat()

    assert isinstance(source_for(Odd()), CompatibleClientSource)


def test_a_blocking_client_is_refused() -> None:
    """A real blocking client would stop the event loop; the message names the one to take."""
    with pytest.raises(ConfigurationError, match="AsyncOpenAI"):
        AsyncSwarm(client=OpenAI(api_key="x"))


def test_a_create_that_was_replaced_on_the_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in the place of openai's own `create`, function or not, is what must be called."""
    client = AsyncOpenAI(api_key="x")
    monkeypatch.setattr(type(client.chat.completions), "create", AsyncMock())
    assert isinstance(source_for(client), CompatibleClientSource)


@pytest.mark.asyncio
async def test_an_error_of_ours_leaves_a_client_as_it_is() -> None:
    """A client that raises a CompletionError of its own has said all there is to say."""
    client = AsyncMock()
    mine = CompletionError("busy", status_code=429, retryable=True)
    client.chat.completions.create.side_effect = mine
    with pytest.raises(CompletionError) as caught:
        await AsyncSwarm(client=client).run(Agent(), "Hi")
    assert caught.value is mine
