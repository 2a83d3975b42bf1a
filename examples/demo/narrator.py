"""A printer of the typed events of a run. It keeps the streamed pieces for `checks.py`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from aswarm import (
    CompletionFinished,
    Event,
    HandedOff,
    RunFinished,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    Usage,
)
from aswarm.events import ToolCallDelta, TurnStarted


@dataclass(slots=True)
class Narrator:
    """A printer. `texts`, `arguments`: the streamed pieces, in order. `handoffs`: the names (source, target)."""

    texts: list[str] = field(default_factory=list[str])
    arguments: list[str] = field(default_factory=list[str])
    handoffs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    turns: int = 0
    _started: float = field(default_factory=time.perf_counter)
    _turn_started: float = 0.0
    _open_line: object = None

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    def show(self, event: Event) -> None:
        """Print one event."""
        match event:
            case TurnStarted(agent=agent, turn=turn):
                self.turns, self._turn_started = turn, self.seconds
                self.line(f"turn {turn}: {agent.name}")
            case TextDelta(text=text):
                self.texts.append(text)
                self._piece("text", "  says: ", text)
            case ToolCallDelta(index=index):
                self._call_piece(index, event)
            case CompletionFinished(usage=usage, finish_reason=reason):
                self.line(f"  {_cost(usage, self.seconds - self._turn_started)}, finish_reason {reason}")
            case ToolCallStarted(name=name, arguments=arguments):
                self.line(f"  runs {name} with {arguments}")
            case ToolCallFinished(name=name, content=content):
                self.line(f"  {name} returned: {content}")
            case HandedOff(source=source, target=target):
                self.handoffs.append((source.name, target.name))
                self.line(f"  handoff: {source.name} -> {target.name}")
            case RunFinished(response=response):
                self.line(f"run finished: {response.stop}")
            case _:
                self.line(f"  {event}")

    def line(self, text: str) -> None:
        """Print a whole line, after the seconds since the start."""
        self._open(None, text + "\n")

    def _call_piece(self, index: int, piece: ToolCallDelta) -> None:
        self._piece(index, "  calls: ", f"{piece.name} " if piece.name else "")
        if piece.arguments:
            self.arguments.append(piece.arguments)
            self._piece(index, "", piece.arguments)

    def _piece(self, line: object, label: str, text: str) -> None:
        """Continue the unfinished line if it has this name; otherwise start a new line."""
        if line != self._open_line:
            self._open(line, label)
        print(text, end="", flush=True)

    def _open(self, line: object, text: str) -> None:
        end_of_open_line = "" if self._open_line is None else "\n"
        print(f"{end_of_open_line}{self.seconds:6.1f} s  {text}", end="", flush=True)
        self._open_line = line


def _cost(usage: Usage, seconds: float) -> str:
    return f"{usage.prompt_tokens} + {usage.completion_tokens} tokens in {seconds:.1f} s"
