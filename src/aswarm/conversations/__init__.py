"""Conversations: what an agent is sent of a long history.

Decides what is kept and what is sent. It never decides how a run goes, and imports no database.
"""

from aswarm import _public
from aswarm._blocks import Block

from ._history import HistoryFunction, last, own_turns, since_handoff, without_tool_results

__all__ = ["Block", "HistoryFunction", "last", "own_turns", "since_handoff", "without_tool_results"]

_public.publish(globals())
