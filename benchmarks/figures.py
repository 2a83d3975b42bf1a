"""The figures, and the ratios of their rounds to the reference."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

REFERENCE = "handwritten_openai"
REFERENCE_OVER_RESPONSES = "handwritten_responses"
# Contenders with their own connection pool, and no framework around it.
_LEAN = ("handwritten_openai", "handwritten_httpx", "aswarm_", "aswarm_aiohttp")
# For batches: the hand-written loop, the same runs with and without the runner and its journal, and two peers.
_BATCH = ("handwritten_openai", "aswarm_", "aswarm_batch", "aswarm_journal", "openai_agents", "pydantic_ai_")
_BATCH_ON_AIOHTTP = ("handwritten_aiohttp", "aswarm_aiohttp", "aswarm_batch_aiohttp", "aswarm_journal_aiohttp")
# Additions to a run, compared with a run without them.
PLAIN = "aswarm_"
_ADDITIONS = ("aswarm_middleware", "aswarm_guard_input", "aswarm_guard_tool", "aswarm_hold_answer")
_ADDITIONS += ("aswarm_otel", "aswarm_otel_content")
_OVER_RESPONSES = (REFERENCE_OVER_RESPONSES, "aswarm_responses")
# Contenders for only some figures.
_FOR_SOME = {"aswarm_batch", "aswarm_journal", "handwritten_aiohttp", "aswarm_batch_aiohttp", "aswarm_journal_aiohttp"}
_FOR_SOME |= {*_OVER_RESPONSES, *_ADDITIONS}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure to measure. `per_view`: once for each kind of stream. `fresh`: in a new process."""

    name: str
    title: str
    job: Mapping[str, Any]
    value: str = "cpu_us"
    per_view: bool = False
    fresh: bool = False
    quick: bool = True
    rounds: int | None = None  # if it differs from the other figures
    only: Sequence[str] = ()
    reference: str = REFERENCE

    @property
    def is_of_batch(self) -> bool:
        """Whether it measures a batch of conversations."""
        return str(self.job["figure"]).startswith("batch")

    def is_for(self, contender: str) -> bool:
        """Return whether to measure it for the contender."""
        return contender in self.only if self.only else contender not in _FOR_SOME


def _turn(title: str, **job: Any) -> Figure:
    name = "turn_" + "_".join(f"{key}{value}" for key, value in job.items())
    return Figure(name, title, {"figure": "turn", **job})


def _batch(title: str, total: int, at_once: int, *, rounds: int = 3) -> Figure:
    job = {"figure": "batch", "total": total, "at_once": at_once}
    only = (*_BATCH, *_BATCH_ON_AIOHTTP) if at_once > 100 else _BATCH  # noqa: PLR2004 - what aiohttp is for
    return Figure(f"batch_{at_once}", title, job, quick=at_once == 50, rounds=rounds, only=only)  # noqa: PLR2004 - seconds


def _batch_memory(title: str, total: int, at_once: int, latency: float) -> Figure:
    name = f"batch_memory_{total}_{at_once}"
    job = {"figure": "batch_memory", "total": total, "at_once": at_once, "latency": latency}
    only = ("handwritten_openai", "aswarm_batch", "aswarm_journal")
    return Figure(name, title, job, "bytes", fresh=True, quick=False, rounds=1, only=only)


