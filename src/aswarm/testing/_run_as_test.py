"""Writes a test that repeats a run: a scripted model gives the recorded answers, and the functions really run."""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pprint import pformat
from types import ModuleType
from typing import Any

from aswarm._record.entries import Entry
from aswarm._record.fold import fold
from aswarm._values.agent import Agent
from aswarm._values.decisions import Approve, Resume
from aswarm._values.json import is_object
from aswarm._values.messages import Message, call_arguments, call_name, text_of

_ADDED_KEYS = ("sender", "tool_name", "reasoning_content", "reasoning")  # added by the service or the provider
_PARAMETERS_OF_CALL = ("name", "arguments", "call_id")
_WIDTH = 100
_TEST = """\
import pytest
from aswarm import {imports}
from aswarm.testing import {names}

from {module} import {variable}  # {note}


@pytest.mark.anyio
async def test_{name}():
    model = ScriptedModel(
        [
{steps}
        ]
    )
    messages = {messages}
    async with AsyncSwarm(client=model.client()) as swarm:
        response = await swarm.run({variable}, messages{more})
    called = [call["function"]["name"] for message in response.messages for call in message.get("tool_calls") or ()]
    assert called == {called}
    assert response.agent.name == {last_agent!r}
    assert response.text == {text}
    check_history([*messages, *response.messages]{check})
"""


def run_as_test(entries: Iterable[Entry], history: Sequence[Message] = (), agent: Agent | None = None) -> str:
    """Return the code of a test that repeats a recorded run. A `ScriptedModel` gives its answers, and the functions really run.

    The playground does the same (*Copy as test*).

    Args:
        entries: The log of the run, from `Run.entries()`.
        history: The messages of the conversation before the run.
        agent: The first agent of the run, which the test imports from its module. Without it, correct the import in the test.

    Security: Texts of a run are literals in the code of its test, whatever they contain.
    """
    log = list(entries)
    folded, started, response = fold(log), log[0].fields, log[-1].response
    answers = [message for message in folded.response_messages if message["role"] == "assistant"]
    called = [call_name(call) for message in answers for call in message.get("tool_calls") or ()]
    steps = [_step(message) for message in answers]
    names = [
        *(["ScriptedAnswer"] if any(step.startswith("ScriptedAnswer(") for step in steps) else []),
        "ScriptedModel",
        *(["call"] if called else []),
        "check_history",
    ]
    module, variable, note = _place_of(agent, started["agent"])
    question = next((text_of(message["content"]) for message in started["messages"] if message["role"] == "user"), "")
    return _TEST.format(
        imports="Approve, AsyncSwarm" if started["resume"] is True else "AsyncSwarm",
        names=", ".join(names),
        module=module,
        variable=variable,
        note=note,
        name=_identifier(question, "this_run"),
        steps="\n".join(f"            {step}," for step in steps),
        messages=_literal([_plain(message) for message in [*history, *started["messages"]]]),
        more=_settings(started),
        called=_literal(called),
        last_agent=folded.agent or "",
        text=_literal(response.get("text", "")),
        check=", allow_open=True" if response.get("waiting") else "",
    )


def _place_of(agent: Agent | None, name: str) -> tuple[str, str, str]:
    """Return the module that has the agent, the name of the agent's variable in this module, and a note for the reader."""
    for module in list(sys.modules.values()):
        variables = list(vars(module).items()) if isinstance(module, ModuleType) else []  # pyright: ignore[reportUnnecessaryIsInstance] - sys.modules may have other objects
        for variable, value in variables:
            if agent is not None and value is agent:
                return _name_of(module), variable, f"the agent {name!r}"
    return "my_agents", _identifier(name, "agent"), f"correct this line: no module has the agent {name!r} as a variable"


def _name_of(module: ModuleType) -> str:
    """Return the name by which a test imports the module. The main module of this process has the name `__main__`."""
    if module.__name__ != "__main__":
        return module.__name__
    return module.__spec__.name if module.__spec__ else Path(module.__file__ or "my_agents").stem


def _settings(started: Mapping[str, Any]) -> str:
    settings = {"context_variables": started.get("context_variables"), "resume": _resume(started)}
    return "".join(f", {name}={_literal(value)}" for name, value in settings.items() if value)


def _resume(started: Mapping[str, Any]) -> Resume:
    recorded = started["resume"]
    if recorded is True:
        return Approve.all()
    decisions = {key: _decision(decision) for key, decision in recorded.items()} if is_object(recorded) else {}
    return decisions or bool(started["calls"])


def _decision(decision: Any) -> Any:
    """Return a decision in the form that `resume=` accepts. In the log, a decision may be a dict of its fields."""
    if not is_object(decision):
        return decision
    if "data" in decision:
        return {"answer": decision["data"]}
    if "arguments" in decision:
        return True if decision["arguments"] is None else {"approve": {"arguments": decision["arguments"]}}
    return {"deny": decision["reason"]} if "reason" in decision else decision


def _step(message: Message) -> str:
    text = text_of(message.get("content"))
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return _literal(text)
    if text:
        return f"ScriptedAnswer({_literal(text)}, [{', '.join(calls)}])"
    return calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"


def _call(call: Mapping[str, Any]) -> str:
    arguments = call_arguments(call)
    try:
        values: Any = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        values = None
    name, call_id = repr(call_name(call)), f"call_id={call['id']!r}"
    if is_object(values) and all(_is_name(key) for key in values):
        return f"call({', '.join([name, call_id, *(f'{key}={value!r}' for key, value in values.items())])})"
    return f"call({name}, {arguments!r}, {call_id})"


def _is_name(key: str) -> bool:
    return key.isidentifier() and not keyword.iskeyword(key) and key not in _PARAMETERS_OF_CALL


def _plain(message: Message) -> Message:
    return {key: value for key, value in message.items() if key not in _ADDED_KEYS and value is not None}


def _identifier(text: str, default: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40].rstrip("_")
    return name if name.isidentifier() and not keyword.iskeyword(name) else default


def _literal(value: Any) -> str:
    return pformat(value, width=_WIDTH, sort_dicts=False).replace("\n", "\n        ")
