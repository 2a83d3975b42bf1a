"""The prompt tokens of a conversation with four handoffs, with and without `aswarm.middleware.keep_prefix`.

    python benchmarks/kept_prefix.py            # `nox -s deep -- bench_prefix` installs the packages

Two measurements of the same conversation, 12 messages of the user and 23 requests:

- **evaluated**: llama.cpp's server reports for each request the tokens from its cache and the evaluated ones. One slot, the
  demo's model. The server evaluates each prompt and one token; the answers come from a script, so both runs send the same texts.
- **cost**: by OpenAI's written rule for GPT-5.6 and later (developers.openai.com/api/docs/guides/prompt-caching, September 2026),
  with the tokenizer o200k: a read costs 0.1, a write 1.25, any other token 1. An entry ends at the last message of the user, at
  the last result of a group, at the end of the first developer messages, and at each explicit breakpoint; it has at least 1,024
  tokens. The overhead of the real rendering is unknown, so only the ratio counts. No request goes to a provider.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import bpe_openai
import httpx

from aswarm import Agent, AsyncSwarm
from aswarm.extensions import CompletionRequest
from aswarm.middleware import keep_prefix
from aswarm.testing import Request, ScriptedModel, Step, call

sys.path.append(str(Path(__file__).parents[1] / "examples" / "demo"))
from model_server import model_server

Json = dict[str, Any]
OPENAI = "https://api.openai.com/v1"
HISTORIES = (0, 2_000, 5_000, 10_000, 20_000, 50_000)  # tokens before the conversation
TOKENIZER = bpe_openai.get_encoding("o200k_base")
MINIMUM, READ, WRITE = 1_024, 0.1, 1.25

# --- the conversation ---

TURNS: list[tuple[str, list[str]]] = [
    ("Hello, I have a question about my last order.", []),
    ("Where is it? The number is 4711.", ["transfer_to_orders", "track_order"]),
    ("And when will it be here?", ["delivery_date"]),
    ("Can I still change the address?", []),
    ("One of the cups arrived broken. I want my money back.", ["transfer_to_refunds", "find_payment"]),
    ("Yes, please refund it.", ["refund"]),
    ("How long will that take?", []),
    ("And the other parcel, 4712?", ["transfer_to_orders", "track_order"]),
    ("Is it complete?", ["delivery_date"]),
    ("Then please refund that one as well.", ["transfer_to_refunds", "find_payment"]),
    ("Thank you. Do I get a receipt?", []),
    ("Great, goodbye.", []),
]
ANSWER = "Of course. I have looked it up for you, and everything is as you said; is there anything else that I can do for you today? "
ANSWER += (
    "If anything is unclear, write to us again at any time, and give the number of your order, so that we can find it."
)


def track_order(number: int) -> str:
    """Return where the parcel of an order is now, and the name of the carrier."""
    return f"The parcel of order {number} is in Leipzig, with the carrier Blue Van."


def delivery_date(number: int) -> str:
    """Return the day on which the parcel of an order will be delivered."""
    return f"Order {number} arrives on Tuesday between nine and noon."


def find_payment(number: int) -> str:
    """Return the payment of an order: the amount, the currency and the card."""
    return f"Order {number} was paid with a card that ends in 1234: 49.90 euros."


def refund(number: int, reason: str) -> str:
    """Refund the payment of an order. The reason is shown to the customer."""
    return f"The payment of order {number} is refunded: {reason}."


def agents(rules: int) -> dict[str, Agent]:
    """Return three agents. `rules`: the number of sentences in the instructions of each."""
    orders = Agent(
        name="Orders", instructions=_rules("orders and parcels", rules), functions=[track_order, delivery_date]
    )
    refunds = Agent(
        name="Refunds", instructions=_rules("payments and refunds", rules), functions=[find_payment, refund]
    )
    triage = Agent(name="Triage", instructions=_rules("everything else", rules), functions=[orders, refunds])
    orders.functions.append(refunds)
    refunds.functions.append(orders)
    return {agent.name: agent for agent in (triage, orders, refunds)}


def _rules(topic: str, count: int) -> str:
    rules = [f"Rule {n}: about {topic}, answer in one or two short, friendly sentences." for n in range(1, count + 1)]
    return "\n".join([f"You answer questions about {topic}.", *rules])


def steps() -> Iterator[Step]:
    """Yield the calls and the answers of the conversation."""
    for _, names in TURNS:
        for name in names:
            arguments = {} if name.startswith("transfer") else {"number": 4711}
            yield call(name, **arguments, **({"reason": "broken"} if name == "refund" else {}))
        yield ANSWER


async def converse(swarm: AsyncSwarm, team: Mapping[str, Agent], history: list[Json]) -> None:
    """Run the conversation after this history."""
    messages, agent = [*history], team["Triage"]
    for text, _ in TURNS:
        messages.append({"role": "user", "content": text})
        response = await swarm.run(agent, messages)
        messages += response.messages
        agent = response.agent or agent


# --- evaluated tokens on llama.cpp ---


class Counting:
    """A source: the server evaluates the prompt, and the answer comes from the script. `evaluated`: the tokens of each request."""

    def __init__(self, url: str) -> None:
        self._url, self._model = url, ScriptedModel(steps())
        self.evaluated: list[int] = []
        self.cached = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Let the server evaluate the prompt; yield the answer of the script."""
        body = {**request.chat_body(), "stream": False, "max_tokens": 1, "temperature": 0, "id_slot": 0}
        body.pop("stream_options", None)
        body["cache_prompt"] = True
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            reply = (await client.post(f"{self._url}/v1/chat/completions", json=body)).raise_for_status().json()
        self.evaluated.append(reply["timings"]["prompt_n"])
        self.cached += reply["timings"]["cache_n"]
        async for chunk in self._model.complete(request):
            yield chunk


