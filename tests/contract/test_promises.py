"""The programs of aswarm in `benchmarks/promises`, and the judges of these programs."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "promises"))  # at the end: its modules have short names

from judges import BROKEN, KEPT, NOT_OFFERED, REFUSED, Facts, StepEnd, verdict
from play import Play, facts_of
from scenarios import SCENARIOS
from scripts import ANSWER, SCRIPTS

Json = dict[str, Any]
PROMISES = Path(__file__).parents[2] / "benchmarks" / "promises"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_aswarm_keeps_each_promise(scenario: str, tmp_path: Path) -> None:
    """Each program, over real sockets and processes, has the verdict "kept"."""
    facts = facts_of("aswarm_", scenario, sys.executable, 120, tmp_path)
    assert verdict(scenario, facts)[0] == KEPT


def test_each_scenario_has_a_page_a_script_a_judge_and_a_program_of_aswarm() -> None:
    """No part is missing, and there is none without a scenario."""
    pages = {path.stem.partition("-")[2] for path in (PROMISES / "scenarios").glob("[0-9]*.md")}
    programs = {path.stem for path in (PROMISES / "programs" / "aswarm_").glob("*.py")} - {"common", "service"}
    assert pages == programs == set(SCRIPTS) == set(SCENARIOS)


def test_a_service_is_optional_where_a_framework_may_need_none() -> None:
    """An optional step is left out if the program has no function for it."""

    def steps(framework: str) -> list[str]:
        play = Play(framework, "approved_by_two_processes", sys.executable, PROMISES, 0, ExitStack())
        return [step.name for step in play.steps()]

    assert steps("aswarm_") == ["ask", "approve", "approve_again", "go_on"]
    assert steps("langgraph_") == ["serve", *steps("aswarm_")]


# --- judges -----------------------------------------------------------------------------------------------------------


def user(text: str) -> Json:
    return {"kind": "user", "text": text, "call_id": "", "name": ""}


def result(call_id: str, text: str) -> Json:
    return {"kind": "result", "text": text, "call_id": call_id, "name": ""}


def request(*items: Json, step: str = "go_on", faults: tuple[str, ...] = ()) -> Json:
    return {"step": step, "items": [user("Book."), *items, user("Go on.")], "faults": list(faults)}


def line(what: str, **details: Any) -> Json:
    return {"what": what, "step": "", **details}


UNKNOWN = result("call_refund", "cancelled; its outcome is unknown")
REFUNDED = result("call_refund", "refunded order 7")
LOOKED = result("call_look", "Order 7: one lamp, paid.")
ONCE = [line("refund", order=7)]
BROKEN_FACTS: dict[str, tuple[str, list[Json], list[Json], str]] = {
    "the request is invalid": ("killed_in_a_tool", [request(faults=("no result",))], [], "invalid request"),
    "the user is not heard": ("killed_in_a_tool", [], [], "did not reach"),
    "the finished result is lost": ("killed_in_a_tool", [request(result("call_train", "unknown"))], [], "'call_look'"),
    "the started call is not told": ("killed_in_a_tool", [request(LOOKED)], [], "does not read that 'call_train'"),
    "the start is denied": (
        "killed_in_a_tool",
        [request(LOOKED, result("call_train", "not executed"))],
        [],
        "was started",
    ),
    "success is claimed": (
        "killed_in_a_tool",
        [request(LOOKED, result("call_train", "seat 5"))],
        [],
        "is unknown, but",
    ),
    "refunded twice": ("killed_after_the_effect", [request(UNKNOWN)], ONCE * 2, "2 times"),
    "a refund is denied": ("killed_after_the_effect", [request(result("call_refund", "not run"))], ONCE, "was started"),
    "refunded by both": ("approved_by_two_processes", [request(REFUNDED)], ONCE * 2, "2 times"),
    "the second refund is lost": ("answered_in_reverse", [request(REFUNDED)], ONCE, "order 8 was refunded 0 times"),
    "the result of the refund is lost": ("model_fails_after_the_action", [request()], ONCE, "but the model reads"),
    "the client misses a piece": (
        "client_returns",
        [request(), request()],
        [line("look_up"), {**line("read", text="word0 "), "step": "leave"}, line("read", text="word2")],
        "has read",
    ),
    "the run is made again": (
        "client_returns",
        [request()] * 3,
        [line("look_up"), {**line("read", text="word0 "), "step": "leave"}, line("whole", text=ANSWER)],
        "made again",
    ),
    "the tool runs on": ("stopped_from_another_process", [request(LOOKED)], [line("book_train ended")], "still runs"),
}


@pytest.mark.parametrize("case", BROKEN_FACTS)
def test_a_judge_finds_each_kind_of_fault(case: str) -> None:
    """The verdict is "broken", and the line names the fault."""
    scenario, requests, effects, expected = BROKEN_FACTS[case]
    code, text = verdict(scenario, Facts(requests, effects, [StepEnd("go_on", 0)]))
    assert (code, expected in text) == (BROKEN, True), text


def test_the_end_of_a_step_decides_about_the_other_verdicts() -> None:
    """A step that is refused or not offered has its verdict; a step that failed has none, also not "kept"."""
    facts = Facts(
        [request(LOOKED, result("call_train", "interrupted"))], [line("book_train")], [StepEnd("start", None)]
    )
    assert verdict("killed_in_a_tool", facts) == (KEPT, "")

    def ended(code: int) -> Facts:
        return dataclasses.replace(facts, ends=[StepEnd("start", None), StepEnd("go_on", code, "text\nlast line")])

    assert verdict("killed_in_a_tool", ended(11)) == (REFUSED, "last line")
    assert verdict("killed_in_a_tool", ended(12)) == (NOT_OFFERED, "last line")
    with pytest.raises(RuntimeError, match="last line"):
        verdict("killed_in_a_tool", ended(1))
