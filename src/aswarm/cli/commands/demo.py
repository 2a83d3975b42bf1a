"""`aswarm demo`: a short conversation with two agents and a scripted model, without an API key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from aswarm import Swarm
from aswarm._swarm import AsyncSwarm
from aswarm._values.text import counted
from aswarm.cli._command import command, reserve_stdout, write
from aswarm.cli._server import LOOPBACK, port_option, serve_until_stopped
from aswarm.cli.demo_agents import triage

if TYPE_CHECKING:
    from aswarm.testing import ScriptedModel

QUESTION = "Hello, the lamp from order 4711 arrived broken. Please give me my money back."
_BEFORE = f"""\
The model of this demo is a script: its answers were written in advance, and nothing leaves this machine.
The rest is real: agents, functions, handoff, client and stream.

You: {QUESTION}
"""
_AFTER = """
Now with your own model. Any server with the Chat Completions API works:

  export OPENAI_API_KEY=...        or, for your own server: export OPENAI_BASE_URL=http://127.0.0.1:8080/v1
  aswarm chat --model gpt-6-luna aswarm.cli.demo_agents:triage
  aswarm graph aswarm.cli.demo_agents:triage

The agents are in the module aswarm.cli.demo_agents.
"""


@command(
    "demo",
    text="Run two agents with a scripted model, without an API key.\n\nThe answers of the model were written in advance; agents, functions "
    "and handoffs are real.",
)
@click.option("--serve", is_flag=True, help="Show the agents in the playground on this machine, until Ctrl-C.")
@port_option("The port of the playground; 0 for any free port.", 8000)
def demo(serve: bool, port: int) -> None:
    """Show the conversation."""
    if serve:
        served = AsyncSwarm(_model(pause=0.02).client())
        serve_until_stopped(served, [triage], host=LOOPBACK, port=port, token=None, store=None)
        return
    from aswarm.repl._display import PlainDisplay, rich_display  # noqa: PLC0415 - `--help` needs no display

    with reserve_stdout() as stdout:
        write(stdout, _BEFORE)
        client = _model(pause=0.04 if stdout.isatty() else 0).client()
        with Swarm(client) as swarm, swarm.stream(triage, QUESTION) as run:
            display = rich_display(stdout, live=True) or PlainDisplay(stdout, live=True)
            for event in run:
                display.show_event(event)
            display.end_run()
        usage = run.response.usage
        write(
            stdout, f"({counted(usage.requests, 'completion')}. They used no tokens: the model is a script.)\n{_AFTER}"
        )


def _model(pause: float) -> ScriptedModel:
    """Return a model that gives the same answers in each conversation. `pause`: seconds before each piece of an answer."""
    from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call  # noqa: PLC0415 - it imports httpx, which is slow

    steps = [
        ScriptedAnswer(calls=[call("transfer_to_refunds")]),
        ScriptedAnswer("I am sorry to hear that. Let me look at the order.", [call("look_up_order", order_id=4711)]),
        ScriptedAnswer(calls=[call("refund_order", order_id=4711, reason="arrived broken")]),
        ScriptedAnswer("You get 39.90 EUR back for the broken lamp of order 4711. Is there anything else?"),
    ]
    last = ScriptedAnswer("The model of this demo is a script, and it ends here. `aswarm serve` has one of your own.")

    def answer(request: Request) -> ScriptedAnswer:
        messages = request.body["messages"]
        index: int = sum(message["role"] == "assistant" for message in messages)
        is_over = index >= len(steps) or "cannot be refunded" in str(messages[-1]["content"])
        return replace(last if is_over else steps[index], pause=pause)

    return ScriptedModel(answer, cut=6)
