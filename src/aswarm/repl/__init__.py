"""A chat with agents in the terminal: `run_demo_loop`, and the printing functions of Swarm.

In a terminal, with the extra `repl`, the chat has editing, a history, colours and Markdown. Otherwise the chat
reads and writes plain lines. `/help` lists its commands.
"""

from aswarm._values import public_names as _public

from ._as_swarm import pretty_print_messages, process_and_print_streaming_response
from ._loop import run_demo_loop, run_demo_loop_async

__all__ = [
    "pretty_print_messages",
    "process_and_print_streaming_response",
    "run_demo_loop",
    "run_demo_loop_async",
]

_public.publish(globals())
