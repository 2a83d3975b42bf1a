"""The arguments of `run` and of all that passes them on: `RunKeywords`, and the positional arguments of OpenAI's Swarm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Generic, Literal, Required, TypeAlias, TypedDict

from typing_extensions import TypeForm

from .budget import Budget
from .decisions import Resume
from .output import Output, T, as_output
from .public_names import hint

Messages = str | list[Any] | tuple[Any, ...]
"""The messages of a run: a str for one message of the user, or a list of messages."""
Context: TypeAlias = Mapping[str, Any] | None
"""The context variables of a run."""


class ItemKeywords(TypedDict, total=False):
    """Keywords that also an item of a batch, a case of an evaluation, and a call of a served agent have; see `RunKeywords`."""

    model_override: str | None
    max_turns: int | None
    budget: Budget | None
    resources: Mapping[str, object] | None


class NewRunKeywords(ItemKeywords, total=False):
    """Keywords of a single run, also in a conversation; see `RunKeywords`."""

    debug: bool
    execute_tools: bool
    run_id: str | None
    prompt_cache_key: str | None
    prompt_cache_options: Mapping[str, object] | None  # with Any, mypy would return Any from `run(..., **keywords)`


class RunKeywords(NewRunKeywords, total=False):
    """Keywords of `run`, `run_and_stream` and `stream`, for your own function that passes them on.

        async def answer(question: str, **keywords: Unpack[RunKeywords]) -> str:
            return (await swarm.run(agent, question, **keywords)).text

    `model_override`: the model for all agents in this run.
    `max_turns`: the maximum of completions. The tools of the last completion still run. With 0, no request is sent. With None,
    the default, there is no limit, and the run logs a warning after 100 completions.
    `debug`: True: print and log each step.
    `execute_tools`: False: return when the model calls tools. The calls stay open.
    `budget`: the limits of this run together with the runs inside its tools; by default the budget of the swarm.
    `resources`: clients and connections for the parameters of functions with the hint `Resource[T]`, by their names. They are
    added to the resources of the swarm, with priority. They are neither copied nor recorded.
    `run_id`: the id of this run in the `Response`, for middleware and in log records; by default a new id.
    `prompt_cache_key`, `prompt_cache_options`: the settings of OpenAI's prompt cache, for all agents in this run. They override
    `model_settings`, and another client of `fallback` does not get them. Let the program choose the key, not a browser. If the
    key is for a user, use a keyed hash of the id, because the provider stores the key.
    `resume=True`: first run the open calls at the end of `messages`, except calls that need a decision: these stay open.
    `resume={id: decision}`: the decisions on open calls, see `aswarm.open_calls`. A call without a decision stays open.
    `resume=Approve.all()`: run all open calls. Use it only for a history from storage that you trust.
    """

    resume: Resume


# --- for the overloads of `run` and `stream` --------------------------------------------------------------------------

# A type and an `Output` are two overloads: mypy reads a union or a `Literal` as a `TypeForm` only if no other type is expected.
# `Typed` means a type as `output`, `Output` an `Output`, and `Plain` neither. `AnyOutputRun` has all keywords of `run_and_stream`.


class TypedRun(RunKeywords, Generic[T], total=False):
    stream: Literal[False]
    output: Required[TypeForm[T]]


class OutputRun(RunKeywords, Generic[T], total=False):
    stream: Literal[False]
    output: Required[Output[T]]


class PlainRun(RunKeywords, total=False):
    stream: Literal[False]
    output: None


class AnyOutputRun(RunKeywords, total=False):
    output: Any


class StreamedRun(AnyOutputRun, total=False):
    stream: Required[Literal[True]]


class AnyRun(AnyOutputRun, total=False):
    stream: bool


class TypedStream(RunKeywords, Generic[T], total=False):
    deltas: bool
    output: Required[TypeForm[T]]


class OutputStream(RunKeywords, Generic[T], total=False):
    deltas: bool
    output: Required[Output[T]]


class PlainStream(RunKeywords, total=False):
    deltas: bool
    output: None


class AnyStream(AnyOutputRun, total=False):
    """All keywords of `stream`."""

    deltas: bool


# --- reading the arguments --------------------------------------------------------------------------------------------


def checked_keywords(method: str, keywords: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the keywords, with an `Output` as `output`.

    Raises TypeError, with Python's own text, for a keyword of `method` that the TypedDict `kind` does not have.
    """
    for name in keywords:
        if name not in kind.__annotations__:
            remedy = hint("Swarm()" if method == "Swarm" else "run()", name)
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{remedy}")
    return {**keywords, "output": as_output(keywords.get("output"))} if "output" in keywords else {**keywords}


# The order in which OpenAI's Swarm takes the arguments after `context_variables`.
_SWARMS_ORDER = {
    "run": ("model_override", "stream", "debug", "max_turns", "execute_tools"),
    "run_and_stream": ("model_override", "debug", "max_turns", "execute_tools"),
}


def swarm_keywords(method: str, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method of OpenAI's Swarm, after `context_variables`, as keywords.

    Raises TypeError, with Python's own text, for an unknown keyword, a duplicate, and too many positional arguments.
    """
    names = _SWARMS_ORDER[method]
    if len(positional) > len(names):
        most, given = 4 + len(names), 4 + len(positional)
        raise TypeError(f"{method}() takes from 3 to {most} positional arguments but {given} were given")
    in_order = dict(zip(names, positional, strict=False))
    for name in in_order:
        if name in keywords:
            raise TypeError(f"{method}() got multiple values for argument {name!r}")
    arguments = checked_keywords(method, {**in_order, **keywords}, AnyRun if method == "run" else AnyOutputRun)
    if arguments.get("max_turns") == math.inf:  # Swarm's default, which its programs pass on
        arguments["max_turns"] = None
    return arguments
