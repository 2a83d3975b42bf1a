"""A run as the code of a test: a scripted model says again what the model has said, and the functions really run. No I/O."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from pprint import pformat
from typing import Any

from aswarm._json import is_object
from aswarm._messages import Message, text_of

from ._entries import Entry
from ._fold import fold

_OWN = ("sender", "tool_name", "reasoning_content", "reasoning")  # what the service or the provider has added
_TAKEN = ("name", "arguments", "call_id")  # parameters of `call` itself
_WIDTH = 100
_TEST = """\
import pytest
from aswarm import AsyncSwarm
from aswarm.testing import {names}

from my_agents import {variable}  # the agent {agent!r}


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


def run_as_test(entries: Iterable[Entry], history: Sequence[Message]) -> str:
    """The code of a test that is the run of this log. `history`: the messages of the conversation before the run."""
    log = list(entries)
    folded, started = fold(log), log[0].fields
    answers = [message for message in folded.made if message["role"] == "assistant"]
    called = [call["function"]["name"] for message in answers for call in message.get("tool_calls") or ()]
    steps = [_step(message) for message in answers]
    names = [
        *(["Answer"] if any(step.startswith("Answer(") for step in steps) else []),
        "ScriptedModel",
        *(["call"] if called else []),
        "check_history",
    ]
    response: Mapping[str, Any] = {} if folded.ending is None else folded.ending.response
    said = next((text_of(message["content"]) for message in folded.asked if message["role"] == "user"), "")
    return _TEST.format(
        names=", ".join(names),
        variable=_identifier(started["agent"], "agent"),
        agent=started["agent"],
        name=_identifier(said, "this_run"),
        steps="\n".join(f"            {step}," for step in steps),
        messages=_literal([_plain(message) for message in [*history, *folded.asked]]),
        more=_settings(started),
        called=_literal(called),
        last_agent=folded.agent or "",
        text=_literal(response.get("text", "")),
        check=", allow_open=True" if response.get("waiting") else "",
    )


def _settings(started: Mapping[str, Any]) -> str:
    context = started.get("context_variables")
    resume = started["resume"]
    decisions = (
        {key: _decision(made) for key, made in resume.items()}
        if is_object(resume)
        else resume or bool(started["calls"])
    )
    return "".join(
        [
            f", context_variables={_literal(context)}" if context else "",
            f", resume={_literal(decisions)}" if decisions else "",
        ]
    )


def _decision(made: Any) -> Any:
    """A decision of the log, which may have the form of its fields, in the form that `resume=` takes."""
    if not is_object(made):
        return made
    if "data" in made:
        return {"answer": made["data"]}
    if "arguments" in made:
        return True if made["arguments"] is None else {"approve": {"arguments": made["arguments"]}}
    return {"deny": made["reason"]} if "reason" in made else made


def _step(message: Message) -> str:
    text = text_of(message.get("content"))
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return _literal(text)
    if text:
        return f"Answer({_literal(text)}, [{', '.join(calls)}])"
    return calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    try:
        values: Any = json.loads(function["arguments"] or "{}")
    except ValueError:
        values = None
    name, call_id = repr(function["name"]), f"call_id={call['id']!r}"
    if is_object(values) and all(_is_name(key) for key in values):
        return f"call({', '.join([name, call_id, *(f'{key}={value!r}' for key, value in values.items())])})"
    return f"call({name}, {function['arguments']!r}, {call_id})"


def _is_name(key: str) -> bool:
    return key.isidentifier() and not keyword.iskeyword(key) and key not in _TAKEN


def _plain(message: Message) -> Message:
    return {key: value for key, value in message.items() if key not in _OWN and value is not None}


def _identifier(text: str, default: str) -> str:
    found = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40].rstrip("_")
    return found if found.isidentifier() and not keyword.iskeyword(found) else default


def _literal(value: Any) -> str:
    return pformat(value, width=_WIDTH, sort_dicts=False).replace("\n", "\n        ")
