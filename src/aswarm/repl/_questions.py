"""The questions of a chat about the waiting calls, and the decisions of the user.

Only a line of the user is a decision. So a history, for example in a loaded file, cannot decide for the user.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from aswarm._values.decisions import Approve, Decision, Deny, OpenCall, Reply
from aswarm._values.errors import ToolArgumentsError
from aswarm._values.json import is_object
from aswarm._values.text import one_line
from aswarm.extensions import Tool

from ._display import formatted

_CHOICES = {
    "y": "y: run it",
    "n": "n [REASON]: deny it",
    "e": "e {ARGUMENTS}: run it with other arguments",
    "a": "a TEXT: answer it",
}
_WORDS = {"yes": "y", "no": "n", "edit": "e", "answer": "a"}
_PROMPTS = {"e": "The arguments, as a JSON object:", "a": "The answer:"}
_SHOWN = 600  # characters of the data of a question


class OpenQuestions:
    """Asks the user about the waiting calls, one after another. `decisions`: the decisions so far, by the index of the call."""

    def __init__(
        self, calls: Sequence[OpenCall], approvals: Collection[int], tools: Mapping[str, Tool[..., Any]]
    ) -> None:
        """`approvals`: the indexes of the calls that wait for an approval; the other calls wait for an answer."""
        self.decisions: dict[int, Decision] = {}
        self._calls = calls
        self._approvals = approvals
        self._tools = tools
        self._choice = ""  # "e" or "a" if the user typed this letter alone: the next line is its argument

    @property
    def is_done(self) -> bool:
        return len(self.decisions) == len(self._calls)

    @property
    def text(self) -> str:
        """The current question."""
        if self._choice:
            return _PROMPTS[self._choice]
        call = self._call
        shown_call = f"{call.agent}: {one_line(call.name)}({formatted(call.arguments)})"
        lines = [f"{shown_call} waits: {one_line(call.reason or '', _SHOWN)}"]
        if call.data is not None:
            lines.append(f"  {one_line(json.dumps(call.data, ensure_ascii=False), _SHOWN)}")
        if call.answer is not None:
            lines.append(f"  answered: {one_line(json.dumps(call.answer, ensure_ascii=False), _SHOWN)}")
        choices = ", ".join(_CHOICES[choice] for choice in self._choices)
        return "\n".join([*lines, f"{choices} (Ctrl-C leaves it open)"])

    def take(self, line: str) -> str | None:
        """Read the decision from a line of the user. Returns the text of an error in the line, or None."""
        word, _, argument = line.strip().partition(" ")
        choice = self._choice or _WORDS.get(word.lower(), word.lower())
        argument = line.strip() if self._choice else argument.strip()
        if choice not in self._choices:
            return f"Type one of {', '.join(self._choices)}."
        if choice == "y" and argument:
            return "Type y alone to run the call as it is, or e {ARGUMENTS} to run it with other arguments."
        self._choice = "" if argument or choice not in _PROMPTS else choice
        if self._choice:
            return None
        decide: dict[str, Callable[[str], Decision]] = {"n": Deny, "e": self._edited, "a": self._answered}
        try:
            self.decisions[self._call.index] = Approve() if choice == "y" else decide[choice](argument)
        except (ValueError, ToolArgumentsError) as error:
            return str(error)
        return None

    @property
    def _call(self) -> OpenCall:
        return self._calls[len(self.decisions)]

    @property
    def _tool(self) -> Tool[..., Any] | None:
        return self._tools.get(self._call.name)

    @property
    def _choices(self) -> Sequence[str]:
        return ("n", "a") if self._tool is None or self._tool.is_external else tuple(_CHOICES)

    def _edited(self, text: str) -> Decision:
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError):
            arguments = None
        if not is_object(arguments):
            raise ValueError('The arguments must be a JSON object, such as {"order": 7}.')
        self._tools[self._call.name].validate(dict(arguments))
        return Approve(arguments)

    def _answered(self, text: str) -> Decision:
        # A text does not approve a call that waits for an approval: the model gets the text, and the function does not run.
        return text if self._tool is None or self._call.index in self._approvals else Reply(text)
