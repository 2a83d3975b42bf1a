"""Customers ask in one process, and a person decides in another process. The processes share only the file of the store.

Without arguments, the two processes run one after the other. `run.py ask FILE`: four customers write. `run.py decide FILE`: the
person at the desk decides on the open calls; with `--keyboard`, you are this person.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from agents import cashier

from aswarm import Approve, AsyncSwarm, Deny, OpenCall, Reply
from aswarm.conversations import Conversation, SQLiteStore
from aswarm.decisions import Decision

MESSAGES = {
    "ada": "Order 7 came broken. Please refund 120 euros.",
    "ben": "Order 8 flickers. Please refund 30 euros.",
    "cleo": "Order 9 never came. Please send a new lamp.",
    "dan": "I don't like order 10. Please refund 900 euros.",
}
# The decisions of the person at the desk, for each customer.
DECISIONS: dict[str, Approve | Reply | Deny] = {
    "ada": Approve({"order": 7, "amount": 80}),
    "cleo": Reply("blue"),
    "dan": Deny("it cost 90 euros"),
}


async def ask(file: Path) -> None:
    """Send the message of each customer. Calls that wait stay open in the store."""
    async with SQLiteStore(file) as store, AsyncSwarm() as swarm:
        for customer, text in MESSAGES.items():
            print(f"{customer}: {text}")
            response = await store.conversation(customer, swarm, agent=cashier).run(text)
            for call in response.waiting:
                print(f"    waits: {call.name} {call.arguments} - {call.reason}")
            if response.text:
                print(f"    Cashier: {response.text}")


async def decide(file: Path, *, keyboard: bool) -> None:
    """Decide on the open calls of all customers."""
    async with SQLiteStore(file) as store, AsyncSwarm() as swarm:
        for summary in sorted(await store.list(), key=lambda each: each.id):
            chat = store.conversation(summary.id, swarm, agent=cashier)
            if calls := (await chat.load()).open_calls:
                await decide_on(chat, calls, keyboard=keyboard)


async def decide_on(chat: Conversation, calls: list[OpenCall], *, keyboard: bool) -> None:
    """Decide on the open calls of one conversation, and continue the conversation."""
    decisions: dict[str | int, Decision] = {}
    for call in calls:
        print(f"{chat.id}: {call.name} {call.arguments} - {call.reason} {call.data or ''}".rstrip())
        decision = from_keyboard(call) if keyboard else DECISIONS[chat.id]
        decisions[call.id] = decision
        print(f"    {in_words(decision)}")
    response = await chat.resume(decisions)
    print(f"    Cashier: {response.text}")


def in_words(decision: Approve | Reply | Deny) -> str:
    """Return a line of text about a decision."""
    match decision:
        case Approve(arguments=None):
            return "approved"
        case Approve(arguments=arguments):
            return f"approved with {arguments}"
        case Reply(answer):
            return f"answered: {answer}"
        case Deny(reason):
            return f"denied: {reason}"


def from_keyboard(call: OpenCall) -> Approve | Reply | Deny:
    """Read your decision: an answer if the call asks a question, otherwise yes or no."""
    if call.data is not None:
        return Reply(input("    your answer: "))
    reason = input("    Return runs it; a reason denies it: ")
    return Deny(reason) if reason else Approve()


def main(command: str = "", *rest: str) -> None:
    """Run one part, or run both parts in separate processes."""
    if command == "ask":
        asyncio.run(ask(Path(rest[0])))
    elif command == "decide":
        asyncio.run(decide(Path(rest[0]), keyboard="--keyboard" in rest))
    else:
        with tempfile.TemporaryDirectory() as folder:
            for part in ("ask", "decide"):
                print(f"--- {part}", flush=True)
                subprocess.run([sys.executable, __file__, part, str(Path(folder, "chats.sqlite"))], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
