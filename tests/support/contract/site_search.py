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
    "guides/approvals": "approval, approvals, human in the loop, human-in-the-loop, hitl, confirm, tool permission, permissions, interrupt, "
    "deferred tools, external tools, ask the user",
    "guides/batches-and-limits": "rate limit, rate limits, 429, backoff, tokens per minute, batch, csv, throttle, bulk, too many requests",
    "guides/budgets": "budget, budgets, cost, max tokens, usage limits, token limit, price, recursion limit, infinite loop, cost "
    "tracking, token usage, price of a run",
    "guides/code-mode": "code mode, sandbox, programmatic tool calling, code interpreter, codeact",
    "guides/command-line": "cli, command line, visualization",
    "guides/concurrency": "concurrency, parallel tool calls, eager tools, concurrent tools",
    "guides/conversations": "session, sessions, conversation, conversations, chat history, sqlite, postgresql, persistence, thread id, checkpoint, "
    "checkpointer, time travel, fork, redis, multi-turn, snapshot, store, multi turn",
    "guides/durable": "durable execution, temporal, dbos, crash recovery, celery, worker, queue, workflow engine, background job, "
    "idempotency, durable workflow",
    "guides/evals": "evals, evaluation, llm as a judge, dataset, regression test",
    "guides/guards": "guardrails, guardrail, moderation, tripwire, jailbreak",
    "guides/history": "context window, trim history, summarize, long history, compaction, truncate, handoff filter",
    "guides/long-results": "large tool output, long results, spill, truncate tool results, offload",
    "guides/mcp": "mcp, model context protocol, mcp server, tool filter, allowed tools, stdio",
    "guides/memory": "memory, long-term memory, remember, user profile",
    "guides/middleware": "middleware, retry, retries, fallback, cache, record, replay, hooks, callbacks, lifecycle, hedging, pii, retry "
    "policy, fallback model, FallbackModel",
    "guides/multi-agent": "handoff, handoffs, multi-agent, sub-agent, subagent, subagents, agent as tool, supervisor, orchestrator, router, workflow, "
    "parallel agents, fan out, delegate",
    "guides/openai-clients": "open webui, openai compatible",
    "guides/performance": "performance, latency, aiohttp",
    "guides/prompt-caching": "prompt caching, cached tokens, cost of a run",
    "guides/production": "production, docker, kubernetes, deploy, prompt injection",
    "guides/providers": "anthropic, gemini, ollama, vllm, azure, litellm, proxy, responses api, claude, local model, openrouter, "
    "deepseek, base url, LitellmModel",
    "guides/recipes": "recipes, cookbook, deep research, research agent, planner, spreadsheet, rag, vector store, retrieval, "
    "embeddings, knowledge base",
    "guides/running": "sync, jupyter, images, run an agent, multimodal, vision, pdf, audio, run_sync, system prompt, temperature, "
    "notebook, dynamic instructions, hosted tools, web search, max_turns, BinaryContent, "
    "ImageUrl",
    "guides/security": "security, threat model, vulnerability",
    "guides/serving": "playground, ag-ui, vercel, http service",
    "guides/simulation": "simulation, race condition, chaos",
    "guides/skills": "skills, skill, agent skills, SKILL.md, progressive disclosure",
    "guides/stopping-and-resuming": "timeout, cancel, resume, abort, stop button, cancel run",
    "guides/streaming": "streaming, events, astream",
    "guides/streaming-to-a-browser": "sse, websocket, server-sent events",
    "guides/structured-output": "structured output, json schema, pydantic, output type, streaming json, partial json, response_format, "
    "output_type, nested models, pydantic model",
    "guides/terminal": "repl, terminal",
    "guides/testing": "mock, pytest, testing, vcr, cassette, fake model, TestModel, FunctionModel, unit test, scripted model, fake llm",
    "guides/tools": "tools, function calling, tool error, context variables, deps, dependencies, RunContext, dependency injection, "
    "tool choice, tool timeout, enum",
    "guides/tracing": "tracing, opentelemetry, logging, metrics, langfuse, logfire, observability, debug",
    "guides/upgrading": "upgrading, rolling deploy, migration",
    "guides/web-services": "fastapi, django, starlette, litestar, user id, current user, identity",
    "reference/glossary": "glossary",
    "reference/platforms": "windows, macos",
    "reference/stable": "deprecation, stability",
    "coming-from/agent-framework": "agent-framework, microsoft agent framework, AgentSession, WorkflowBuilder",
    "coming-from/agno": "agno, AgentOS",
    "coming-from/langgraph": "langgraph, StateGraph, InjectedState",
    "coming-from/openai-agents": "openai-agents, openai agents sdk, Runner",
    "coming-from/pydantic-ai": "pydantic-ai, pydantic ai",
    "coming-from/strands": "strands, strands agents, FileSessionManager",
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