FIGURES = [
    _turn("1 conversation", at_once=1, past=0),
    _turn("32", at_once=32, past=0),
    _turn("256", at_once=256, past=0),
    _turn("10 messages", at_once=1, past=10),
    _turn("100", at_once=1, past=100),
    _turn("1,000", at_once=1, past=1000),
    Figure("chunk", "chunk", {"figure": "chunk"}, per_view=True),
    Figure("chunk_block", "chunk, all in one HTTP chunk", {"figure": "chunk", "framing": "block"}, per_view=True),
    Figure("first_delta", "first delta (wall)", {"figure": "first_delta"}, "wall_us", per_view=True),
    Figure("import", "import", {"figure": "import"}, fresh=True),
    Figure("parked", "in flight", {"figure": "parked", "at_once": 2000}, "bytes", fresh=True, rounds=3),
    Figure("delayed_256", "256 in flight", {"figure": "turn", "at_once": 256, "latency": 0.5}, quick=False, only=_LEAN),
    Figure(
        "delayed_1000",
        "1,000 in flight",
        {"figure": "turn", "at_once": 1000, "latency": 3, "budget": 0.1},
        quick=False,
        rounds=3,
        only=("handwritten_openai", "aswarm_", "aswarm_aiohttp"),
    ),
    Figure(
        "many",
        "10,000 conversations, 100 at a time",
        {"figure": "many", "total": 10_000, "at_once": 100},
        fresh=True,
        quick=False,
        rounds=1,
        only=("handwritten_openai", "aswarm_", "aswarm_aiohttp"),
    ),
    Figure(
        "all_at_once",
        "10,000 conversations at once",
        {"figure": "many", "total": 10_000, "at_once": 10_000, "latency": 5},
        fresh=True,
        quick=False,
        rounds=1,
        only=("aswarm_aiohttp",),
    ),
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
]

_ALSO_OVER_RESPONSES = (
    "turn_at_once1_past0",
    "turn_at_once1_past100",
    "turn_at_once1_past1000",
    "chunk",
    "chunk_block",
)
FIGURES_OVER_RESPONSES = [
    replace(figure, only=_OVER_RESPONSES, reference=REFERENCE_OVER_RESPONSES)
    for figure in FIGURES
    if figure.name in _ALSO_OVER_RESPONSES
]
_ALSO_WITH_ADDITIONS = ("turn_at_once1_past0", "turn_at_once32_past0", "turn_at_once1_past100", "chunk", "chunk_block")
FIGURES_WITH_ADDITIONS = [
    replace(figure, only=(PLAIN, *_ADDITIONS), reference=PLAIN)
    for figure in FIGURES
    if figure.name in _ALSO_WITH_ADDITIONS
]


@dataclass(slots=True)
class Samples:
    """The results of one figure: for each contender (and kind of stream), one for each round."""

    figure: Figure
    rounds: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def labels(self) -> list[str]:
        """Return the contenders with results, in the order of the first round."""
        return list(dict.fromkeys(label for results in self.rounds for label in results))

    def row(self, label: str) -> dict[str, Any]:
        """Return the median of the value, and the median and the spread of its ratio to the reference in the same round."""
        pairs = [(results.get(label, {}), self._reference(results, label)) for results in self.rounds]
        errors = [mine["error"] for mine, _ in pairs if "error" in mine]
        if errors:
            return {"contender": label, "error": errors[0]}
        values = [mine[self.figure.value] for mine, _ in pairs if mine]
        ratios = [mine[self.figure.value] / base for mine, base in pairs if mine and base]
        row = {"contender": label, "value": statistics.median(values), "values": values}
        if ratios:
            row.update(ratio=statistics.median(ratios), lowest=min(ratios), highest=max(ratios))
        speeds = [mine["conversations_per_second"] for mine, _ in pairs if "conversations_per_second" in mine]
        if speeds:
            row["conversations_per_second"] = statistics.median(speeds)
        return {
            **row,
            **{key: value for key, value in pairs[-1][0].items() if key.endswith(("_left", "_most", "_grown"))},
        }

    def _reference(self, results: Mapping[str, Mapping[str, Any]], label: str) -> float | None:
        """Return the value of the reference: of its stream with the same name, or of its first stream."""
        same = f"{self.figure.reference} {label.partition(' ')[2]}".strip()
        found = [each for each in results if each.partition(" ")[0] == self.figure.reference]
        for each in [same] * (same in found) + found:
            if "error" not in results[each]:
                return float(results[each][self.figure.value])
        return None

    def as_json(self) -> dict[str, Any]:
        """Return the results for `results.json`."""
        return {
            "name": self.figure.name,
            "title": self.figure.title,
            "job": dict(self.figure.job),
            "value": self.figure.value,
            "rows": [self.row(label) for label in self.labels()],
        }