async def evaluate(middleware: Callable[[Mapping[str, Agent]], list[Any]], rules: int) -> Counting:
    """Run the conversation on a new server."""
    team = agents(rules)
    with model_server() as url:
        source = Counting(url)
        await converse(AsyncSwarm(source, middleware=middleware(team)), team, [])
    return source


# --- cost by the written rule ---


class Cache:
    """The entries of the cache: the prefixes of requests that end at a boundary."""

    def __init__(self) -> None:
        self._entries: set[tuple[str, ...]] = set()
        self.cost = 0.0

    def charge(self, parts: list[str], boundaries: set[int]) -> None:
        """Add the cost of a request. `boundaries`: numbers of parts after which an entry may end."""
        sizes = [len(TOKENIZER.encode(part)) for part in parts]
        ends = [end for end in sorted(boundaries) if sum(sizes[:end]) >= MINIMUM]
        read = max((end for end in range(len(parts) + 1) if tuple(parts[:end]) in self._entries), default=0)
        written = max([read, *ends])
        self._entries |= {tuple(parts[:end]) for end in ends}
        self.cost += READ * sum(sizes[:read]) + WRITE * sum(sizes[read:written]) + sum(sizes[written:])


def charge(cache: Cache, request: Request) -> None:
    """Add the cost of a request with its boundaries by the rule."""
    messages = request.messages
    roles = [message["role"] for message in messages]
    parts = [json.dumps(request.body.get("tools", [])), *map(json.dumps, messages)]
    boundaries = {at + 1 for at, message in enumerate(messages, 1) if "prompt_cache_breakpoint" in json.dumps(message)}
    last = max(at for at, role in enumerate(roles) if role in ("user", "tool"))
    first_block = next(at for at, role in enumerate(roles) if role != "developer")
    cache.charge(parts, boundaries | {last + 2} | ({first_block + 1} if first_block else set()))


async def cost(middleware: Callable[[Mapping[str, Agent]], list[Any]], rules: int, history: int) -> float:
    """Return the cost of the conversation after this number of tokens."""
    team, model, cache = agents(rules), ScriptedModel(steps()), Cache()
    text = "The customer has told a long story. " * (history // 32)
    before = [{"role": role, "content": text} for role in ("user", "assistant") * 2] if history else []
    client = model.client(base_url=OPENAI)
    await converse(AsyncSwarm(client, api="responses", middleware=middleware(team)), team, before)
    for request in model.requests:
        charge(cache, request)
    return cache.cost


def today(_: Mapping[str, Agent]) -> list[Any]:
    """Return no middleware."""
    return []


def kept(team: Mapping[str, Agent]) -> list[Any]:
    """Return `keep_prefix`."""
    return [keep_prefix(*team.values())]


def kept_in_results(team: Mapping[str, Agent]) -> list[Any]:
    """Return `keep_prefix`, with the instructions in the results of handoffs."""
    return [keep_prefix(*team.values(), role="tool")]


async def main() -> None:
    """Print both tables."""
    for name, middleware in (("today", today), ("keep_prefix", kept), ('keep_prefix(role="tool")', kept_in_results)):
        source = await evaluate(middleware, rules=5)
        total = sum(source.evaluated)
        print(
            f"{name:26} prompt {total + source.cached:6,}  cached {source.cached:6,}  evaluated {total:5,}", flush=True
        )
    print("\ntokens of history   cost of keep_prefix, today = 1")
    for history in HISTORIES:
        ratio = await cost(kept, 15, history) / await cost(today, 15, history)
        print(f"{history:17,}   {ratio:.2f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
