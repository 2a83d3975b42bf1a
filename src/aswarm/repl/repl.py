"""Swarm's import path for these functions."""

from aswarm.repl import pretty_print_messages, process_and_print_streaming_response, run_demo_loop

__all__ = ["pretty_print_messages", "process_and_print_streaming_response", "run_demo_loop"]
