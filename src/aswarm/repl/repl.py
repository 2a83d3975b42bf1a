"""The module from which code for Swarm imports these functions. Tests may replace `Swarm` here: `run_demo_loop` uses it."""

from aswarm import Swarm

from ._as_swarm import pretty_print_messages, process_and_print_streaming_response
from ._loop import run_demo_loop

__all__ = ["Swarm", "pretty_print_messages", "process_and_print_streaming_response", "run_demo_loop"]
