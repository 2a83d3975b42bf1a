"""The contenders, the figures of each table, and the ratios of the contenders to the reference in each round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BY_HAND, BY_HAND_OVER_RESPONSES = "handwritten_openai", "handwritten_responses"
OURS = {
    "aswarm_": "**aswarm**",
    "aswarm_:aiohttp": "**aswarm**, aiohttp",
    "aswarm_:direct": "**aswarm**, direct",
}
LIMITS = {
    "ready_bytes:post": "the SDK's bare `post`",
    "ready_bytes:post_aiohttp": "bare `post`, aiohttp",
    "ready_bytes:aiohttp": "aiohttp, no SDK",
    "ready_bytes:sockets": "bare sockets",
}
PEERS = {
    "agent_framework_": "agent-framework",
    "agno_": "agno",
    "openai_agents": "openai-agents",
    "pydantic_ai_": "pydantic-ai",
}
ADDITIONS = {
    "additions:middleware": "a middleware that does nothing",
    "additions:guard_input": "`guard_input`",
    "additions:guard_tool": "`guard_tool`",
    "additions:guard_answer": "`guard_answer`",
    "additions:otel": "`otel`",
    "additions:otel_content": "`otel(content=True)`",
}
BATCHES = {
    BY_HAND: "hand-written on `AsyncOpenAI`",
    "aswarm_": "**aswarm**",
    "batch_runner": "**aswarm**, `batch`",
    "batch_runner:journal": "**aswarm**, `batch` with a journal",
    "openai_agents": "openai-agents",
    "pydantic_ai_": "pydantic-ai",
}
BATCHES_ON_AIOHTTP = {
    "handwritten_openai:aiohttp": "hand-written on `AsyncOpenAI`, aiohttp",
    "aswarm_:aiohttp": "**aswarm**, aiohttp",
    "batch_runner:aiohttp": "**aswarm**, `batch`, aiohttp",
    "batch_runner:journal_aiohttp": "**aswarm**, `batch` with a journal, aiohttp",
}
NAMES = {
    **OURS, **LIMITS, **PEERS, **ADDITIONS, **BATCHES, **BATCHES_ON_AIOHTTP,
    BY_HAND_OVER_RESPONSES: "hand-written on `responses.create`",
    "aswarm_:responses": "**aswarm** over Responses",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure to measure. `fresh`: whether each measurement has a new process. `only`: its contenders; empty for all."""

    name: str
    title: str
    job: Mapping[str, Any]
    value: str = "cpu_us"
    fresh: bool = False
    rounds: int | None = None  # set if this figure has fewer rounds than the other figures
    only: Sequence[str] = ()


def _turn(name: str, title: str, at_once: int = 1, past: int = 0) -> Figure:
    return Figure(name, title, {"figure": "turn", "at_once": at_once, "past": past})


TURN = _turn("turn", "a turn, one conversation")
AFTER_100 = _turn("after_100", "a turn after 100 messages", past=100)
AFTER_1000 = _turn("after_1000", "a turn after 1,000 messages", past=1000)
CHUNK = Figure("chunk", "a chunk, in a burst", {"figure": "chunk"})
PACED = {"figure": "chunk", "chunks": 400, "pause": 0.002, "budget": 0}
COSTS = [
    TURN,
    _turn("at_once_256", "a turn, 256 conversations at once", at_once=256),
    AFTER_100,
    AFTER_1000,
    CHUNK,
    Figure("chunk_paced", "a chunk, one every 2 ms", PACED),
    Figure("first_answer", "first answer of a fresh process", {"figure": "first_answer"}, fresh=True),
]


_MEMORY = (BY_HAND, "batch_runner", "batch_runner:journal")


def _batch(title: str, total: int, at_once: int, *, rounds: int = 3) -> Figure:
    job = {"figure": "batch", "total": total, "at_once": at_once}
    only = tuple(BATCHES) if at_once <= 100 else ()  # noqa: PLR2004 - the contenders on aiohttp have only the larger figures
    return Figure(f"batch_{at_once}", title, job, rounds=rounds, only=only)


def _batch_memory(title: str, total: int, at_once: int, latency: float, *, only: Sequence[str] = _MEMORY) -> Figure:
    job = {"figure": "batch_memory", "total": total, "at_once": at_once, "latency": latency}
    return Figure(f"batch_memory_{total}_{at_once}", title, job, "bytes", fresh=True, rounds=1, only=only)


_BATCH_FIGURES = [
    _batch("1 at once", 20, 1),
    _batch("50", 500, 50),
    _batch("500", 2000, 500),
    _batch("2,000", 2000, 2000, rounds=1),
    _batch_memory("1,000 items", 1000, 100, 0.02),
    _batch_memory("10,000", 10_000, 100, 0.02),
    _batch_memory("50,000", 50_000, 100, 0.02),
    _batch_memory("100 at once", 2000, 100, 1),
    _batch_memory("500", 2000, 500, 1),
    _batch_memory("1,000", 2000, 1000, 1),
    _batch_memory("2,000", 2000, 2000, 1),
    _batch_memory("10,000, answers after 5 s", 10_000, 10_000, 5, only=tuple(BATCHES_ON_AIOHTTP)),
]


@dataclass(frozen=True, slots=True)
class Table:
    """The contenders and the figures of one run. `reference`: the contender to which all ratios refer."""

    reference: str
    contenders: Sequence[str]
    figures: Sequence[Figure]


TABLES = {
    "costs": Table(BY_HAND, (BY_HAND, *OURS, *LIMITS, *PEERS), COSTS),
    "responses": Table(
        BY_HAND_OVER_RESPONSES, (BY_HAND_OVER_RESPONSES, "aswarm_:responses"), [TURN, AFTER_100, AFTER_1000, CHUNK]
    ),
    "additions": Table("aswarm_", ("aswarm_", *ADDITIONS), [TURN, AFTER_100, CHUNK]),
    "batches": Table(BY_HAND, (*BATCHES, *BATCHES_ON_AIOHTTP), _BATCH_FIGURES),
}


@dataclass(slots=True)
class Samples:
    """The results of one figure. Each round has a result for each contender."""

    figure: Figure
    reference: str
    rounds: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def row(self, contender: str) -> dict[str, Any]:
        """Return the median of the values, and the median and the spread of the ratios to the reference in the same round."""
        pairs = [(results[contender], results.get(self.reference, {"error": "missing"})) for results in self.rounds]
        errors = [mine["error"] for mine, _ in pairs if "error" in mine]
        if errors:
            return {"contender": contender, "error": errors[0]}
        values = [mine[self.figure.value] for mine, _ in pairs]
        ratios = [mine[self.figure.value] / base[self.figure.value] for mine, base in pairs if "error" not in base]
        row = {"contender": contender, "value": statistics.median(values), "values": values}
        if ratios:
            row.update(ratio=statistics.median(ratios), lowest=min(ratios), highest=max(ratios))
        speeds = [mine["conversations_per_second"] for mine, _ in pairs if "conversations_per_second" in mine]
        if speeds:
            row["conversations_per_second"] = statistics.median(speeds)
        return row

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "name": self.figure.name,
            "title": self.figure.title,
            "job": dict(self.figure.job),
            "value": self.figure.value,
            "rows": [self.row(contender) for contender in self.rounds[0]],
        }
