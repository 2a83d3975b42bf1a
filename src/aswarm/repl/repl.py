"""Where Swarm keeps these; code that comes from it finds them here too."""

from aswarm.repl import pretty_print_messages, process_and_print_streaming_response, run_demo_loop

__all__ = ["pretty_print_messages", "process_and_print_streaming_response", "run_demo_loop"]
