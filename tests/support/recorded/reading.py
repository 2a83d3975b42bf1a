"""What aswarm reads in an answer, in the form of the decoder, on each path: clients, transports, backends, blocking."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anthropic
import openai

from aswarm import Agent, AswarmError, AsyncSwarm, CompletionError, Response, Swarm
from aswarm.middleware import CompletionRequest, Handlers
from aswarm.sources import HTTPSource
from tests.support.providers.instrumented import FunctionLike
from tests.support.recorded.decoder import Answer

# Each path: what sends the request, and the backend.
PATHS = ("httpx", "aiohttp", "instrumented", "direct", "blocking", "httpx on trio", "direct on trio")
PATHS_OF_CLAUDE = ("httpx", "aiohttp", "instrumented", "blocking", "httpx on trio")
_MODEL = "gpt-4o"
_API: Any = {"chat": "chat", "responses": "responses", "messages": "anthropic"}


def client_of(path: str, url: str, api: Any) -> Any:
    """Return a client or a source of a path, for an address."""
    if api == "messages":
        return _client_of_claude(path, url)
    if path.startswith("direct"):
        return HTTPSource(url, "k", api=api, max_retries=0)
    options: dict[str, Any] = {"base_url": url, "api_key": "k", "max_retries": 0}
    if path == "blocking":
        return openai.OpenAI(**options)
    kind = openai.DefaultAioHttpClient if path == "aiohttp" else openai.DefaultAsyncHttpxClient
    # An empty SSL context, because making a full one costs more than a whole recording.
    client = openai.AsyncOpenAI(http_client=kind(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)), **options)
    if path == "instrumented":
        for resource in (client.chat.completions, client.responses):
            resource.create = FunctionLike(resource.create, [])  # type: ignore[method-assign]
    return client


def _client_of_claude(path: str, url: str) -> Any:
    options: dict[str, Any] = {"base_url": url, "api_key": "k", "max_retries": 0}
    if path == "blocking":
        return anthropic.Anthropic(**options)
    kind = anthropic.DefaultAioHttpClient if path == "aiohttp" else anthropic.DefaultAsyncHttpxClient
    client = anthropic.AsyncAnthropic(http_client=kind(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)), **options)
    if path == "instrumented":
        client.messages.create = FunctionLike(client.messages.create, [])  # type: ignore[method-assign]
    return client


async def read(
    path: str, url: str, api: str, *, streamed: bool, messages: Any = "Hi", model: str = _MODEL
) -> tuple[Answer, Any]:
    """Return what a run reads at an address, and its message. A path with "blocking" is for `read_blocking`."""
    client = client_of(path, url, api)
    finish: list[Any] = []
    swarm = AsyncSwarm(
        client, api=_API.get(api, "auto") if not path.startswith("direct") else "auto", middleware=[_watching(finish)]
    )
    agent, response, error = _agent(model), None, None
    try:
        if streamed:
            async with swarm.stream(agent, messages, execute_tools=False) as run:
                async for _ in run:
                    pass
            response = run.response
        else:
            response = await swarm.run(agent, messages, execute_tools=False)
    except (CompletionError, openai.APIError, anthropic.AnthropicError, AswarmError) as raised:
        error = raised
    finally:
        await (client.aclose() if isinstance(client, HTTPSource) else client.close())
    return _answer(response, finish, error), response and next(iter(response.messages), None)


def read_blocking(url: str, api: Any, *, streamed: bool, model: str = _MODEL) -> tuple[Answer, Any]:
    """The same for `Swarm`."""
    finish: list[Any] = []
    response, error = None, None
    with client_of("blocking", url, api) as client:
        swarm = Swarm(client, api=_API.get(api, "auto"), middleware=[_watching(finish)])
        try:
            if streamed:
                with swarm.stream(_agent(model), "Hi", execute_tools=False) as run:
                    for _ in run:
                        pass
                response = run.response
            else:
                response = swarm.run(_agent(model), "Hi", execute_tools=False)
        except (CompletionError, openai.APIError, anthropic.AnthropicError, AswarmError) as raised:
            error = raised
    return _answer(response, finish, error), response and next(iter(response.messages), None)


def _agent(model: str) -> Agent:
    # With few tokens, the source asks Claude for a whole answer. A long one would be streamed, because of the client's time limit.
    return Agent(model=model, model_settings={"max_tokens": 1000} if model.startswith("claude") else {})


def _watching(finish: list[Any]) -> Any:
    def watch(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    finish.extend(c.get("finish_reason") for c in chunk.get("choices") or () if not c.get("index"))
                    yield chunk

        return replace(handlers, complete=complete)

    return watch


def _answer(response: Response[Any] | None, finish: list[Any], error: BaseException | None) -> Answer:
    if response is None or not response.messages:
        return Answer(error=str(error)) if error else Answer(error="no message")
    answer = answer_of(response.messages[0])
    details = response.usage.details
    prompt, completion = details.get("prompt_tokens_details") or {}, details.get("completion_tokens_details") or {}
    found = {
        "input": response.usage.prompt_tokens,
        "output": response.usage.completion_tokens,
        "cached": prompt.get("cached_tokens", 0),
        "written": prompt.get("cache_write_tokens", 0),
        "reasoning": completion.get("reasoning_tokens", 0),
    }
    answer.usage = {name: tokens for name, tokens in found.items() if tokens}
    answer.finish = next(filter(None, reversed(finish)), None)
    answer.error = str(error) if error else None
    return answer


def answer_of(message: Mapping[str, Any]) -> Answer:
    """Return the texts and calls of a message."""
    answer = Answer(text=_text(message.get("content")), refusal=message.get("refusal") or "")
    answer.reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    answer.reasoning = answer.reasoning or "".join(
        each.get("text") or each.get("summary") or "" for each in message.get("reasoning_details") or ()
    )
    for call in message.get("tool_calls") or ():
        inner = call.get("function") or call["custom"]
        answer.calls.append((call["id"], inner["name"], inner.get("arguments", inner.get("input"))))
    parts = message["content"] if isinstance(message.get("content"), list) else ()
    thoughts = [part["thinking"] for part in parts if part.get("type") == "thinking"]  # Mistral
    texts = (each if isinstance(each, str) else "".join(part["text"] for part in each) for each in thoughts)
    answer.reasoning = answer.reasoning or "".join(texts)
    answer.items = [*(message.get("responses_output") or message.get("anthropic_output") or ())]
    return answer


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
