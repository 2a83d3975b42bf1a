"""The agents of a soak, and their model: a server on loopback that follows the words of the user, with the faults of a provider.

The first word of a message names the action. After the results of the calls, the model answers with a text.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import anyio

from aswarm import Agent, Hold, agent_tool, current_call, progress, tool
from aswarm.code import code_tool
from aswarm.conversations import last
from aswarm.testing import ScriptedAnswer, ScriptedCall, call
from tests.support.providers.loopback import Reply, spoken, sse, whole

ACTIONS = {
    "talk": 25, "long": 4, "look_up": 15, "search": 8, "note": 8, "compute": 5, "refund": 8, "ask": 4, "code": 4, "pay": 2,
    "transfer": 5, "expert": 5, "served": 3, "slow": 6,
}  # fmt: skip
_CODE = "orders = await list_orders()\nawait asyncio.gather(*[charge(each, 100) for each in orders])"
_PAY = "await list_orders()\nawait pay(7)"
_TEXT = "Your order is on its way, and it will arrive tomorrow before noon. "
_FAULTS = {"none": 95.0, "429": 1.0, "500": 1.2, "cut": 1.4, "reset": 0.8, "silent": 0.2, "stall": 0.2, "nonsense": 0.2}


def action(rand: random.Random, *but: str) -> str:
    """Return the text of a user, such as "look_up 17"."""
    chosen = {name: weight for name, weight in ACTIONS.items() if name not in but}
    return f"{rand.choices(list(chosen), list(chosen.values()))[0]} {rand.randrange(1000)}"


# --- agents -----------------------------------------------------------------------------------------------------------


@dataclass
class Customer:
    """The context variables."""

    name: str = "guest"
    points: int = 0
    notes: list[str] = field(default_factory=list)


async def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


@tool(repeatable=True, limiter=anyio.CapacityLimiter(5), timeout=5)
async def search(query: str) -> list[str]:
    """Search the shop; it may start while the model writes."""
    progress(query)
    await anyio.sleep(0.02)
    return [f"{query} {number}" for number in range(3)]


async def note(text: str, context_variables: Customer) -> str:
    """Make a note."""
    context_variables.points += 1
    context_variables.notes = [*context_variables.notes[-4:], text]
    return f"{context_variables.points} notes"


def compute(number: int) -> int:
    """Compute in a thread."""
    time.sleep(0.01)
    return number * number


@tool(approve=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"Order {order} is refunded."


@tool(may_wait=True)
async def ask(question: str) -> str:
    """Ask the user."""
    if not current_call().is_approved:
        raise Hold(question, data={"choices": ["yes", "no"]})
    return f"The user says {current_call().answer}."


async def slow(seconds: float) -> str:
    """Take a while."""
    await anyio.sleep(seconds)
    return "done"


async def list_orders() -> list[int]:
    """List the orders."""
    return [7, 8, 9]


async def charge(order: int, cents: int) -> str:
    """Charge an order."""
    return f"{cents} for {order}"


@tool(approve=True)
async def pay(order: int) -> str:
    """Pay an order."""
    return f"paid {order}"


def agents(*functions: Any) -> list[Agent]:
    """Return new agents: a desk, to whom clients talk, and orders, to whom the desk hands off. `functions`: more of the desk."""
    expert = Agent(name="expert", instructions="You know everything.", functions=[look_up])
    orders = Agent(name="orders", instructions="You know the orders.", functions=[look_up, refund], history=last(20))
    code = code_tool(list_orders, charge, pay)
    own = [look_up, search, note, compute, refund, ask, slow, code, orders, agent_tool(expert, name="expert")]
    desk = Agent(name="desk", instructions="You help customers.", functions=[*own, *functions], history=last(20))
    return [desk, orders]


# --- the model --------------------------------------------------------------------------------------------------------


class Model:
    """Answers requests. `faults`: the number of each fault; `pace`: the mean pause before a chunk, in seconds."""

    def __init__(self, rand: random.Random, pace: float = 0.01) -> None:
        self.faults: Counter[str] = Counter()
        self._rand = rand
        self._pace = pace

    def reply(self, body: dict[str, Any]) -> Reply:
        """Return the reply to a request."""
        fault = self._rand.choices(list(_FAULTS), list(_FAULTS.values()))[0]
        self.faults[fault] += 1
        match fault:
            case "429":
                return Reply([b'{"error": {"message": "slow down", "code": "rate_limit_exceeded"}}'], status="429 Too Many Requests",
                             content_type="application/json", headers={"retry-after": "1"})  # fmt: skip
            case "500":
                return Reply(
                    [b'{"error": {"message": "oh"}}'], status="500 Server Error", content_type="application/json"
                )
            case "silent":
                return Reply([], silent=True)
            case "nonsense":
                return Reply([b"data: {]\n\n"])
            case _:
                return self._spoken(body, fault)

    def _spoken(self, body: dict[str, Any], fault: str) -> Reply:
        answer = self._answer(body)
        if fault == "none":
            reply = spoken(answer, body, cut=12)
        else:
            reply = sse(answer, cut=12) if body.get("stream") else whole(answer)
            pieces = list(reply.pieces)
            kept = self._rand.randrange(len(pieces)) if len(pieces) > 1 else 0
            reply = Reply(pieces[:kept], end={"cut": "close"}.get(fault, fault), content_type=reply.content_type)
        reply.pause = self._rand.expovariate(1 / self._pace) if len(reply.pieces) > 1 else 5 * self._pace
        return reply

    def _answer(self, body: dict[str, Any]) -> ScriptedAnswer:
        said = next((each for each in reversed(body["messages"]) if each["role"] != "system"), {"role": "user"})
        words = str(said.get("content") or "").split()
        offered = {each["function"]["name"] for each in body.get("tools", ())}
        calls = self._calls(words[0], offered) if said["role"] == "user" and words else []
        calls = [each for each in calls if each.name in offered]
        if calls:
            return ScriptedAnswer(calls=calls, pause=self._pace)
        is_long = said["role"] == "user" and words[:1] == ["long"]
        return ScriptedAnswer(_TEXT * (6 if is_long else 1), pause=self._pace)

    def _calls(self, name: str, offered: set[str]) -> list[ScriptedCall]:
        number = self._rand.randrange(1000)
        match name:
            case "look_up" | "refund":
                return [call(name, order=number)]
            case "search":
                return [call(name, query="lamp"), call(name, query="bed"), call("look_up", order=number)]
            case "note":
                return [call(name, text=f"note {number}")]
            case "compute":
                return [call(name, number=number), call("look_up", order=number)]
            case "ask":
                return [call(name, question="Really?"), call("look_up", order=number)]
            case "code" | "pay":
                return [call("run_code", code=_CODE if name == "code" else _PAY)]
            case "transfer":
                return [call("transfer_to_orders")]
            case "expert":
                return [call(name, request="look_up 7")]
            case "served":
                return [call(each, request="look_up 7") for each in sorted(offered) if each.startswith("served_")]
            case "slow":
                return [call(name, seconds=round(self._rand.expovariate(0.7), 2))]
            case _:
                return []
