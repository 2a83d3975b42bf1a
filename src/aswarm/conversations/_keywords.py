"""The keywords of a `Conversation`: those of a run, and `agent`, which takes over the conversation.

A type checker infers the type of the answer from `output`. For mypy, a union of types is any type.
"""

from __future__ import annotations

from typing import Any, Generic, Required

from typing_extensions import TypeForm

from aswarm._values.agent import Agent
from aswarm._values.output import Output, T
from aswarm._values.run_keywords import NewRunKeywords


class _TurnKeywords(NewRunKeywords, total=False):
    agent: Agent | None


class TypedTurn(_TurnKeywords, Generic[T], total=False):
    """Keywords of `run` with `output`."""

    output: Required[TypeForm[T] | Output[T]]


class AnyTurn(_TurnKeywords, total=False):
    """Keywords of `run`."""

    output: Any


class TypedLiveTurn(TypedTurn[T], Generic[T], total=False):
    """Keywords of `stream` with `output`."""

    deltas: bool


class AnyLiveTurn(AnyTurn, total=False):
    """Keywords of `stream`."""

    deltas: bool


class Resumed(AnyTurn, total=False):
    """Keywords of `resume`."""

    revision: str | None


class LiveResumed(Resumed, total=False):
    """Keywords of `resume_stream`."""

    deltas: bool
