"""The model of each scenario: a function from the messages of a request to the next turn. It keeps no state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from validator import Item

GO_ON = "Go on."
WENT_ON = "We went on."
ANSWER = " ".join(f"word{number}" for number in range(20))
MISSING = "There is no script for this request."


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model does with a request.

    `pause`: the seconds between the pieces of a streamed text. `cut`: the stream ends inside the arguments of the last call.
    `status`: the status of an error in place of an answer.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    pause: float = 0.0
    cut: bool = False
    status: int = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """A request, as the script reads it.

    `step`: the step that runs. `earlier`: the number of earlier requests of the scenario. `tools`: the names of the parameters of
    each tool.
    """

    items: Sequence[Item]
    step: str = ""
    earlier: int = 0
    tools: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    results: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Collect the ids of the calls that have a result."""
        results = frozenset(item.call_id for item in self.items if item.kind == "result")
        object.__setattr__(self, "results", results)

    @property
    def last_user(self) -> str:
        """The last message of the user."""
        return next((item.text for item in reversed(self.items) if item.kind == "user"), "")

    def is_for(self, word: str) -> bool:
        """Return whether the instructions of the agent contain a word."""
        return any(word in item.text for item in self.items if item.kind == "system")


LOOK_UP = Call("call_look", "look_up", '{"order": 7}')
HOTEL = Call("call_hotel", "book_hotel")
TRAIN = Call("call_train", "book_train")
REFUND = Call("call_refund", "refund", '{"order": 7}')
SECOND = Call("call_second", "refund", '{"order": 8}')


def _one_after_the_other(*turns: Turn) -> Callable[[Seen], Turn]:
    """Return a script that goes to the next turn when the calls of a turn have results."""

    def script(seen: Seen) -> Turn:
        for turn in turns:
            if not all(call.id in seen.results for call in turn.calls) or not turn.calls:
                return turn
        return Turn(MISSING)

    return script


def _cut(seen: Seen) -> Turn:
    # A second attempt at the same request succeeds, so that a framework may repeat it.
    return Turn(calls=(HOTEL,), cut=not seen.earlier) if HOTEL.id not in seen.results else Turn("Booked.")


def _model_fails(seen: Seen) -> Turn:
    if REFUND.id not in seen.results:
        return Turn(calls=(REFUND,))
    return Turn(status=500) if seen.step == "approve" else Turn("Refunded.")


def _sub_agent(seen: Seen) -> Turn:
    if seen.is_for("cashier"):
        return _one_after_the_other(Turn(calls=(LOOK_UP,)), Turn(calls=(REFUND,)), Turn("The cashier has refunded."))(
            seen
        )
    if "call_ask" in seen.results:
        return Turn("All done.")
    # Each framework has its own name for the parameter of an agent as a tool.
    arguments = dict.fromkeys(seen.tools.get("cashier", ()), "Refund order 7.")
    return Turn(calls=(Call("call_ask", "cashier", json.dumps(arguments)),))


_refund = _one_after_the_other(Turn(calls=(REFUND,)), Turn("Refunded."))
_look_then_train = _one_after_the_other(Turn(calls=(LOOK_UP,)), Turn(calls=(TRAIN,)), Turn("Booked."))
_look_then_text = _one_after_the_other(Turn(calls=(LOOK_UP,)), Turn(ANSWER, pause=0.1))

SCRIPTS: dict[str, Callable[[Seen], Turn]] = {
    "cancelled_with_two_calls": _one_after_the_other(Turn(calls=(HOTEL, TRAIN)), Turn("Booked.")),
    "stream_cut_in_arguments": _cut,
    "killed_in_a_tool": _look_then_train,
    "reader_leaves_in_mid_text": _look_then_text,
    "killed_after_the_effect": _refund,
    "approved_by_two_processes": _refund,
    "answered_in_reverse": _one_after_the_other(Turn(calls=(REFUND, SECOND)), Turn("Both refunded.")),
    "model_fails_after_the_action": _model_fails,
    "approval_in_a_sub_agent": _sub_agent,
    "client_returns": _look_then_text,
    "stopped_from_another_process": _look_then_train,
    "restarted_while_waiting": _refund,
}


def turn_of(scenario: str, seen: Seen) -> Turn:
    """Return the turn of the model. After the user's "Go on." it only answers."""
    return Turn(WENT_ON) if seen.last_user == GO_ON else SCRIPTS[scenario](seen)
