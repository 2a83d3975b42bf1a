"""The prompt tokens of an agent with 300 tools of real MCP servers, with and without `@tool(defer=True)`.

    python benchmarks/tool_search.py            # `nox -s deep -- bench_search` installs the packages; it needs node

The servers are started with npx, and only their lists of tools are read. Ten questions, for each of which the model calls one tool: it
searches, calls the tool, and answers. The answers come from a script, so all variants send the same texts; a tool that the search does not
find is counted. Tokens are counted with the tokenizer o200k in the JSON of the tools and of the messages, because the rendering of the
provider is unknown; only the ratios count. The cost is the rule of `kept_prefix.py`. No request goes to a provider.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

from kept_prefix import OPENAI, TOKENIZER, Cache, charge
from mcp import StdioServerParameters

from aswarm import Agent, AsyncSwarm, Tool
from aswarm.mcp import MCPServer
from aswarm.testing import Request, ScriptedCall, ScriptedModel, Step, call
from aswarm.tools import function_tool, tool_search

COUNT, MODEL = 300, "gpt-6-luna"
ANSWER = "I have looked it up for you. " * 4
RESULT = "The state of the object is as expected, and nothing else was changed. " * 12
# Packages of npm with their versions on 2026-11-27, their arguments, and a variable that must be set for a start.
SERVERS = {
    "github": ("@modelcontextprotocol/server-github@2025.4.8", [], "GITHUB_PERSONAL_ACCESS_TOKEN"),
    "gitlab": ("@zereight/mcp-gitlab@2.1.64", [], "GITLAB_PERSONAL_ACCESS_TOKEN"),
    "files": ("@modelcontextprotocol/server-filesystem@2026.8.31", ["."], ""),
    "playwright": ("@playwright/mcp@0.0.83", [], ""),
    "chrome": ("chrome-devtools-mcp@1.11.0", [], ""),
    "kubernetes": ("mcp-server-kubernetes@4.1.7", [], ""),
    "notion": ("@notionhq/notion-mcp-server@2.5.2", [], "NOTION_TOKEN"),
    "mongodb": ("mongodb-mcp-server@3.0.4", [], ""),
    "maps": ("@modelcontextprotocol/server-google-maps@0.6.2", [], "GOOGLE_MAPS_API_KEY"),
    "memory": ("@modelcontextprotocol/server-memory@2026.8.31", [], ""),
}
# A search, as a model writes it, and the tool that it needs.
QUESTIONS = [
    ("create a github issue", "github_create_issue"),
    ("merge request gitlab", "gitlab_create_merge_request"),
    ("read a file", "files_read_text_file"),
    ("take a screenshot of the page", "playwright_browser_take_screenshot"),
    ("kubernetes logs of a pod", "kubernetes_kubectl_logs"),
    ("search notion pages", "notion_API-post-search"),
    ("mongodb count documents", "mongodb_count"),
    ("driving directions", "maps_maps_directions"),
    ("remember facts about a person", "memory_create_entities"),
    ("list github pull requests", "github_list_pull_requests"),
]


async def listed() -> list[Tool[..., Any]]:
    """Return the tools of the servers."""
    found: list[Tool[..., Any]] = []
    for name, (package, arguments, variable) in SERVERS.items():
        environment = {key: os.environ[key] for key in ("PATH", "HOME")} | ({variable: "unused"} if variable else {})
        command = StdioServerParameters(command="npx", args=["--yes", package, *arguments], env=environment)
        async with MCPServer(command, prefix=f"{name}_", timeout=120) as server:
            found += server.functions
            print(f"{name:12} {len(server.functions):3} tools  {package}", flush=True)
    return found


async def result(**_: Any) -> str:
    """Return the same text for each call."""
    return RESULT


def functions(tools: list[Tool[..., Any]], *, defer: bool) -> list[Any]:
    """Return the tools with their texts, and with another function."""
    texts = [tool.schema["function"] for tool in tools]
    return [function_tool(result, **text, defer=defer) for text in texts]


def steps(*, searches: bool, wraps: bool) -> Iterator[Step]:
    """Yield the calls and the answers of the conversation."""
    for query, name in QUESTIONS:
        if searches:
            yield call("search_tools", query=query)
        arguments = {"owner": "ada", "repo": "lamps", "title": "It flickers"}
        yield _wrapped(name, arguments) if wraps else call(name, arguments)
        yield ANSWER


def _wrapped(name: str, arguments: dict[str, Any]) -> ScriptedCall:
    return call("call_tool", json.dumps({"name": name, "arguments": arguments}))


async def converse(agent: Agent, script: Iterator[Step]) -> list[Request]:
    """Run the conversation, and return its requests."""
    model, messages = ScriptedModel(script), list[Any]()
    swarm = AsyncSwarm(model.client(base_url=OPENAI), api="responses")
    for query, _ in QUESTIONS:
        messages.append({"role": "user", "content": f"Please help me: {query}."})
        messages += (await swarm.run(agent, messages)).messages
    searched = [message for message in messages if message.get("tool_name") == "search_tools"]
    if searched:
        hits = sum(f'"{name}"' in message["content"] for message, (_, name) in zip(searched, QUESTIONS, strict=True))
        print(f"    the search has found {hits} of {len(QUESTIONS)} tools")
    return model.requests


def tokens(request: Request) -> int:
    """Return the tokens of the whole prompt of a request."""
    parts = [json.dumps(request.body.get("tools", [])), *map(json.dumps, request.messages)]
    return sum(len(TOKENIZER.encode(part)) for part in parts)


async def main() -> None:
    """Print the table."""
    tools = (await listed())[:COUNT]
    deferred = functions(tools, defer=True)
    variants: dict[str, tuple[list[Any], bool, bool]] = {
        "today": (functions(tools, defer=False), False, False),
        "call": ([*deferred, tool_search("call")], True, True),
        "append": ([*deferred, tool_search("append")], True, False),
        "OpenAI's tool_search": (deferred, True, False),
    }
    whole = cost = 0.0
    for name, (own, searches, wraps) in variants.items():
        agent = Agent(model=MODEL, instructions="You help an office.", functions=own)
        requests, cache = await converse(agent, steps(searches=searches, wraps=wraps)), Cache()
        for request in requests:
            charge(cache, request)
        total = sum(map(tokens, requests))
        whole, cost = whole or total, cost or cache.cost
        print(
            f"{name:20} {len(requests)} requests  {total:9,} tokens ({total / whole:5.1%})  "
            f"cost with cache {cache.cost:9,.0f} ({cache.cost / cost:5.1%})",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
