"""A chat in the terminal with agents: Swarm's `run_demo_loop`, and what Swarm prints.

In a terminal, with `pip install "aswarm[repl]"`, it has editing, a history, colours and Markdown; elsewhere it reads
and writes plain lines. `/help` shows the commands.
"""

from aswarm import _public

from ._loop import run_demo_loop, run_demo_loop_async
from ._printing import pretty_print_messages, process_and_print_streaming_response

__all__ = [
    "pretty_print_messages",
    "process_and_print_streaming_response",
    "run_demo_loop",
    "run_demo_loop_async",
]

_public.publish(globals())
