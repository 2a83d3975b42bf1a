"""`Case`: a conversation, and the expected behaviour of the agent. This module checks that a case is valid, and runs nothing.

A case that expects a function which no agent has gets a hint, not an error: a function may hand off to an agent that
`aswarm.graph` cannot find without a call.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import EllipsisType
from typing import Any, Literal, TypeAlias, get_args

from aswarm._values.agent import Agent, Response
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object, jsonable, shown
from aswarm._values.messages import Message, as_plain, call_arguments, call_name, normalize, text_of
from aswarm._values.text import NO_RUN, counted, one_line
from aswarm.extensions import tools_of
from aswarm.graph import agent_graph


@dataclass(frozen=True, slots=True)
class CaseCall:
    """A call of the model. `arguments`: the JSON text as the model wrote it."""

    name: str
    arguments: str

    def __str__(self) -> str:
        """Return the call on one line, such as `book({"city": "Rome"})`."""
        return f"{self.name}({'' if self.parsed == {} else ' '.join(self.arguments.split())})"

    @property
    def parsed(self) -> Any:
        """The parsed arguments; `{}` if the text is empty, None if it is not JSON."""
        try:
            return json.loads(self.arguments) if self.arguments.strip() else {}
        except (ValueError, RecursionError):
            return None


def calls_of(messages: Iterable[Message]) -> list[CaseCall]:
    """Return all calls of the assistant messages, in order. Handoffs are calls too."""
    return [
        CaseCall(call_name(call), call_arguments(call))
        for message in messages
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or ()
    ]


def unexpected(case: Case, calls: Sequence[CaseCall]) -> str | None:
    """Return None if the calls meet the expectation, otherwise the expectation as a text. For the rules, see `Case`."""
    if case.function is ... and case.arguments is None:
        return None
    if case.calls_nothing:
        return "expected no call" if calls else None
    if is_array(case.function) and sorted(case.function) != sorted(call.name for call in calls):
        return f"expected exactly these calls: {', '.join(case.function)}"
    candidates = calls[:1] if case.extent == "completion" else calls
    named = [call for call in candidates if not isinstance(case.function, str) or call.name == case.function]
    return None if any(_has(call, case.arguments or {}) for call in named) else _expectation(case)


def unexpected_output(case: Case, response: Response) -> str | None:
    """Return None if the typed answer meets the expectation, otherwise the expectation as a text.

    Raises AswarmError if there is no typed answer.
    """
    if case.output is None:
        return None
    answer: Any = jsonable(response.output)
    fields: Mapping[str, Any] = answer if is_object(answer) else {"value": answer}
    wrong = [name for name, value in case.output.items() if name not in fields or not _agrees(value, fields[name])]
    expected = ", ".join(f"{name}={_shown(case.output[name])}" for name in wrong)
    return f"expected an output with {expected}, not {_shown(answer)}" if wrong else None


def _expectation(case: Case) -> str:
    named = case.function if isinstance(case.function, str) else "a call"
    arguments = ", ".join(f"{name}={_shown(value)}" for name, value in (case.arguments or {}).items())
    return f"expected {named}" + (f" with {arguments}" if arguments else "")


def _has(call: CaseCall, expected: Mapping[str, Any]) -> bool:
    arguments = call.parsed
    if not is_object(arguments):
        return not expected
    return all(name in arguments and _agrees(value, arguments[name]) for name, value in expected.items())


def _agrees(expected: Any, actual: Any) -> bool:
    """Return whether two JSON values are equal. Unlike in Python, true is not equal to 1. If `expected` is a callable, return its result."""
    if callable(expected):
        return bool(expected(actual))
    if is_object(expected) and is_object(actual):
        return expected.keys() == actual.keys() and all(_agrees(expected[key], actual[key]) for key in expected)
    if is_array(expected) and is_array(actual):
        return len(expected) == len(actual) and all(map(_agrees, expected, actual))
    return isinstance(expected, bool) == isinstance(actual, bool) and bool(expected == actual)


def _shown(value: Any) -> str:
    if callable(value):
        return f"<{getattr(value, '__name__', 'check')}>"
    return json.dumps(value, ensure_ascii=False, default=str)


Extent: TypeAlias = Literal["completion", "whole", "nothing"]
"""How far a case runs. "completion": the model makes one completion, and no function runs. "whole": the run continues until the
agent answers. "nothing": no agent runs, and the judge reads the messages of the case.
"""
Function: TypeAlias = str | Sequence[str] | EllipsisType | None

_LINE = 60  # characters of a title, and of a value in a message


@dataclass(frozen=True)
class Case:
    """A conversation, and the expected behaviour of the agent. A case needs at least one expectation; all must be met.

    Values are compared as JSON, before aswarm converts them: 1 equals 1.0, but not "1" and not true. A callable can replace an
    expected value. It is called with the actual value: `{"city": lambda city: "York" in city}`. A call that waits for a
    decision counts as a call, and the run ends with it.

    Args:
        conversation: Messages, or a str for one user message.
        function: The expected calls.

            - A name: the *first* call must be of this function. More calls of the same message are ignored (Swarm's rule). A
              handoff is also a call. Its name is `transfer_to_<name>`, or the name of its function.
            - A list of names: exactly these calls, in any order. A name may be listed several times. `["f"]` means that f is
              called once, and no other function is called.
            - None, or "None" as in Swarm's files, or an empty list: no call is allowed.
            - `...` (the default): calls are ignored.
        arguments: Expected values of arguments in the call of `function`; without `function`, in the first call. Other
            arguments are ignored.
        judge: A question about the conversation. A model answers it with true (passed) or false.
        check: A plain or async function. It gets the `Response`, and returns true if the response is right. A false value or an
            AssertionError is a failure; any other exception is an error. A function with the hint `-> None` only asserts.
        agent: An `Agent`, or "module:attribute"; None for the agent of `evaluate`.
        context_variables: The context variables of each run.
        run: How far the agent runs.

            - "completion": the model makes one completion, and its calls are not executed. This is the default with only
              `function` and `arguments`.
            - "whole": the run continues to its end, and **its functions really run**. This is the default with `output`,
              `check` or `judge`. A name in `function` and the `arguments` apply to any call of such a run. A list applies to
              all calls.
            - "nothing": no agent runs, and the judge reads the conversation. This is the default with only `judge`, if the
              conversation ends with an answer of the assistant.
        name: The title in the report; by default the last user message.
        output: Expected values of fields in an answer of the type `Agent(output=...)`. An answer that is not an object has the
            single field "value": `{"value": 7}`.

    Raises:
        ConfigurationError: If the case is invalid. The text has the remedy.
    """

    conversation: str | Sequence[Any]
    _: KW_ONLY
    function: Function = ...
    arguments: Mapping[str, Any] | None = None
    judge: str | None = None
    check: Callable[[Response[Any]], object] | None = None
    agent: Agent | str | None = None
    context_variables: Mapping[str, Any] | None = None
    run: Extent | None = None
    name: str | None = None
    output: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for field, (fits, kind) in _KINDS.items():
            value = getattr(self, field)
            if value is not None and not fits(value):
                raise ConfigurationError(f"{field} must be {kind}, not {shown(value, _LINE)}")
        expected = (self.arguments, self.output, self.judge, self.check)
        if self.function is ... and all(expectation is None for expectation in expected):
            raise ConfigurationError("the case expects nothing; give function, arguments, output, check or judge")
        if self.output is not None and self.extent == "completion":
            raise ConfigurationError("output needs a whole run; leave out run, or use run='whole'")
        if self.arguments is not None and (self.calls_nothing or (is_array(self.function) and len(self.function) > 1)):
            raise ConfigurationError(f"arguments belong to one function, not to {shown(self.function, _LINE)}")
        if self.run == "nothing" and not self._is_judged_alone:
            raise ConfigurationError('run="nothing" can be combined only with judge')
        if not self.messages:
            raise ConfigurationError("the conversation is empty")

    def __str__(self) -> str:
        """Return the name. Without a name, return the last user message on one short line."""
        if self.name is not None:
            return self.name
        texts = (
            text_of(message.get("content")) for message in reversed(self.messages) if message.get("role") == "user"
        )
        return one_line(next(texts, ""), _LINE) or counted(len(self.messages), "message")

    @property
    def messages(self) -> list[Message]:
        """The conversation as a list of messages."""
        if self.extent == "nothing" and is_array(self.conversation):
            return [_readable(message) for message in self.conversation]
        return normalize(self.conversation)

    @property
    def calls_nothing(self) -> bool:
        """Whether no call is expected."""
        return self.function in (None, "None") or (is_array(self.function) and not self.function)

    @property
    def extent(self) -> Extent:
        """How far the agent runs: `run`, or its default."""
        if self.run is not None:
            return self.run
        if self.judge is None and self.check is None and self.output is None:
            return "completion"
        return "nothing" if self._is_judged_alone and _is_answered(self.conversation) else "whole"

    @property
    def _is_judged_alone(self) -> bool:
        others = (self.arguments, self.check, self.output)
        return self.judge is not None and self.function is ... and all(other is None for other in others)


_FIELDS = [field.name for field in dataclasses.fields(Case)]


def as_case(data: Case | Mapping[str, Any]) -> Case:
    """Return the case for a mapping. Raises ConfigurationError for a key that is not a field of `Case`."""
    if isinstance(data, Case):
        return data
    if not is_object(data):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a file
        raise ConfigurationError(f"a case must be an object with a conversation, not {shown(data, _LINE)}")
    for key in data:
        if key not in _FIELDS:
            near = difflib.get_close_matches(str(key), _FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(_FIELDS)}"
            raise ConfigurationError(f"a case has no {key!r}; {hint}")
    if "conversation" not in data:
        raise ConfigurationError(f"the case has no conversation: {shown(dict(data), _LINE)}")
    return Case(**data)


def _readable(message: object) -> Message:
    # This message need not be valid in a history, because only the judge reads it, as text.
    plain: Message = as_plain(message)
    if not isinstance(plain, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from the caller
        raise ConfigurationError(f"a message must be an object, not {shown(message, _LINE)}")
    return plain


def _is_answered(conversation: object) -> bool:
    last: Any = as_plain(conversation[-1]) if is_array(conversation) and conversation else None
    return is_object(last) and last.get("role") == "assistant" and not last.get("tool_calls")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _names_functions(value: object) -> bool:
    return value is ... or _is_text(value) or (is_array(value) and all(map(_is_text, value)))


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "function": (_names_functions, "a name, a list of names, or None"),
    "arguments": (is_object, "an object with values by name"),
    "output": (is_object, "an object with values by name"),
    "judge": (_is_text, "a question"),
    "check": (callable, "a function of the Response"),
    "agent": (lambda value: isinstance(value, Agent | str), 'an Agent or "module:attribute"'),
    "context_variables": (is_object, "an object"),
    "run": (lambda value: value in get_args(Extent), f"one of {', '.join(get_args(Extent))}"),
    "name": (_is_text, "a text"),
}


logger = logging.getLogger("aswarm")


class FunctionNames:
    """The names of the functions that the agents of one evaluation have. Each agent is inspected once."""

    def __init__(self) -> None:
        self._known: dict[int, list[str] | None] = {}  # the key is `id(agent)`, because two agents can be equal
        self._logged: set[tuple[int, str]] = set()

    def hint(self, case: Case, agent: Agent) -> str:
        """Return a text about the unknown names in the case, or an empty text. Each unknown name is logged once as a warning."""
        if case.calls_nothing or case.function is ... or case.function is None:
            return ""
        if id(agent) not in self._known:
            self._known[id(agent)] = _known(agent)
        existing = self._known[id(agent)]
        if existing is None:
            return ""
        names = dict.fromkeys([case.function] if isinstance(case.function, str) else case.function)
        texts: list[str] = []
        for name in [name for name in names if name not in existing]:
            near = difflib.get_close_matches(name, existing, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the functions are: {', '.join(existing) or 'none'}"
            text = f"aswarm.graph finds no agent with the function {name!r}; {hint}"
            texts.append(text)
            if (id(agent), name) not in self._logged:
                self._logged.add((id(agent), name))
                logger.warning("the case %r expects %r; %s", str(case), name, text, extra=NO_RUN)
        return "; ".join(texts)


def _known(agent: Agent) -> list[str] | None:
    """Return the names of all functions, or None if there may be more.

    An unknown target of a handoff may have more functions, and so may an agent with "tools" in its `model_settings`.
    """
    try:
        graph = agent_graph(agent)
    except ConfigurationError:
        return None  # the run raises this error if it reaches the agent
    agents = [node.agent for node in graph.agents]
    if any(handoff.target is None for handoff in graph.handoffs) or any(
        "tools" in reached.model_settings for reached in agents
    ):
        return None
    return list(dict.fromkeys(name for reached in agents for name in tools_of(reached)))
