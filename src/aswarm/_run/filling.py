"""Arguments that the run fills: the context variables of a call, merged at its end, and the resources of the run.

Checks that the context and the resources suit an agent, before any call. Runs nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

from aswarm._tools.filled import Filled, filled_parameters
from aswarm._tools.toolbox import Toolbox
from aswarm._values.agent import Agent
from aswarm._values.context import copy_containers, merge_changes
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_object, shown

NO_RESOURCES: Mapping[str, object] = MappingProxyType({})
_INSTRUCTIONS = "its instructions"
_CHECK = "the check of its answer"


# --- one call ---------------------------------------------------------------------------------------------------------


@contextmanager
def filled_arguments(
    filled: Filled,
    arguments: dict[str, Any],
    context: dict[str, Any],
    resources: Mapping[str, object],
    *,
    is_abandonable: bool = False,
) -> Generator[dict[str, Any]]:
    """Yield the keyword arguments of a call. At the end of the block, merge the changes of the context variables.

    `is_abandonable`: the function may still be running after the block, so changes are merged only if the block succeeds.
    Raises ConfigurationError if the context does not fit the type of the function, and TypeError if the changes do not.
    """
    arguments = {**arguments, **filled.resources_of(resources)} if filled.resources else dict(arguments)
    merge: Callable[[], None] | None = None
    if filled.context is not None:
        arguments[filled.context], merge = _lent(filled, context, is_abandonable=is_abandonable)
    try:
        yield arguments
    except BaseException:
        if merge is not None and not is_abandonable:
            with suppress(Exception):  # the exception of the call is more important, above all a cancellation
                merge()
        raise
    if merge is not None:
        merge()


def _lent(filled: Filled, context: dict[str, Any], *, is_abandonable: bool) -> tuple[Any, Callable[[], None] | None]:
    """Return the context variables for one call, and the function that merges its changes; None if there is nothing to merge."""
    if filled.kind is not None:
        view = filled.kind.view(context)
        return view.value, functools.partial(view.merge_into, context)
    before = copy_containers(context) if is_abandonable else context
    own = copy_containers(before) if is_abandonable else context
    shared = MappingProxyType(own) if filled.is_read_only else own
    return shared, functools.partial(merge_changes, context, before, own) if is_abandonable else None


def read_arguments(
    filled: Filled,
    context: Mapping[str, Any],
    resources: Mapping[str, object],
    plain: Callable[[Any], Any] = MappingProxyType,
) -> dict[str, Any]:
    """Return keyword arguments for a function that only reads the context. `plain`: makes its value without a type.

    Raises ConfigurationError if the context does not fit the type of the function.
    """
    own = filled.resources_of(resources)
    if filled.context is not None:
        own[filled.context] = plain(context) if filled.kind is None else filled.kind.read(context)
    return own


# --- an agent ---------------------------------------------------------------------------------------------------------


def checked_resources(resources: object) -> Mapping[str, object]:
    """Return the argument `resources=`; empty for None. Raises ConfigurationError for another value than a dict of names."""
    if resources is None:
        return NO_RESOURCES
    if not is_object(resources) or not all(isinstance(name, str) for name in resources):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"resources must be a dict by the names of parameters, such as {{'db': db}}, not {shown(resources, 80)}"
        )
    return resources


def check_agent(
    agent: Agent,
    tools: Toolbox,
    context: Mapping[str, Any],
    resources: Mapping[str, object],
    check: Filled | None = None,
) -> None:
    """Raise ConfigurationError if the context or the resources do not suit an agent.

    `check`: the parameters of the check of its answer.
    """
    faults: dict[str, list[str]] = {}
    of_functions = {id(tool._schema.filled) for tool in tools.tools.values()}  # others only read the context
    of_check = () if check is None else ((_CHECK, check),)
    for place, filled in (*tools.needs, *_needs_of_instructions(agent), *of_check):
        for fault in _faults(filled, context, resources, may_write=id(filled) in of_functions):
            faults.setdefault(fault, []).append(place)
    if faults:
        text = "; ".join(f"{', '.join(places)}: {fault}" for fault, places in faults.items())
        raise ConfigurationError(f"agent {agent.name!r} cannot run: {text}")


def _needs_of_instructions(agent: Agent) -> Iterator[tuple[str, Filled]]:
    filled = filled_parameters(agent.instructions, 0) if callable(agent.instructions) else None
    if filled is not None and filled.is_typed:
        yield _INSTRUCTIONS, filled


def _faults(
    filled: Filled, context: Mapping[str, Any], resources: Mapping[str, object], *, may_write: bool
) -> Iterator[str]:
    if filled.kind is not None:
        read = filled.kind.view if may_write else filled.kind.read
        try:
            read(context)
        except ConfigurationError as error:
            yield str(error)
    yield from filter(None, (each.fault(resources) for each in filled.resources))
