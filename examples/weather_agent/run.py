"""Ask for the weather: two fixed questions, or your own with `--chat` (which needs `pip install ".[cli]"`).

This example uses `Swarm`, without `await`. The two cities are looked up at the same time nevertheless.
"""

from __future__ import annotations

import sys
from typing import Any

from agents import weather_agent

from aswarm import Swarm

QUESTIONS = ["What is the weather in Oslo and in Lima?", "Please send that about Oslo to ada@example.com."]


def main() -> None:
    """Ask each question, and print all messages of its run. The next run continues with the whole history."""
    messages: list[Any] = []
    context: dict[str, Any] = {"outbox": []}
    with Swarm() as swarm:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            response = swarm.run(weather_agent, messages, context)
            print(f"You: {question}")
            for message in response.messages:
                show(message)
            messages += response.messages
            context = response.context_variables
    print(f"sent: {context['outbox']}")


def show(message: dict[str, Any]) -> None:
    """Print one message of the history: a call, a result or a text."""
    if message["role"] == "tool":
        print(f"    {message['tool_name']} -> {message['content']}")
        return
    for call in message["tool_calls"] or []:
        print(f"    calls {call['function']['name']} {call['function']['arguments']}")
    if message["content"]:
        print(f"{message['sender']}: {message['content']}")


if __name__ == "__main__":
    if "--chat" in sys.argv[1:]:
        from aswarm.repl import run_demo_loop

        run_demo_loop(weather_agent, context_variables={"outbox": []}, stream=True)
    else:
        main()
