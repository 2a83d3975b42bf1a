"""The recipes of `docs/guides/providers.md` as programs, and a server in place of each of their providers.

Every request reaches it as an HTTP proxy, so the code of a recipe runs with its real address; only `https` is `http`. The
server rejects the same requests as the provider, with the texts of its errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import TypeAdapter, ValidationError

from aswarm.testing import ScriptedAnswer, call
from tests.support.anthropic_checks import fault as claude_fault
from tests.support.contract.documentation import PROJECT, Block, blocks_of
from tests.support.providers.claude import spoken_by_claude
from tests.support.providers.loopback import (
    LoopbackServer,
    Reply,
    is_for_claude,
    serve,
    sse,
    sse_response,
    whole,
    whole_response,
)

PAGE = PROJECT / "docs/guides/providers.md"
KEY = "key-of-a-test"
KEYS = ("OPENAI", "AZURE_OPENAI", "OPENROUTER", "GEMINI", "ANTHROPIC")
# The keys of a message of Chat Completions; `extra_content` is Gemini's, and `reasoning_details` OpenRouter's.
_MESSAGE = {"role", "content", "tool_calls", "tool_call_id", "name", "extra_content", "reasoning_details"}
_BODIES = {
    False: TypeAdapter[Any](ResponseCreateParamsNonStreaming),
    True: TypeAdapter[Any](ResponseCreateParamsStreaming),
}

Body = dict[str, Any]


def recipes() -> dict[str, Block]:
    """Return the Python of the page by the heading above it; "any-llm 2" is the second block below "any-llm"."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found: dict[str, Block] = {}
    for block in blocks_of(PAGE):
        if block.language == "python":
            heading = next(line[3:] for line in reversed(lines[: block.line]) if line.startswith("## "))
            found[f"{heading} 2" if heading in found else heading] = block
    return found


