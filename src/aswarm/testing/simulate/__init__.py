"""Simulation: run agents in many universes, each with its own schedule and faults, and repeat a failure from its seed.

    @simulate(runs=1000)
    async def test_orders(world: World) -> None:
        model = Provider(world, [call("look_up", order=42), "It was delivered."], faults=["cut", "429"])
        await world.run(world.swarm(model), agent, "Where is order 42?")

A universe has a virtual clock, so its delays take no time. Equal seeds are equal universes.
"""

from aswarm._values import public_names as _public

from ._clients import Clients
from ._crash import Crash
from ._invariants import (
    DEFAULT_INVARIANTS,
    budget_kept,
    context_as_sequential,
    context_recorded,
    log_folds_to_history,
    nothing_twice,
    started_calls_closed,
    streams_closed,
    unknown_outcomes_reported,
    usage_adds_up,
    valid_history,
)
from ._loop import Deadlock, Endless
from ._provider import Fault, Provider
from ._search import Invariant, Simulation, SimulationError, simulate, timeline
from ._search import pytest_addoption as pytest_addoption  # pytest finds its hooks by their names
from ._search import pytest_configure as pytest_configure
from ._world import SimulatedAnswer, SimulatedCall, SimulatedRun, World

__all__ = [
    "DEFAULT_INVARIANTS",
    "Clients",
    "Crash",
    "Deadlock",
    "Endless",
    "Fault",
    "Invariant",
    "Provider",
    "SimulatedAnswer",
    "SimulatedCall",
    "SimulatedRun",
    "Simulation",
    "SimulationError",
    "World",
    "budget_kept",
    "context_as_sequential",
    "context_recorded",
    "log_folds_to_history",
    "nothing_twice",
    "simulate",
    "started_calls_closed",
    "streams_closed",
    "timeline",
    "unknown_outcomes_reported",
    "usage_adds_up",
    "valid_history",
]

_public.publish(globals())
