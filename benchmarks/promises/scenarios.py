"""The steps of each scenario. A step is a new process that runs one function of the program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A process. `name`: the function of the program.

    `hangs`: the tool function that does not return in this step. `killed_at`: the line of `effects.jsonl` after which the process
    is killed. `serves`: the process runs until the end of the scenario, and is ready when it has written "ready". `kills`: before
    this step, the process that serves is killed. `times`: so many processes at once.
    `optional`: the step is left out if the program has no such function.
    """

    name: str
    hangs: str = ""
    killed_at: str = ""
    serves: bool = False
    kills: bool = False
    times: int = 1
    optional: bool = False


_ASK, _APPROVE, _GO_ON = Step("ask"), Step("approve"), Step("go_on")
_SERVE = Step("serve", serves=True)
_MAY_SERVE = Step("serve", serves=True, optional=True)  # a framework may keep this promise in its service

SCENARIOS: dict[str, tuple[Step, ...]] = {
    "cancelled_with_two_calls": (Step("cancel", hangs="book_train"), _GO_ON),
    "stream_cut_in_arguments": (Step("stream"), _GO_ON),
    "killed_in_a_tool": (Step("start", hangs="book_train", killed_at="book_train"), _GO_ON),
    "reader_leaves_in_mid_text": (Step("leave"), _GO_ON),
    "killed_after_the_effect": (
        _MAY_SERVE,
        _ASK,
        Step("approve", hangs="refund", killed_at="refund"),
        Step("recover"),
        _GO_ON,
    ),
    "approved_by_two_processes": (_MAY_SERVE, _ASK, Step("approve", times=2), Step("approve_again"), _GO_ON),
    "answered_in_reverse": (_ASK, Step("approve_second"), Step("approve_first"), _GO_ON),
    "model_fails_after_the_action": (_MAY_SERVE, _ASK, _APPROVE, Step("recover"), _GO_ON),
    "approval_in_a_sub_agent": (_ASK, _APPROVE, _GO_ON),
    "client_returns": (_SERVE, Step("leave"), Step("come_back")),
    "stopped_from_another_process": (
        Step("serve", serves=True, hangs="book_train"),
        Step("start"),
        Step("stop"),
        _GO_ON,
    ),
    "restarted_while_waiting": (_SERVE, _ASK, Step("serve", serves=True, kills=True), _APPROVE, _GO_ON),
}
