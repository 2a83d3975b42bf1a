"""Queries of readers, and their pages: the search of the site must have the page among its first results.

`python -m tests.support.contract.site_search build/site` asks the search of a built site; `nox -s docs` does so.
If the titles and the text of a page are not enough, the words are in its index, in a comment below its question: `<!-- index: sse, server-sent events -->`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

FIRST = 3
PAGES = {
    "guides/approvals": "approval, approvals, human in the loop, confirm",
    "guides/batches-and-limits": "rate limit, rate limits, 429, backoff, tokens per minute, batch",
    "guides/budgets": "budget, cost, max tokens",
    "guides/code-mode": "code mode, sandbox, programmatic tool calling",
    "guides/command-line": "cli, command line",
    "guides/concurrency": "concurrency, parallel tool calls, eager tools",
    "guides/conversations": "session, sessions, conversation, conversations, chat history, sqlite, postgresql",
    "guides/durable": "durable execution, temporal, dbos, crash recovery",
    "guides/evals": "evals, evaluation",
    "guides/guards": "guardrails, guardrail, moderation",
    "guides/history": "context window, trim history, summarize, long history",
    "guides/mcp": "mcp, model context protocol",
    "guides/memory": "memory",
    "guides/security": "security, threat model, vulnerability",
    "reference/platforms": "windows, macos",
    "reference/stable": "deprecation, stability",
    "guides/middleware": "middleware, retry, fallback, cache",
    "guides/multi-agent": "handoff, handoffs, multi-agent, sub-agent, agent as tool",
    "guides/openai-clients": "open webui, openai compatible",
    "guides/performance": "performance",
    "guides/production": "production, docker, kubernetes, deploy",
    "guides/providers": "anthropic, gemini, ollama, vllm, azure, litellm, proxy, responses api, claude, local model",
    "guides/running": "sync, jupyter, images, run an agent",
    "guides/serving": "playground, ag-ui, vercel, http service",
    "guides/stopping-and-resuming": "timeout, cancel, resume",
    "guides/streaming": "streaming, events",
    "guides/streaming-to-a-browser": "sse, websocket, server-sent events",
    "guides/structured-output": "structured output, json schema, pydantic, output type",
    "guides/terminal": "repl, terminal",
    "guides/testing": "mock, pytest, testing",
    "guides/tools": "tools, function calling, tool error, context variables",
    "guides/tracing": "tracing, opentelemetry, logging, metrics, langfuse",
    "guides/web-services": "fastapi, django, starlette, litestar",
    "coming-from/langgraph": "langgraph",
    "coming-from/openai-agents": "openai-agents",
    "coming-from/pydantic-ai": "pydantic-ai",
}
QUERIES = {query: page for page, queries in PAGES.items() for query in queries.split(", ")}


def check(site: Path) -> list[str]:
    """The queries whose page is not among the first results, one line each. Without Node.js nothing is checked."""
    if not shutil.which("node"):
        print("the search was not checked: it runs in Node.js")
        return []
    wrong = []
    for query, places in results(site).items():
        if QUERIES[query] not in places[:FIRST]:
            at = places.index(QUERIES[query]) + 1 if QUERIES[query] in places else "missing"
            wrong.append(f"the search for {query!r} has {QUERIES[query]} at {at}, after {', '.join(places[:FIRST])}")
    return wrong


def results(site: Path) -> dict[str, list[str]]:
    """The pages that the search of the site finds for each query, best first."""
    command = ["node", os.fspath(Path(__file__).with_suffix(".mjs")), os.fspath(site), *QUERIES]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit("\n".join(check(Path(sys.argv[1]))) or None)
