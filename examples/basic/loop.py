"""A chat without helpers: the program keeps the messages and the agent. With `--chat` you type; an empty line ends the chat.

`aswarm.repl.run_demo_loop` is a more comfortable chat that works in the same way.
"""

import sys
from collections.abc import Iterator
from typing import Any

from aswarm import Agent, Swarm

CONVERSATION = ["My name is Ada. My brakes squeal.", "The front one.", "What was my name?"]

workshop = Agent(name="Workshop", instructions="You repair bicycles. Answer in one sentence.")
reception = Agent(name="Reception", instructions="You are the reception of a bicycle shop.", functions=[workshop])


def ask(conversation: Iterator[str]) -> str:
    """Return the next message of the customer, from the keyboard or from the fixed conversation. It is empty at the end."""
    if "--chat" in sys.argv:
        return input("> ")
    text = next(conversation, "")
    if text:
        print(f"> {text}")
    return text


def main() -> None:
    """Run the loop. `Swarm` is `AsyncSwarm` without `await`."""
    messages: list[Any] = []
    agent = reception
    conversation = iter(CONVERSATION)
    with Swarm() as swarm:
        while text := ask(conversation):
            messages.append({"role": "user", "content": text})
            response = swarm.run(agent, messages)
            messages += response.messages
            agent = response.agent
            print(f"{agent.name}: {response.text}")


main()