def run_recipe(block: Block) -> dict[str, Any]:
    """Return the names that the recipe has defined."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    source = "\n" * (block.line - 1) + block.code.replace("https://", "http://")
    exec(compile(source, str(block.page), "exec", dont_inherit=True), namespace)
    return namespace


# --- the providers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Provider:
    """One provider. `url` of the requests; `key`: the header with the key; `extra`: its addition to an answer with a call.

    `refuses`: returns the reason to reject a body, or nothing. `settings`: the settings of the recipe, required in the body.
    """

    url: str
    settings: Body
    key: tuple[str, str] = ("authorization", f"Bearer {KEY}")
    headers: dict[str, str] = field(default_factory=dict)
    refuses: Callable[[Body], str | None] = lambda _: None
    on_message: Body = field(default_factory=dict)
    on_call: Body = field(default_factory=dict)

    @property
    def is_responses(self) -> bool:
        return self.url.endswith("/responses")

    def error(self, url: str, headers: dict[str, str], body: Body) -> tuple[int, str] | None:
        """Return status and text of the rejection; None for a request that the provider accepts."""
        if url != self.url:
            return 404, f"there is nothing at {url}"
        if headers.get(self.key[0]) != self.key[1]:
            return 401, f"the key is missing in {headers}"
        if missing := {name: value for name, value in self.headers.items() if headers.get(name) != value}:
            return 400, f"these headers are missing: {missing}"
        if self.url.endswith("/messages"):
            return (400, reason) if (reason := claude_fault(body, None)) else None
        reason = (_responses_fault if self.is_responses else _chat_fault)(body) or self.refuses(body)
        return (400, reason) if reason else None


def _responses_fault(body: Body) -> str | None:
    try:
        _BODIES[bool(body.get("stream"))].validate_python(body)
    except ValidationError as error:
        return str(error)
    return None if body.get("store") is False else "the response would be stored"


def _chat_fault(body: Body) -> str | None:
    for message in body["messages"]:
        if unknown := message.keys() - _MESSAGE:
            return f"unknown keys on a message: {sorted(unknown)}"
        for made in message.get("tool_calls") or ():
            json.loads(made["function"]["arguments"])
    return None


def _gemini_refuses(body: Body) -> str | None:
    if "parallel_tool_calls" in body:
        return 'Invalid JSON payload received. Unknown name "parallel_tool_calls": Cannot find field.'
    calls = [made for message in body["messages"] for made in message.get("tool_calls") or ()]
    if any("extra_content" not in made for made in calls):
        return "Function call is missing a thought_signature in functionCall parts."
    return None


def _openrouter_refuses(body: Body) -> str | None:
    replayed = [message for message in body["messages"] if message["role"] == "assistant"]
    return None if all(message.get("reasoning_details") for message in replayed) else "reasoning_details are missing"


_OPENAI = "http://api.openai.com/v1"
_AZURE = "http://my-resource.openai.azure.com/openai"
_SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
_DETAILS = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "AAA", "index": 0}]}
PROVIDERS = {
    "OpenAI": Provider(f"{_OPENAI}/responses", {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}}),
    "Azure": Provider(f"{_AZURE}/v1/responses", {"model": "my-deployment", "reasoning": {"effort": "low"}}),
    "Azure with a dated API version": Provider(
        f"{_AZURE}/deployments/my-deployment/chat/completions?api-version=2024-10-21",
        {"max_completion_tokens": 2000},
        key=("api-key", KEY),
    ),
    "OpenRouter": Provider(
        "http://openrouter.ai/api/v1/chat/completions",
        {"provider": {"require_parameters": True}, "reasoning": {"effort": "low"}},
        headers={"http-referer": "http://example.com", "x-title": "Example"},
        refuses=_openrouter_refuses,
        on_message=_DETAILS,
    ),
    "Gemini": Provider(
        "http://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
        {"reasoning_effort": "low"},
        refuses=_gemini_refuses,
        on_call=_SIGNED,
    ),
    "Anthropic": Provider("http://api.anthropic.com/v1/messages", {"output_config": {"effort": "low"}}),
    "vLLM": Provider(
        "http://127.0.0.1:8000/v1/chat/completions",
        {"chat_template_kwargs": {"enable_thinking": False}},
        key=("authorization", "Bearer none"),
    ),
    "Ollama": Provider(
        "http://127.0.0.1:11434/v1/chat/completions",
        {"reasoning_effort": "none"},
        key=("authorization", "Bearer ollama"),
    ),
    "llama.cpp": Provider(
        "http://127.0.0.1:8080/v1/chat/completions",
        {"cache_prompt": True},
        key=("authorization", "Bearer none"),
        headers={"connection": "close"},
    ),
}


@asynccontextmanager
async def provider_server(provider: Provider) -> AsyncIterator[LoopbackServer]:
    """Run the provider as an HTTP proxy on loopback: it calls `look`, then answers "Fine."."""

    def reply(body: Body) -> Reply:
        lines = server.heads[-1].split("\r\n")
        url = lines[0].split(" ")[1]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        if error := provider.error(url, headers, body):
            status, words = error
            made = json.dumps({"error": {"message": words, "type": "invalid_request_error", "code": None}})
            return Reply([made.encode()], status=f"{status} -", content_type="application/json")
        return _answer(provider, body)

    async with serve(reply) as server:
        yield server


def _answer(provider: Provider, body: Body) -> Reply:
    texts = json.dumps(body.get("input") or body["messages"])
    has_result = re.search(r'"(role": "tool|type": "(function_call_output|tool_result))"', texts)
    answer = (
        ScriptedAnswer("Fine.")
        if has_result
        else ScriptedAnswer("Wait.", [call("look", city="Oslo")], provider.on_message)
    )
    streamed = bool(body.get("stream"))
    if is_for_claude(body):
        return spoken_by_claude(answer, body, cut=3)
    if provider.is_responses:
        return sse_response(answer, cut=3) if streamed else whole_response(answer)
    if streamed and not (body.get("stream_options") or {}).get("include_usage"):
        answer = ScriptedAnswer(answer.text, answer.calls, answer.extra, usage=None)
    made = sse(answer, cut=3) if streamed else whole(answer)
    return Reply([_with_on_call(piece, provider) for piece in made.pieces], content_type=made.content_type)


def _with_on_call(piece: bytes, provider: Provider) -> bytes:
    """Return the piece, with the provider's addition in a call."""
    extra = json.dumps(provider.on_call)[1:-1].encode()
    return piece.replace(b'"type": "function"', b'"type": "function", ' + extra) if extra else piece
