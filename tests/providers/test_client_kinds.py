"""Which way a client is called: openai's own through its escape hatch, everything else through `create`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError
from aswarm._providers.openai import CompatibleClientSource, OpenAISource, source_for
from aswarm.sources import CompletionRequest, CompletionSource
from aswarm.testing import ScriptedModel
from tests.support.providers.instrumented import FunctionLike


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
    """A replacement of `chat`, on the class or on the instance, is called."""
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
    """A replacement of openai's own `create`, function or not, is called."""
    client = AsyncOpenAI(api_key="x")
    monkeypatch.setattr(type(client.chat.completions), "create", AsyncMock())
    assert isinstance(source_for(client), CompatibleClientSource)


@pytest.mark.asyncio
async def test_an_error_of_ours_leaves_a_client_as_it_is() -> None:
    """A client that raises a CompletionError of its own has the right text already."""
    client = AsyncMock()
    mine = CompletionError("busy", status_code=429, retryable=True)
    client.chat.completions.create.side_effect = mine
    with pytest.raises(CompletionError) as caught:
        await AsyncSwarm(client=client).run(Agent(), "Hi")
    assert caught.value is mine
    assert str(mine) == "busy"


@pytest.mark.parametrize("name", ["post", "request"])
def test_a_hook_below_create_gets_create(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenInference patches `request` of the class, Logfire `request` of a client: through `create`, both get their input."""
    patched = openai.AsyncOpenAI(api_key="x")
    setattr(patched, name, getattr(patched, name))
    source = source_for(patched)
    assert isinstance(source, CompatibleClientSource)
    assert source.max_retries == 0, "a copy of the client would lose the patch"
    client = openai.AsyncOpenAI(api_key="x")
    assert isinstance(source_for(client), OpenAISource)
    monkeypatch.setattr(openai.AsyncOpenAI, name, FunctionLike(getattr(openai.AsyncOpenAI, name), []), raising=True)
    source = source_for(client)
    assert isinstance(source, CompatibleClientSource)
    assert source.max_retries == client.max_retries


class Source:
    """A source of a user."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        yield {}


def test_a_subclass_of_a_real_client_with_complete_is_a_client() -> None:
    """A helper method named `complete` on a subclass of `AsyncOpenAI` makes it no source."""

    class Mine(openai.AsyncOpenAI):
        def complete(self) -> None:
            """A helper."""

    assert type(source_for(Mine(api_key="x"))) is type(source_for(openai.AsyncOpenAI(api_key="x")))


def test_the_protocol_is_looked_up_on_the_type() -> None:
    """A source is used as it is; something with `complete` only as an attribute of the instance is no source."""
    source = Source()
    assert source_for(source) is source
    assert isinstance(source, CompletionSource)
    with pytest.raises(ConfigurationError, match="SimpleNamespace"):
        source_for(SimpleNamespace(complete=source.complete))
    assert isinstance(source_for(SimpleNamespace(chat=ScriptedModel([]).client().chat)), CompatibleClientSource)
