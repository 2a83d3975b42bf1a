"""The chat at a real terminal, with a real server, keys and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread
import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.leaving.run_scenes import until
from tests.support.providers.loopback import LoopbackServer, Reply, serve, sse
from tests.support.repl.terminal import Terminal, terminal
from tests.support.sampling import listed

pytestmark = pytest.mark.processes

CHAT = """
import asyncio, sys
from aswarm import Agent, tool
from aswarm.repl import run_demo_loop, run_demo_loop_async

def confirm() -> str:
    '''Ask the user.'''
    return input("Sure? ")

@tool(approve=True)
def pay(amount: int) -> str:
    '''Pay.'''
    return f"paid {amount}"

agent = Agent(name="Bot", functions=[confirm, pay])
if sys.argv[1] == "async":
    asyncio.run(run_demo_loop_async(agent, stream=True))
else:
    run_demo_loop(agent, stream=True)
print("after the loop")
"""


def reply(body: dict) -> Reply:
    """Answer slowly to the message "slow"."""
    match body["messages"][-1]["content"]:
        case "slow":
            return sse(ScriptedAnswer("very " * 1000), cut=5, pause=0.02, end="stall")
        case "short":
            return sse(ScriptedAnswer("very " * 20), cut=5, pause=0.02)
        case "confirm":
            return sse(ScriptedAnswer(calls=[call("confirm")]))
        case "pay":
            return sse(ScriptedAnswer(calls=[call("pay", amount=5)]))
        case text:
            return sse(ScriptedAnswer(f"You said **{text}**."), cut=3)


async def use(server: LoopbackServer, program: str, user, *arguments: str) -> int:
    """Run the program at a terminal that `user` uses. Returns the exit code."""

    def at_the_terminal() -> int:
        with terminal(program, *arguments, OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="x") as screen:
            user(screen)
            return screen.end()

    return await anyio.to_thread.run_sync(at_the_terminal)


@pytest.mark.asyncio
@pytest.mark.parametrize("loop", listed(["blocking", "async"], ["async"]))
async def test_ctrl_c_stops_an_answer(loop):
    """Ctrl-C stops the answer and closes the response, and the chat continues."""

    def user(screen: Terminal) -> None:
        screen.until("User:")
        screen.type("slow\r")
        screen.until("very very")
        screen.type("\x03")
        screen.until("Stopped.")
        anyio.from_thread.run(until, lambda: server.closed_at)
        screen.type("and now\r")
        screen.until("1 request\nUser:")
        screen.type("\x03")
        screen.until("/exit.\nUser:")
        screen.type("\x04")
        screen.until("after the loop")

    async with serve(reply) as server:
        assert await use(server, CHAT, user, loop) == 0
    asked, stopped, again = [message["content"] for message in server.requests[1]["messages"][1:]]
    assert (asked, again) == ("slow", "and now")
    assert stopped.startswith("very very") and stopped.endswith("\n[stopped by the user]")


@pytest.mark.heavy
@pytest.mark.asyncio
async def test_keys_during_an_answer_go_to_the_next_prompt():
    """Keys that are typed during an answer do not break it, and are in the next prompt."""

    def user(screen: Terminal) -> None:
        screen.until("User:")
        screen.type("short\r")
        screen.until("very very")
        screen.type("typed early")
        screen.until("User: typed early")
        screen.type("\r")
        screen.until("You said typed early.")
        assert screen.screen.text.count("typed early") == 2
        screen.until("1 request\nUser:")
        screen.type("/exit\r")

    async with serve(reply) as server:
        assert await use(server, CHAT, user, "blocking") == 0


@pytest.mark.heavy
@pytest.mark.asyncio
async def test_a_function_asks_the_user():
    """`input` in a plain function works in the blocking loop."""

    def user(screen: Terminal) -> None:
        screen.until("User:")
        screen.type("confirm\r")
        screen.until("Sure?")
        screen.type("yes\r")
        screen.until("You said yes.")
        screen.until("2 requests\nUser:")
        screen.type("/exit\r")

    async with serve(reply) as server:
        assert await use(server, CHAT, user, "blocking") == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("loop", listed(["blocking", "async"], ["blocking"]))
async def test_a_call_that_waits_is_decided_at_the_terminal(loop):
    """Ctrl-C at the question leaves the call open, /resume asks again, and the call runs with changed arguments."""

    def at_the_prompt(shown: str) -> Callable[[str], bool]:
        return lambda text: shown in text and text.rpartition("User: ")[2].startswith("a message, or /help")

    def user(screen: Terminal) -> None:
        screen.until("User:")
        screen.type("pay\r")
        screen.until(at_the_prompt("waits: needs approval"))
        screen.type("\x03")
        screen.until(at_the_prompt("/resume asks about these calls"))
        screen.type("/resume\r")
        screen.until(at_the_prompt("User: /resume"))
        screen.type('e {"amount": 3}\r')
        screen.until(at_the_prompt("paid 3."))
        screen.type("\x04")
        screen.until("after the loop")

    async with serve(reply) as server:
        assert await use(server, CHAT, user, loop) == 0
    answers = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]
    assert answers == ['(run with arguments changed by the user: {"amount": 3})\npaid 3']


PLAIN = """
import asyncio, sys, termios
sys.modules["rich"] = None
from aswarm import Agent
from aswarm.repl import run_demo_loop_async

asyncio.run(run_demo_loop_async(Agent(name="Bot")))
print("echo", bool(termios.tcgetattr(0)[3] & termios.ECHO))
"""


def test_leaving_plain_lines_on_an_event_loop_restores_the_terminal():
    """Ctrl-C twice leaves at once, although a thread still reads, and the terminal echoes again."""
    with terminal(PLAIN) as screen:
        screen.until("User:")
        screen.type("\x03")
        screen.until("To leave, press Ctrl-C again")
        screen.type("\x03")
        screen.until("echo True")
        assert screen.end() == 0
