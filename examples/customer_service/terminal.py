"""The customer's side of the conversation: sends the messages, prints the events, and asks yes or no at the keyboard."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from aswarm import Agent, CompletionFinished, Event, HandedOff, Swarm, ToolCallFinished, ToolCallStarted


def converse(agent: Agent, lines: Iterable[str], context: dict[str, Any] | None = None) -> None:
    """Send the messages one after another. Each run continues with the messages and the agent of the previous run."""
    messages: list[dict[str, Any]] = []
    with Swarm() as swarm:
        for line in lines:
            print(f"Customer: {line}")
            messages.append({"role": "user", "content": line})
            with swarm.stream(agent, messages, context) as run:
                for event in run:
                    show(event)
            messages += run.response.messages
            agent = run.response.agent


def show(event: Event) -> None:
    """Print the texts and calls of an agent, the results, and the handoffs."""
    match event:
        case CompletionFinished(message=message) if message["content"]:
            print(f"{message['sender']}: {message['content']}")
        case ToolCallStarted(name=name, arguments=arguments, agent=agent):
            print(f"    {agent.name} calls {name} {arguments}")
        case ToolCallFinished(content=content):
            print(f"    -> {content}")
        case HandedOff(source=source, target=target):
            print(f"    {source.name} hands over to {target.name}")
        case _:
            pass


def ask(question: str) -> bool:
    """Ask at the keyboard. Only "yes" means yes; an empty line, the end of the input and any other text mean no."""
    try:
        answer = input(f"    {question} [y/N] ")
    except EOFError:
        answer = ""
    if not sys.stdin.isatty():
        print(answer or "(no answer)")  # a terminal has shown what was typed
    return answer.strip().lower() in {"y", "yes"}


def say_yes(question: str) -> bool:
    """Answer yes for the customer, without a person at the keyboard."""
    print(f"    {question} [y/N] y")
    return True
